"""`flagbench results rm` removes the records that are named or selected, and nothing else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from flagbench.records.store import Store
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench, MakeRecord

FAILED = {"state": "failed", "phase": "train", "reason": "a rank died", "exit_code": 4}


@pytest.fixture(autouse=True)
def filled(store: Store, make_record: MakeRecord) -> None:
    """Four records; record-2 failed, record-4 is of today."""
    for day in (1, 2, 3):
        status = {"status": FAILED} if day == 2 else {}
        store.put(make_record(record_id=f"record-{day}", created_at=f"2026-01-0{day}T00:00:00Z", **status))
    now = datetime.now(timezone.utc) - timedelta(minutes=1)
    store.put(make_record(record_id="record-4", created_at=f"{now:%Y-%m-%dT%H:%M:%SZ}"))


def ids(store: Store) -> list[str]:
    return [entry.record_id for entry in store.list_records()]


def test_rm_removes_the_named_records_and_their_checksums(store: Store, flagbench: Flagbench) -> None:
    ended = flagbench("results rm record-1 record-3 --yes")
    assert (ended.code, ended.err[:19]) == (0, "removed 2 records (")
    assert ids(store) == ["record-4", "record-2"]
    left = {path.name for path in Path(store.blobs.location("results/v1")).rglob("*") if path.is_file()}
    assert left == {f"record-{n}.json{suffix}" for n in (2, 4) for suffix in ("", ".sha256")}


def test_rm_takes_last_a_prefix_and_a_damaged_record(store: Store, flagbench: Flagbench) -> None:
    (removed,) = flagbench("results rm last --yes --json").json["removed"]
    assert removed["name"] == "record-4"
    assert removed["size"] > 100
    Path(store.blobs.location(next(store.list_records()).blob.key)).write_bytes(b"{}")
    assert flagbench("results rm record-3 --yes").code == 0
    assert flagbench("results rm record-1 --yes").code == 0
    assert flagbench("results rm rec --yes").code == 0
    assert ids(store) == []


@pytest.mark.parametrize(
    ("command", "answer", "left"),
    [(["rm", "record-1"], "y", 3), (["rm", "record-1"], "", 4), (["rm", "--older-than", "2026-01-02"], "n", 4)],
)
def test_a_terminal_is_asked(store: Store, command: list[str], answer: str, left: int) -> None:
    master, slave = pty.openpty()
    with os.fdopen(master, "wb", buffering=0) as keyboard:
        line = [sys.executable, "-m", "flagbench", "results", *command]
        process = subprocess.Popen(line, stdin=slave, stdout=subprocess.PIPE, stderr=slave)
        os.close(slave)
        keyboard.write(f"{answer}\n".encode())
        out, _ = process.communicate()
    assert process.returncode == 0
    assert b"record-1" in out
    assert len(ids(store)) == left


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--older-than 30d", ["record-3", "record-2", "record-1"]),
        ("--older-than 2026-01-03", ["record-2", "record-1"]),
        ("--older-than 2026-01-02T12:00:00Z", ["record-2", "record-1"]),
        ("--state failed", ["record-2"]),
        ("--state ok --older-than 1w", ["record-3", "record-1"]),
        ("--case glm", []),
        ("--case distilbert --state ok", ["record-4", "record-3", "record-1"]),
    ],
)
def test_records_that_match_all_options_are_removed(
    store: Store, flagbench: Flagbench, options: str, expected: list[str]
) -> None:
    shown = flagbench(f"results rm {options} --dry-run --json").json["removable"]
    assert [record["name"] for record in shown] == expected
    assert flagbench(f"results rm {options} --dry-run").code == 0
    assert flagbench(f"results rm {options}").code == ExitCode.USAGE  # no terminal, no --yes
    assert len(ids(store)) == 4
    assert flagbench(f"results rm {options} --yes").code == 0
    assert len(ids(store)) == 4 - len(expected)


def test_dry_run_shows_named_records(store: Store, flagbench: Flagbench) -> None:
    shown = flagbench("results rm record-1 record-3 --dry-run").out.splitlines()
    assert shown[0].split() == ["RECORD", "DETAIL", "SIZE"]
    assert [line.split()[0] for line in shown[1:]] == ["record-1", "record-3"]
    assert len(ids(store)) == 4


@pytest.mark.parametrize(
    ("line", "code", "named"),
    [
        ("rm record-1 rec --yes", ExitCode.USAGE, "rec"),
        ("rm record-1 no-such-record --yes", ExitCode.DATA, "no-such-record"),
        ("rm record-1 ../store --yes", ExitCode.USAGE, "../store"),
        ("rm record-1", ExitCode.USAGE, "--yes"),
        ("rm record-1 --json", ExitCode.USAGE, "--yes"),
        ("rm --older-than 2w --json", ExitCode.USAGE, "--yes"),
        ("rm --yes", ExitCode.USAGE, "--older-than"),
        ("rm --dry-run", ExitCode.USAGE, "--older-than"),
        ("rm record-1 --state ok --yes", ExitCode.USAGE, "--state"),
        *((f"rm --yes --older-than {when}", ExitCode.USAGE, "--older-than") for when in ("soon", "30m", "99999w")),
        ("rm --older-than yesterday", ExitCode.USAGE, "yesterday"),
        ("rm --yes --case distilbrt", ExitCode.USAGE, "distilbrt"),
        ("ls --since soon", ExitCode.USAGE, "--since"),
    ],
)
def test_errors_and_missing_confirmation_remove_nothing(
    store: Store, flagbench: Flagbench, line: str, code: ExitCode, named: str
) -> None:
    ended = flagbench(f"results {line}")
    assert (ended.code, named in ended.err) == (code, True)
    assert len(ids(store)) == 4


def test_a_filter_selects_no_file_that_is_not_a_record(store: Store, flagbench: Flagbench) -> None:
    foreign = Path(next(store.list_records()).location).with_name("somebody-else-s.json")
    foreign.write_bytes(b"{}")
    assert flagbench("results rm --older-than 2100-01-01 --yes").code == 0
    assert foreign.exists()
    assert [entry.record_id for entry in store.list_records() if entry.problem is None] == []


def test_a_filter_selects_damaged_records(store: Store, flagbench: Flagbench) -> None:
    Path(next(store.list_records()).location).write_bytes(b"{}")
    assert flagbench("results rm --state damaged --yes").code == 0
    assert ids(store) == ["record-3", "record-2", "record-1"]


def test_a_record_that_cannot_be_removed_keeps_no_other(store: Store, flagbench: Flagbench) -> None:
    # A folder in the place of the checksum: even root cannot unlink it.
    checksum = Path(next(store.list_records()).location + ".sha256")
    checksum.unlink()
    (checksum / "x").mkdir(parents=True)
    ended = flagbench("results rm --older-than 2100-01-01 --yes")
    assert (ended.code, "record-4" in ended.err) == (ExitCode.NOT_STORED, True)
    assert ids(store) == []
