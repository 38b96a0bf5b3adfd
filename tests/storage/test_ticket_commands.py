"""Tickets on the command line, and what a run does that has one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.records.store import Store, open_store
from flagbench.records.tickets import Inbox
from flagbench.runs import keep as run_keep
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.request import RunRequest
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3.ticket import Ticket, read_ticket
from storage.tickets import ID, RUN, bundle_of, collect, record, upload

pytestmark = pytest.mark.s3


def test_the_commands(store: Store, tmp_path: Path, typed: Any) -> None:
    file = tmp_path / "ticket.json"
    made = typed("store", "ticket", "--store", store.url, "--run-id", RUN, "--nodes", "2", "-o", str(file))
    assert (made.code, made.out, "credential" in made.err) == (0, "", True)
    assert file.stat().st_mode & 0o777 == 0o600
    ticket = read_ticket(str(file))
    assert (ticket.run_id, ticket.nodes) == (RUN, 2)
    again = typed("store", "ticket", "--store", store.url, "-o", str(file))
    assert (again.code, read_ticket(str(file))) == (ExitCode.USAGE, ticket), "one ticket never replaces another"
    upload(ticket, bundle_of(), node=0)
    upload(ticket, record())
    assert json.loads(typed("results", "ls", "--store", store.url, "--json").out)["records"] == []
    collected = typed("store", "collect", "--store", store.url, "--json")
    assert collected.code == 0, collected.err
    (found,) = json.loads(collected.out)["collected"]
    assert (found["record_id"], found["bundles"]) == (ID, 1)
    assert "no uploads wait" in typed("store", "collect", "--store", store.url).err
    assert typed("results", "rm", "last", "--yes", "--store", store.url).code == 0
    assert store.bundles.find(ID) == []


def test_when_no_ticket_is_made(store: Store, bucket: str, server: Any, typed: Any) -> None:
    ticket = ("store", "ticket", "--store")
    for words in (("--expires", "8d"), ("--expires", "1"), ("--json",)):
        assert typed(*ticket, store.url, *words).code == ExitCode.USAGE
    swift = typed(*ticket, f"s3://{bucket}?profile=swift")
    assert swift.code == ExitCode.USAGE, "several writers may win"
    server.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert typed(*ticket, store.url).code == ExitCode.USAGE


def test_one_runs_upload_keeps_no_other_back(
    store: Store, ticket: Ticket, typed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "another-run"
    upload(ticket, bundle_of(), node=0)
    upload(Inbox(store).issue(other, 1, timedelta(hours=1)), record(run_id=other, record_id="20260101T120000Z-0002"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    ended = typed("store", "collect", "--store", store.url, "--json")
    assert (ended.code, "TMPDIR" in ended.err) == (ExitCode.NOT_STORED, True)
    (failed,) = json.loads(ended.out)["failed"]
    assert (failed["run_id"], [each["run_id"] for each in json.loads(ended.out)["collected"]]) == (RUN, [other])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert typed("store", "collect", "--store", store.url).code == ExitCode.DATA
    discarded = typed("store", "collect", RUN, "--discard", "--store", store.url, "--json")
    assert (discarded.code, json.loads(discarded.out)["discarded"]) == (0, [RUN])
    assert "no uploads wait" in typed("store", "collect", "--store", store.url).err
    assert typed("store", "ticket", "--store", store.url, "--run-id", RUN).code == ExitCode.USAGE


def kept(ticket: Ticket, tmp_path: Path) -> tuple[bool, int]:
    """What `flagbench run --ticket` does after a run that left its bundle."""
    left = tmp_path / "left" / "bundles" / ID / f"node-0-{hashlib.sha256(bundle_of()).hexdigest()}.tar.gz"
    left.parent.mkdir(parents=True)
    left.write_bytes(bundle_of())
    request = RunRequest(CATALOG.cases["distilbert"], CATALOG.stacks["cpu"], bundle=str(tmp_path / "left"))
    return run_keep.keep(LaunchResult(record(), 0), request, open_store(str(tmp_path / "own")), ticket)


@pytest.mark.parametrize("broken", [False, True])
def test_a_run_keeps_its_record_and_uploads_it(
    store: Store, ticket: Ticket, tmp_path: Path, typed: Any, broken: bool
) -> None:
    if broken:
        (tmp_path / "own").write_text("a file")
    assert kept(ticket, tmp_path) == (not broken, ExitCode.NOT_STORED if broken else 0)
    assert broken or open_store(str(tmp_path / "own")).get(ID) == record()
    assert [each.bundles for each in collect(store)] == [1]
    assert json.loads(typed("results", "push", "--json").out)["stored"] == [], "nothing waits"


def test_what_waits_for_a_ticket_is_pushed_with_it(store: Store, ticket: Ticket, tmp_path: Path, typed: Any) -> None:
    over = dataclasses.replace(ticket, expires_at="2026-01-01T00:00:00Z")
    assert kept(over, tmp_path) == (True, ExitCode.NOT_STORED)
    without = typed("results", "push")
    assert (without.code, "--ticket" in without.err) == (ExitCode.NOT_STORED, True)
    file, another = tmp_path / "ticket.json", tmp_path / "record.json"
    file.write_bytes(ticket.encode())
    another.write_bytes(record(run_id="run-2"))
    refused = typed("results", "push", "--ticket", str(file), str(another))
    assert (refused.code, "run-2" in refused.err) == (ExitCode.USAGE, True)
    pushed = typed("results", "push", "--ticket", str(file), "--json")
    assert pushed.code == 0, pushed.err
    assert [len(json.loads(pushed.out)[name]) for name in ("stored", "bundles")] == [1, 1]
    assert [each.bundles for each in collect(store)] == [1]
    assert json.loads(typed("results", "push", "--ticket", str(file), "--json").out)["stored"] == []
    (tmp_path / "record.json.meant-for").write_text("ticket:run-2")
    assert typed("results", "push", "--ticket", str(file), str(tmp_path)).code == ExitCode.DATA, "another run's"
