"""What is collected of uploads with tickets: what is sound, once, whatever else happens."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flagbench.s3.ticket import Ticket
from flagbench.stores import Store, open_store
from flagbench.stores.inbox import Inbox
from storage.tickets import ID, PREFIX, bundle_of, collect, put, record
from unit.host.conftest import RECORD

pytestmark = pytest.mark.s3
ROOT = Path(__file__).parents[2]


def test_uploads_are_kept_as_they_were_made_and_the_ticket_is_used(
    store: Store, upload: Any, ticket: Ticket, keys: Any, tmp_path: Path
) -> None:
    upload(1, bundle_of(1))
    (early,) = collect(store)
    assert (early.record_id, len(early.problems)) == (None, 1), "its record has not arrived"
    upload(None, record())
    (first,) = collect(store)
    assert (first.record_id, first.bundles, first.problems) == (ID, 1, [])
    assert store.get(ID) == record()
    upload(0, bundle_of(0))  # a node that was slower
    (late,) = collect(store)
    assert (late.record_id, late.location, late.bundles) == (ID, None, 1)
    kept = store.bundles.of(ID)
    assert [each.place.node for each in kept] == [0, 1]
    for each in kept:
        store.bundles.get(each, tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == bundle_of(each.place.node)
    assert collect(store) == []
    assert put(ticket.uploads["record.json"], b"x", ticket.headers) == 412, "used for good"
    assert len(keys("inbox/")) == 3


def test_marks_outlive_every_ticket_and_no_longer(store: Store, upload: Any, keys: Any, monkeypatch: Any) -> None:
    upload(None, record())
    collect(store)
    for outlives, left in ((timedelta(days=8), 1), (timedelta(0), 0)):
        monkeypatch.setattr("flagbench.stores.inbox._OUTLIVES", outlives)
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
        ({None: record(system={**RECORD["system"], "nodes": 1}), 1: bundle_of(1)}, [None], "no such node"),
    ],
)
def test_what_is_not_sound_stays_and_keeps_nothing_else_back(
    store: Store, upload: Any, keys: Any, uploads: dict[int | None, bytes], kept: list[int | None], word: str
) -> None:
    for node, content in uploads.items():
        upload(node, content)
    (found,) = collect(store)
    assert any(word in problem for problem in found.problems), found
    assert [bool(store.find(ID)), *(each.place.node for each in store.bundles.of(ID))] == [
        None in kept,
        *(node for node in kept if node is not None),
    ]
    assert len(collect(store)) == 1, "it stays"
    inbox = Inbox(store)
    (places,) = inbox.waiting().values()
    assert len(places) == len(uploads) - len(kept)
    inbox.discard(places)
    assert collect(store) == []
    assert len(keys("inbox/")) == len(uploads), "a discarded ticket is used, too"


def test_another_records_id_gets_neither_record_nor_bundle(store: Store, upload: Any) -> None:
    others = record(run_id="run-of-another", stack="a100-cuda11.6")
    store.put(others)
    upload(0, bundle_of())
    assert [each.bundles for each in collect(store)] == [0]
    upload(None, record())
    (found,) = collect(store)
    assert ID in found.problems[0]
    assert (store.get(ID), store.bundles.of(ID)) == (others, [])


def test_two_collectors_at_once(store: Store, upload: Any, bucket: str) -> None:
    upload(0, bundle_of())
    upload(None, record())
    inboxes = [Inbox(open_store(f"s3://{bucket}/{PREFIX}")) for _ in range(2)]
    seen = [(inbox, *each) for inbox in inboxes for each in inbox.waiting().items()]
    found: list[Any] = []
    threads = [threading.Thread(target=lambda i=i, e=e: found.append(i.collect(*e))) for i, *e in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.problems for each in found] == [[], []]
    inbox, run_id, places = seen[0]
    again = inbox.collect(run_id, places)  # one that looked before the other had finished
    assert (again.problems, again.location) == ([], None)
    assert store.get(ID) == record()
    assert len(store.bundles.of(ID)) == 1


def test_a_collector_that_is_overtaken_in_the_middle_of_a_bundle(
    upload: Any, bucket: str, proxy: Any, store: Store
) -> None:
    upload(0, bundle_of(files={"large": random.Random(1).randbytes(2**20)}))
    upload(None, record())
    inbox, done = Inbox(open_store(f"s3://{bucket}/{PREFIX}")), []
    ((run_id, places),) = inbox.waiting().items()

    def fault(method: str, path: str, count: int) -> None:
        if method == "GET" and "node-0" in path and not done:
            done.append(collect(store))

    proxy.fault = fault
    found = inbox.collect(run_id, places)
    assert (found.bundles, found.problems) == (0, [])
    assert [each.bundles for each in done[0]] == [1]
    assert len(store.bundles.of(ID)) == 1


def test_a_collector_killed_after_any_of_its_writes_loses_nothing(
    store: Store, upload: Any, bucket: str, proxy: Any
) -> None:
    upload(0, bundle_of())
    upload(None, record())
    command = [sys.executable, "-m", "flagbench", "store", "collect", "--store", f"s3://{bucket}/{PREFIX}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "builder")}
    for _ in range(4):  # the bundle, its mark, the record, its mark: each gets one step further
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as collector:

            def fault(method: str, path: str, count: int, child: Any = collector) -> str | None:
                if method not in ("PUT", "POST", "DELETE"):
                    return None
                child.send_signal(signal.SIGKILL)
                return "lost"

            proxy.fault = fault
        waits = Inbox(store).waiting()
        assert waits or (store.find(ID) == [ID] and len(store.bundles.of(ID)) == 1)
    proxy.fault = lambda method, path, count: None
    collect(store)
    assert store.get(ID) == record()
    assert [each.place.node for each in store.bundles.of(ID)] == [0]
