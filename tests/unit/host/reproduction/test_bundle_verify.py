"""`flagbench bundle verify` computes the verdict again, and says what was changed before it was summed up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundles import bundle as raw_bundle
from flagbench.errors import ExitCode
from flagbench.reproduce import contents
from honest import Pace, honest_events, honest_record
from reproductions import CLAIM, Files, bundle_files, changed, record, written
from unit.host.conftest import Flagbench


def test_verify_computes_the_verdict_again(file: Path, flagbench: Flagbench) -> None:
    answer = flagbench("bundle verify --json", str(file)).json
    assert (answer["ok"], answer["problems"], answer["notes"]) == (True, [], [])
    assert (answer["verdict"]["verdict"], answer["signature"]["state"]) == ("REPRODUCED", "not signed")
    assert flagbench("bundle verify", str(file), "--digest", answer["manifest_sha256"]).code == 0
    assert flagbench("bundle verify", str(file), "--digest", "0" * 64).code == ExitCode.INVALID
    assert flagbench("bundle verify", str(file), "--digest", "short").code == ExitCode.USAGE


RECORD = contents.record_path("record-of-mine-1")
FORGED: dict[str, tuple[Callable[[Files], Files], str, ExitCode]] = {
    "verdict": (
        lambda files: changed(files, contents.VERDICT, lambda found: found.update(verdict="ABOVE")),
        "ABOVE",
        ExitCode.INVALID,
    ),
    "reason": (
        lambda files: changed(files, contents.VERDICT, lambda found: found.update(reason="trust me")),
        "REPRODUCED",
        ExitCode.INVALID,
    ),
    "record": (lambda files: {**files, RECORD: record(argv=["--other"])}, "REPRODUCED", ExitCode.INVALID),
    "record gone": (
        lambda files: {name: content for name, content in files.items() if name != RECORD},
        "REPRODUCED",
        ExitCode.DATA,
    ),
    "claim": (
        lambda files: changed(files, contents.CLAIM, lambda found: found.update(id="distilbert/a100-1x8-fp32-bs96")),
        "REPRODUCED",
        ExitCode.DATA,
    ),
    "raw events": (
        lambda files: {**files, contents.raw_path("record-of-mine-1", "node-0.tar.gz"): raw_bundle(node=0)},
        "REPRODUCED",
        ExitCode.DATA,
    ),
    "claim of another type": (
        lambda files: changed(files, contents.CLAIM, lambda found: found.update(id=[{}])),
        "REPRODUCED",
        ExitCode.DATA,
    ),
    "heading": (lambda files: files, "ABOVE", ExitCode.DATA),
    "not JSON": (lambda files: {**files, contents.VERDICT: b"{"}, "REPRODUCED", ExitCode.DATA),
    "list": (lambda files: {**files, contents.REPRODUCTION: b"[]"}, "REPRODUCED", ExitCode.DATA),
    "no series": (
        lambda files: {name: content for name, content in files.items() if "series/" not in name},
        "REPRODUCED",
        ExitCode.DATA,
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_was_changed_before_it_was_summed_up_contradicts_itself(
    tmp_path: Path, files: Files, flagbench: Flagbench, name: str
) -> None:
    edit, verdict, code = FORGED[name]
    written(tmp_path / "b.tar.gz", edit(files), verdict)
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
    written(tmp_path / "b.tar.gz", files, json.loads(files[contents.VERDICT])["verdict"])
    notes = flagbench("bundle verify --json", str(tmp_path / "b.tar.gz")).json["notes"]
    assert "the raw events of 4 of 8 ranks" in notes[-1]
