"""What is collected of uploads with tickets: what is sound, once, whatever else happens."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flagbench.records.store import Store, open_store
from flagbench.records.tickets import Inbox
from flagbench_core.s3.ticket import Ticket
from storage.tickets import ID, bundle_of, collect, put, record, upload

pytestmark = pytest.mark.s3
ROOT = Path(__file__).parents[2]


def test_uploads_are_kept_unchanged_and_the_ticket_is_used(
    store: Store, ticket: Ticket, keys: Any, tmp_path: Path
) -> None:
    upload(ticket, bundle_of(1), node=1)
    (early,) = collect(store)
    assert (early.record_id, len(early.problems)) == (None, 1), "its record has not arrived"
    upload(ticket, record())
    (first,) = collect(store)
    assert (first.record_id, first.bundles, first.problems) == (ID, 1, [])
    assert store.get(ID) == record()
    upload(ticket, bundle_of(0), node=0)  # a node that was slower
    (late,) = collect(store)
    assert (late.record_id, late.location, late.bundles) == (ID, None, 1)
    kept = store.bundles.find(ID)
    assert [each.place.node for each in kept] == [0, 1]
    store.bundles.get(kept[0], tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == bundle_of(0)
    assert collect(store) == []
    assert put(ticket.uploads["record.json"], b"x", ticket.headers) == 412, "used for good"
    assert len(keys("inbox/")) == 3


def test_marks_outlive_every_ticket_and_no_longer(
    store: Store, ticket: Ticket, keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(ticket, record())
    collect(store)
    for outlives, left in ((timedelta(days=8), 1), (timedelta(0), 0)):
        monkeypatch.setattr("flagbench.records.tickets._OUTLIVES", outlives)
        assert Inbox(store).waiting() == {}
        assert len(keys("inbox/")) == left


@pytest.mark.parametrize(
    ("uploads", "kept", "word"),
    [
        ({None: record(run_id="run-2")}, [], "run-2"),
        ({None: b'{"schema": "record/v1"}\n'}, [], "not a valid"),
        ({None: record(), 0: b"no bundle"}, [None], "node-0"),
        ({None: record(), 0: bundle_of(1), 1: bundle_of(1)}, [None, 1], "node-0"),
        ({None: record(), 0: bundle_of(record_id="20260101T120000Z-0002")}, [None], "node-0"),
        ({None: record(), 0: bundle_of(run_id="run-2")}, [None], "node-0"),
    ],
)
def test_what_is_not_sound_stays_and_keeps_nothing_else_back(
    store: Store, ticket: Ticket, uploads: dict[int | None, bytes], kept: list[int | None], word: str
) -> None:
    for node, content in uploads.items():
        upload(ticket, content, node)
    (found,) = collect(store)
    assert any(word in problem for problem in found.problems), found
    assert bool(store.find(ID)) is (None in kept)
    assert [each.place.node for each in store.bundles.find(ID)] == [node for node in kept if node is not None]
    (places,) = Inbox(store).waiting().values()
    assert len(places) == len(uploads) - len(kept), "it stays"


def test_another_records_id_gets_neither_record_nor_bundle(store: Store, ticket: Ticket) -> None:
    others = record(run_id="run-of-another", stack="a100-cuda11.6")
    store.put(others)
    upload(ticket, bundle_of(), node=0)
    assert [each.bundles for each in collect(store)] == [0]
    upload(ticket, record())
    (found,) = collect(store)
    assert (found.location, found.bundles, len(found.problems)) == (None, 0, 2)
    assert (store.get(ID), store.bundles.find(ID)) == (others, [])


def test_two_collectors_at_once(store: Store, ticket: Ticket) -> None:
    upload(ticket, bundle_of(), node=0)
    upload(ticket, record())
    inboxes = [Inbox(open_store(store.url)) for _ in range(2)]
    seen = [(inbox, *each) for inbox in inboxes for each in inbox.waiting().items()]
    with ThreadPoolExecutor() as pool:
        found = [*pool.map(lambda each: each[0].collect(*each[1:]), seen)]
    assert [each.problems for each in found] == [[], []]
    inbox, run_id, places = seen[0]
    again = inbox.collect(run_id, places)  # one that looked before the other had finished
    assert (again.problems, again.location) == ([], None)
    assert store.get(ID) == record()
    assert len(store.bundles.find(ID)) == 1


def test_a_collector_that_is_overtaken_in_a_bundle(store: Store, ticket: Ticket, proxy: Any) -> None:
    upload(ticket, bundle_of(files={"large": random.Random(1).randbytes(2**20)}), node=0)
    upload(ticket, record())
    inbox, done = Inbox(open_store(store.url)), []
    ((run_id, places),) = inbox.waiting().items()

    def fault(method: str, path: str, count: int) -> None:
        if method == "GET" and "node-0" in path and not done:
            done.append(collect(store))

    proxy.fault = fault
    found = inbox.collect(run_id, places)
    assert (found.bundles, found.problems) == (0, [])
    assert [each.bundles for each in done[0]] == [1]
    assert len(store.bundles.find(ID)) == 1


def test_a_collector_killed_after_any_write_loses_nothing(store: Store, ticket: Ticket, proxy: Any) -> None:
    upload(ticket, bundle_of(), node=0)
    upload(ticket, record())
    command = [sys.executable, "-m", "flagbench", "store", "collect", "--store", store.url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "builder")}
    for _ in range(4):  # the record, its mark, the bundle, its mark: each gets one step further
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as collector:

            def fault(method: str, path: str, count: int, child: Any = collector) -> str | None:
                if method not in ("PUT", "POST", "DELETE"):
                    return None
                child.send_signal(signal.SIGKILL)
                return "lost"

            proxy.fault = fault
        waits = Inbox(store).waiting()
        assert waits or (store.find(ID) == [ID] and len(store.bundles.find(ID)) == 1)
    proxy.fault = lambda method, path, count: None
    collect(store)
    assert store.get(ID) == record()
    assert [each.place.node for each in store.bundles.find(ID)] == [0]
