"""Tickets on the command line, and what a run does that has one."""

from __future__ import annotations

import hashlib
import json
import types
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bundles import bundle
from flagbench.cli import run_keep
from flagbench.errors import ExitCode
from flagbench.launchers import LaunchResult
from flagbench.s3.ticket import Ticket
from flagbench.stores import Store, holder, open_store
from flagbench.stores.inbox import MARK_BYTES
from flagbench.stores.issue_ticket import issue
from flagbench.stores.ticket import read_ticket, write_private
from flagbench.stores.waiting import waiting
from storage.tickets import ID, PREFIX, RUN, collect, record

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
    kept.write_bytes(bundle())
    holder.upload_bundle(ticket, 0, kept)
    holder.upload_record(ticket, record())
    assert json.loads(typed("results", "ls", "--store", address, "--json").out)["records"] == []
    collected = typed("store", "collect", "--store", address, "--json")
    assert collected.code == 0, collected.err
    (found,) = json.loads(collected.out)["collected"]
    assert (found["record_id"], found["bundles"]) == (ID, 1)
    assert json.loads(typed("store", "collect", "--store", address, "--json").out)["collected"] == []
    shown = typed("results", "show", "last", "--store", address)
    assert "node-0-" in shown.out
    pulled = typed("results", "pull", "--bundles", "--store", address, "--json")
    assert pulled.code == 0, pulled.err
    assert [each["record_id"] for each in json.loads(pulled.out)["bundles"]] == [ID]
    (there,) = (tmp_path / "data" / "flagbench" / "store" / "bundles" / ID).iterdir()
    assert there.read_bytes() == bundle()
    assert typed("results", "rm", "last", "--yes", "--store", address).code == 0
    assert open_store(address).bundles.of(ID) == []


def test_one_runs_upload_keeps_no_other_back(
    bucket: str, typed: Any, store: Store, upload: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a temporary folder that cannot be used nor a bug of ours."""
    address, other = f"s3://{bucket}/{PREFIX}", "another-run"
    upload(None, record())
    upload(0, bundle())
    holder.upload_record(
        issue(store, other, 1, timedelta(hours=1)), record(run_id=other, record_id="20260101T120000Z-0002")
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    ended = typed("store", "collect", "--store", address, "--json")
    assert (ended.code, "TMPDIR" in ended.err) == (ExitCode.NOT_STORED, True)
    (failed,) = json.loads(ended.out)["failed"]
    assert (failed["run_id"], [each["run_id"] for each in json.loads(ended.out)["collected"]]) == (RUN, [other])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("flagbench.stores.inbox.check_bundle", lambda path: {}["bug"])
    ended = typed("store", "collect", "--store", address)
    assert (ended.code, "KeyError" in ended.err, RUN in ended.err) == (ExitCode.BUG, True, True)
    ended = typed("store", "collect", "--store", address, "--discard", RUN, "--json")
    assert (ended.code, json.loads(ended.out)["discarded"]) == (0, [RUN])
    assert "no uploads wait" in typed("store", "collect", "--store", address, "--discard", RUN).err


def test_what_cannot_be_a_run_is_named(typed: Any, bucket: str) -> None:
    ended = typed("store", "collect", "../x", "--store", f"s3://{bucket}")
    assert (ended.code, "'../x'" in ended.err, "--run-id" in ended.err) == (ExitCode.USAGE, True, False)


def kept(ticket: Ticket, folder: Path, code: int, own: str) -> tuple[bool, int]:
    """What `flagbench run --ticket` does after a run that left its bundle in `folder`."""
    asked = types.SimpleNamespace(bundle=str(folder), options=types.SimpleNamespace(ticket="ticket.json", out=None))
    return run_keep.keep(LaunchResult(record(), code), asked, open_store(own), ticket)  # type: ignore[arg-type]


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The folder in which a run left a bundle."""
    folder = tmp_path / "bundle"
    (folder / "bundles" / ID).mkdir(parents=True)
    content = bundle()
    name = f"node-0-{hashlib.sha256(content).hexdigest()}.tar.gz"
    (folder / "bundles" / ID / name).write_bytes(content)
    return folder


def test_a_run_ends_well_if_a_collector_was_quick(
    store: Store, ticket: Ticket, upload: Any, left: Path, tmp_path: Path
) -> None:
    upload(0, bundle())  # by the image
    upload(None, record())
    collect(store)
    assert kept(ticket, left, 0, str(tmp_path / "own")) == (True, 0)
    assert not any(place.keys() or place.bundles.all() for _, place in waiting())


@pytest.mark.parametrize("lost", [False, True])
def test_where_the_image_could_not_upload_this_process_does_unless_the_bundle_is_lost(
    store: Store, ticket: Ticket, left: Path, tmp_path: Path, lost: bool
) -> None:
    folder, code = (tmp_path, ExitCode.NOT_STORED) if lost else (left, ExitCode.OK)
    assert kept(ticket, folder, ExitCode.NOT_STORED, str(tmp_path / "own")) == (True, code)
    assert [each.bundles for each in collect(store)] == [int(not lost)]


def test_a_ticket_is_used_where_the_own_store_fails(
    store: Store, ticket: Ticket, left: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").write_text("a file")
    assert kept(ticket, left, 0, str(tmp_path / "own")) == (False, ExitCode.NOT_STORED)
    assert "results push" not in capsys.readouterr().err, "nothing waits"
    assert [each.bundles for each in collect(store)] == [1]


def test_what_waits_for_a_ticket_is_pushed_with_it(bucket: str, tmp_path: Path, typed: Any, ticket: Ticket) -> None:
    address, file, out = f"s3://{bucket}/{PREFIX}", tmp_path / "ticket.json", tmp_path / "out"
    write_private(file, ticket.encode())
    room = out / "unsent" / "0123456789abcdef"
    waits = open_store(str(room))
    waits.put(record())
    folder = room / "bundles" / ID
    folder.mkdir(parents=True)
    content = bundle()
    (folder / f"node-0-{hashlib.sha256(content).hexdigest()}.tar.gz").write_bytes(content)
    (room / "meant-for").write_text(f"ticket:{RUN}")
    without = typed("results", "push", str(out))
    assert without.code == ExitCode.NOT_STORED
    assert "--ticket" in without.err
    pushed = typed("results", "push", str(out), "--ticket", str(file), "--json")
    assert pushed.code == 0, pushed.err
    said = json.loads(pushed.out)
    assert [len(said["stored"]), len(said["bundles"])] == [1, 1]
    assert [each.bundles for each in collect(open_store(address))] == [1]
    assert json.loads(typed("results", "push", str(out), "--ticket", str(file), "--json").out)["stored"] == []
    assert MARK_BYTES < 2**16
