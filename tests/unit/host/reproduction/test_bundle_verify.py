"""`flagbench bundle verify` computes the verdict again, and says what was changed before it was summed up."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundles import bundle as raw_bundle
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.reproduce import contents
from flagbench.reproduce.bundle import check_target
from honest import Pace, honest_events, honest_record
from reproductions import CLAIM, Files, bundle_files, changed, record, written
from unit.host.conftest import Flagbench


def test_verify_computes_the_verdict_again(file: Path, flagbench: Flagbench) -> None:
    answer = flagbench("bundle verify --json", str(file)).json
    assert (answer["ok"], answer["problems"], answer["notes"]) == (True, [], [])
    assert answer["verdict"]["verdict"] == "REPRODUCED"
    assert answer["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["missing.tar.gz", "a/b.tar.gz", "x" * 300])
def test_what_is_not_there_cannot_be_read(tmp_path: Path, name: str, flagbench: Flagbench) -> None:
    assert flagbench("bundle verify", str(tmp_path / name)).code == ExitCode.DATA


def test_nothing_is_written_over_and_nothing_is_left_behind(tmp_path: Path, files: Files) -> None:
    taken = tmp_path / "taken.tar.gz"
    taken.write_bytes(b"mine")
    for target in (taken, tmp_path, taken / "below", tmp_path / "x\0.tgz", tmp_path / ("x" * 300)):
        with pytest.raises(FlagbenchError) as error:
            check_target(target)
        assert error.value.code == ExitCode.USAGE
    with pytest.raises(FlagbenchError) as error:
        written(taken, files)
    assert error.value.code == ExitCode.NOT_STORED
    assert (os.listdir(tmp_path), taken.read_bytes()) == (["taken.tar.gz"], b"mine")


def test_a_full_disk_leaves_no_bundle(small_disk: Path, files: Files) -> None:
    with pytest.raises(FlagbenchError) as error:
        written(small_disk / "b.tar.gz", {**files, "large": os.urandom(100_000)})
    assert (error.value.code, os.listdir(small_disk)) == (ExitCode.NOT_STORED, [])


RECORD = contents.record_path("record-of-mine-1")
FORGED: dict[str, tuple[Callable[[Files], Files], ExitCode]] = {
    "verdict": (
        lambda files: changed(files, contents.VERDICT, lambda found: found.update(verdict="ABOVE")),
        ExitCode.INVALID,
    ),
    "reason": (
        lambda files: changed(files, contents.VERDICT, lambda found: found.update(reason="trust me")),
        ExitCode.INVALID,
    ),
    "record": (lambda files: {**files, RECORD: record(argv=["--other"])}, ExitCode.INVALID),
    "record gone": (
        lambda files: {name: content for name, content in files.items() if name != RECORD},
        ExitCode.DATA,
    ),
    "claim": (
        lambda files: changed(files, contents.CLAIM, lambda found: found.update(id="distilbert/a100-1x8-fp32-bs96")),
        ExitCode.DATA,
    ),
    "raw events": (
        lambda files: {**files, contents.raw_path("record-of-mine-1", "node-0.tar.gz"): raw_bundle(node=0)},
        ExitCode.DATA,
    ),
    "claim of another type": (
        lambda files: changed(files, contents.CLAIM, lambda found: found.update(id=[{}])),
        ExitCode.DATA,
    ),
    "not JSON": (lambda files: {**files, contents.VERDICT: b"{"}, ExitCode.DATA),
    "list": (lambda files: {**files, contents.REPRODUCTION: b"[]"}, ExitCode.DATA),
    "no series": (
        lambda files: {name: content for name, content in files.items() if "series/" not in name},
        ExitCode.DATA,
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_was_changed_before_it_was_summed_up_contradicts_itself(
    tmp_path: Path, files: Files, flagbench: Flagbench, name: str
) -> None:
    edit, code = FORGED[name]
    written(tmp_path / "b.tar.gz", edit(files))
    assert flagbench("bundle verify", str(tmp_path / "b.tar.gz")).code == code


def test_a_record_that_is_not_that_of_its_raw_events_does_not_hold(tmp_path: Path, flagbench: Flagbench) -> None:
    ids: dict[str, Any] = {"record_id": "record-of-mine-1", "run_id": "mine-1", "node": 0}
    raw = raw_bundle(honest_events(CLAIM, Pace(seed=7)), **ids)
    named = {"node": 0, "sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)}
    for made, code in ((record(bundle=named), ExitCode.INVALID), (honest(bundle=named), ExitCode.OK)):
        files = {**bundle_files(made), contents.raw_path("record-of-mine-1", "node-0.tar.gz"): raw}
        path = tmp_path / f"{code}.tar.gz"
        written(path, files)
        done = flagbench("bundle verify", str(path))
        assert done.code == code
        assert ("is not that of its raw events" in done.err) is (code is ExitCode.INVALID)


def honest(**changes: Any) -> bytes:
    """The record of the raw events of a run at a pace of its own."""
    made = honest_record(CLAIM, Pace(seed=7), record_id="record-of-mine-1", run_id="mine-1")
    return json.dumps({**made, **changes}).encode() + b"\n"


def test_a_changed_claim_is_said_and_the_present_one_decides(
    tmp_path: Path, files: Files, flagbench: Flagbench
) -> None:
    def edit(claim: Any) -> None:
        claim["metrics"][0]["value"] = 1

    written(tmp_path / "b.tar.gz", changed(files, contents.CLAIM, edit))
    answer = flagbench("bundle verify --json", str(tmp_path / "b.tar.gz")).json
    assert "metrics[0].value" in answer["notes"][0]
    assert answer["verdict"]["verdict"] == "REPRODUCED"


@pytest.mark.parametrize(
    ("raw", "note"),
    [
        (None, "the raw events of the record record-of-mine-1 are not in it"),
        ({"steps": b"none of a rank"}, "the raw events of the record record-of-mine-1 are not in it"),
    ],
)
def test_evidence_without_its_raw_events_is_noted(
    raw: Files | None, note: str, tmp_path: Path, flagbench: Flagbench
) -> None:
    kept = None if raw is None else raw_bundle(raw, record_id="record-of-mine-1", run_id="mine-1", node=0)
    named = None if kept is None else {"node": 0, "sha256": hashlib.sha256(kept).hexdigest(), "bytes": len(kept)}
    files = bundle_files(record(bundle=named))
    del files[path := contents.raw_path("record-of-mine-1", "node-0.tar.gz")]
    written(tmp_path / "b.tar.gz", files if kept is None else {**files, path: kept})
    assert flagbench("bundle verify --json", str(tmp_path / "b.tar.gz")).json["notes"] == [note]


def test_ranks_of_other_nodes_without_raw_events_are_counted(tmp_path: Path, flagbench: Flagbench) -> None:
    made = json.loads(record())
    for rank in made["ranks"][4:]:
        rank["node"] = 1
    files = bundle_files(json.dumps(made).encode() + b"\n")
    written(tmp_path / "b.tar.gz", files)
    notes = flagbench("bundle verify --json", str(tmp_path / "b.tar.gz")).json["notes"]
    assert "the raw events of 4 of 8 ranks" in notes[-1]
