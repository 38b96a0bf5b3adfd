"""`flagbench bundle verify` computes the verdict again, and says what was changed before it was summed up."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundles import bundle as raw_bundle
from flagbench.console.output import check_outputs
from flagbench.errors import FlagbenchError
from flagbench.records import bundle_documents
from flagbench.runs.reproduce import bundle
from flagbench_core.exit_codes import ExitCode
from reproductions import Files, bundle_files, changed, record, written
from unit.host.conftest import Ended, Flagbench

RECORD = bundle_documents.record_path("record-of-mine-1")
RAW = bundle.raw_path("record-of-mine-1", "node-0.tar.gz")
IDS: dict[str, Any] = {"record_id": "record-of-mine-1", "run_id": "mine-1", "node": 0}


@pytest.fixture(scope="module")
def files() -> Files:
    return bundle_files(record())


@pytest.fixture
def verify(tmp_path: Path, flagbench: Flagbench) -> Callable[[Files], Ended]:
    """Writes a bundle and verifies it."""

    def run(files: Files) -> Ended:
        written(tmp_path / "bundle.tar.gz", files)
        return flagbench("bundle verify --json", str(tmp_path / "bundle.tar.gz"))

    return run


def without(files: Files, part: str) -> Files:
    return {name: content for name, content in files.items() if part not in name}


def test_the_verdict_is_computed_again(verify: Callable[[Files], Ended], files: Files, tmp_path: Path) -> None:
    answer = verify(files).json
    assert (answer["ok"], answer["problems"], answer["notes"]) == (True, [], [])
    assert answer["verdict"]["verdict"] == "REPRODUCED"
    assert answer["sha256"] == hashlib.sha256((tmp_path / "bundle.tar.gz").read_bytes()).hexdigest()


def test_the_first_line_says_whether_the_bundle_is_valid(files: Files, tmp_path: Path, flagbench: Flagbench) -> None:
    written(tmp_path / "bundle.tar.gz", files)
    first, _, verdict = flagbench("bundle verify", str(tmp_path / "bundle.tar.gz")).out.splitlines()[:3]
    assert first.startswith("VALID: all ")
    assert verdict.startswith("REPRODUCED")
    written(tmp_path / "changed.tar.gz", changed(files, bundle.VERDICT, lambda it: it.update(verdict="-")))
    ended = flagbench("bundle verify", str(tmp_path / "changed.tar.gz"))
    assert ended.code == ExitCode.INVALID
    assert ended.out.startswith("INVALID: the verdict does not follow")


def test_a_bundle_with_files_of_an_earlier_version_verifies(verify: Callable[[Files], Ended], files: Files) -> None:
    answer = verify({**files, "sbom.cdx.json": b'{"bomFormat": "CycloneDX", "specVersion": "1.6"}'}).json
    assert (answer["ok"], answer["problems"], answer["notes"]) == (True, [], [])


@pytest.mark.parametrize("name", ["missing.tar.gz", "a/b.tar.gz", "x" * 300])
def test_what_is_not_there_cannot_be_read(tmp_path: Path, name: str, flagbench: Flagbench) -> None:
    assert flagbench("bundle verify", str(tmp_path / name)).code == ExitCode.DATA


def test_nothing_is_written_over_and_nothing_is_left_behind(tmp_path: Path, files: Files) -> None:
    taken = tmp_path / "taken.tar.gz"
    taken.write_bytes(b"mine")
    refused = (taken, tmp_path, taken / "below", tmp_path / "x\0.tgz", tmp_path / ("x" * 300), Path("/proc/x.tar.gz"))
    for target in refused:
        with pytest.raises(FlagbenchError) as error:
            check_outputs({"--out": target}, new=("--out",))
        assert error.value.code == ExitCode.USAGE
    with pytest.raises(FlagbenchError) as error:
        written(taken, files)
    assert error.value.code == ExitCode.NOT_STORED
    assert (os.listdir(tmp_path), taken.read_bytes()) == (["taken.tar.gz"], b"mine")


FORGED: dict[str, tuple[Callable[[Files], Files], ExitCode]] = {
    "verdict": (lambda files: changed(files, bundle.VERDICT, lambda it: it.update(verdict="-")), ExitCode.INVALID),
    "reason": (lambda files: changed(files, bundle.VERDICT, lambda it: it.update(reason="-")), ExitCode.INVALID),
    "record": (lambda files: {**files, RECORD: record(argv=["--other"])}, ExitCode.INVALID),
    "record gone": (lambda files: without(files, RECORD), ExitCode.DATA),
    "claim": (lambda files: changed(files, bundle.CLAIM, lambda it: it.update(id="glm/none")), ExitCode.DATA),
    "claim id": (lambda files: changed(files, bundle.CLAIM, lambda it: it.update(id=[{}])), ExitCode.DATA),
    "raw events": (lambda files: {**files, RAW: raw_bundle(node=0)}, ExitCode.DATA),
    "not JSON": (lambda files: {**files, bundle.VERDICT: b"{"}, ExitCode.DATA),
    "list": (lambda files: {**files, bundle.REPRODUCTION: b"[]"}, ExitCode.DATA),
    "no series": (lambda files: without(files, "series/"), ExitCode.DATA),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_what_was_changed_contradicts_itself(verify: Callable[[Files], Ended], files: Files, name: str) -> None:
    edit, code = FORGED[name]
    assert verify(edit(files)).code == code


def test_raw_events_have_the_sha256_that_the_record_names(verify: Callable[[Files], Ended], files: Files) -> None:
    other = raw_bundle({"steps": b"of another run"}, **IDS)
    ended = verify({**files, RAW: other})
    assert ended.code == ExitCode.DATA
    assert "does not have the sha256 that the record record-of-mine-1 names" in ended.err


def test_a_changed_claim_is_said_and_the_present_one_decides(verify: Callable[[Files], Ended], files: Files) -> None:
    answer = verify(changed(files, bundle.CLAIM, lambda claim: claim["metrics"][0].update(value=1))).json
    assert "metrics[0].value" in answer["notes"][0]
    assert answer["verdict"]["verdict"] == "REPRODUCED"


def test_a_record_without_its_raw_events_is_noted(verify: Callable[[Files], Ended], files: Files) -> None:
    assert verify(without(files, RAW)).json["notes"] == [
        "the raw events of the record record-of-mine-1 are not in it"
    ]
