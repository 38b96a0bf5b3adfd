"""Tickets on the command line, and what a run does that has one."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.cli import run_keep
from flagbench.errors import ExitCode
from flagbench.launchers import LaunchResult
from flagbench.request import RunRequest
from flagbench.s3.ticket import Ticket
from flagbench.stores import Store, open_store
from flagbench.stores.issue_ticket import issue
from flagbench.stores.ticket import read_ticket, upload_bundle, upload_record
from storage.tickets import ID, PREFIX, RUN, bundle_of, collect, record

pytestmark = pytest.mark.s3


def test_the_commands(bucket: str, tmp_path: Path, typed: Any) -> None:
    address, file = f"s3://{bucket}/{PREFIX}", tmp_path / "ticket.json"
    made = typed("store", "ticket", "--store", address, "--run-id", RUN, "--nodes", "2", "-o", str(file), "--json")
    assert made.code == 0, made.err
    assert "credential" in made.err
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(made.out)["run_id"] == RUN
    ticket = read_ticket(file)
    again = typed("store", "ticket", "--store", address, "-o", str(file))
    assert (again.code, read_ticket(file)) == (ExitCode.USAGE, ticket), "one ticket never replaces another"
    kept = tmp_path / "bundle"
    kept.write_bytes(bundle_of())
    upload_bundle(ticket, 0, kept)
    upload_record(ticket, record())
    assert json.loads(typed("results", "ls", "--store", address, "--json").out)["records"] == []
    collected = typed("store", "collect", "--store", address, "--json")
    assert collected.code == 0, collected.err
    (found,) = json.loads(collected.out)["collected"]
    assert (found["record_id"], found["bundles"]) == (ID, 1)
    assert json.loads(typed("store", "collect", "--store", address, "--json").out)["collected"] == []
    assert "node-0-" in typed("results", "show", "last", "--store", address).out
    assert typed("results", "rm", "last", "--yes", "--store", address).code == 0
    assert open_store(address).bundles.of(ID) == []


def test_one_runs_upload_keeps_no_other_back(
    bucket: str, typed: Any, store: Store, upload: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, other = f"s3://{bucket}/{PREFIX}", "another-run"
    upload(None, record())
    upload(0, bundle_of())
    ticket = issue(store, other, 1, timedelta(hours=1))
    upload_record(ticket, record(run_id=other, record_id="20260101T120000Z-0002"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    ended = typed("store", "collect", "--store", address, "--json")
    assert (ended.code, "TMPDIR" in ended.err) == (ExitCode.NOT_STORED, True)
    (failed,) = json.loads(ended.out)["failed"]
    assert (failed["run_id"], [each["run_id"] for each in json.loads(ended.out)["collected"]]) == (RUN, [other])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = typed("store", "collect", "--store", address, "--discard", RUN, "--json")
    assert (ended.code, json.loads(ended.out)["discarded"]) == (0, [RUN])
    assert "no uploads wait" in typed("store", "collect", "--store", address, "--discard", RUN).err


def test_what_cannot_be_a_run_is_named(typed: Any, bucket: str) -> None:
    ended = typed("store", "collect", "../x", "--store", f"s3://{bucket}")
    assert (ended.code, "'../x'" in ended.err, "--run-id" in ended.err) == (ExitCode.USAGE, True, False)


def kept(ticket: Ticket, tmp_path: Path, code: int = 0) -> tuple[bool, int]:
    """What `flagbench run --ticket` does after a run that left its bundle."""
    left = tmp_path / "left" / "bundles" / ID / f"node-0-{hashlib.sha256(bundle_of()).hexdigest()}.tar.gz"
    left.parent.mkdir(parents=True)
    left.write_bytes(bundle_of())
    request = RunRequest(CATALOG.cases["distilbert"], CATALOG.stacks["cpu"], bundle=str(tmp_path / "left"))
    return run_keep.keep(LaunchResult(record(), code), request, open_store(str(tmp_path / "own")), ticket)


def test_a_run_keeps_its_record_and_uploads_it(store: Store, ticket: Ticket, tmp_path: Path, typed: Any) -> None:
    assert kept(ticket, tmp_path) == (True, 0)
    assert open_store(str(tmp_path / "own")).get(ID) == record()
    assert [each.bundles for each in collect(store)] == [1]
    assert json.loads(typed("results", "push", "--json").out)["stored"] == [], "nothing waits"


def test_a_ticket_is_used_where_the_own_store_fails(store: Store, ticket: Ticket, tmp_path: Path, typed: Any) -> None:
    (tmp_path / "own").write_text("a file")
    assert kept(ticket, tmp_path) == (False, ExitCode.NOT_STORED)
    assert [each.bundles for each in collect(store)] == [1]
    assert json.loads(typed("results", "push", "--json").out)["stored"] == [], "nothing waits"


def test_what_waits_for_a_ticket_is_pushed_with_it(
    store: Store, ticket: Ticket, tmp_path: Path, typed: Any, proxy: Any
) -> None:
    dead = Ticket(**{**vars(ticket), "uploads": dict.fromkeys(ticket.uploads, "http://127.0.0.1:9/x")})
    assert kept(dead, tmp_path) == (True, ExitCode.NOT_STORED)
    without = typed("results", "push")
    assert (without.code, "--ticket" in without.err) == (ExitCode.NOT_STORED, True)
    file = tmp_path / "ticket.json"
    file.write_bytes(ticket.encode())
    pushed = typed("results", "push", "--ticket", str(file), "--json")
    assert pushed.code == 0, pushed.err
    assert [len(json.loads(pushed.out)[name]) for name in ("stored", "bundles")] == [1, 1]
    assert [each.bundles for each in collect(store)] == [1]
    assert json.loads(typed("results", "push", "--ticket", str(file), "--json").out)["stored"] == []
