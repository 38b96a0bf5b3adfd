"""The termination message: one short line of what ended how, without secrets, never a reason to fail."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.record import termination
from flagbench_cases.record.evidence import OK, Outcome

pytestmark = pytest.mark.image

METRICS = [
    {"name": "p_train", "value": 1.0, "unit": "samples/s", "scope": "job"},
    {"name": "p_core", "value": 12.5, "unit": "samples/s", "scope": "job"},
]


def record(outcome: Outcome = OK, metrics: list[dict[str, Any]] = METRICS) -> dict[str, Any]:
    return {"record_id": "r-1", "status": outcome.as_dict(), "metrics": metrics}


def test_a_run_that_ended_well() -> None:
    message = json.loads(termination.to_line(termination.of_record(record(), "p_core", 0)))
    assert message == {
        "state": "ok",
        "exit_code": 0,
        "reason": None,
        "gate": {"name": "p_core", "value": 12.5, "unit": "samples/s"},
        "record_id": "r-1",
    }


def test_a_record_that_was_not_stored_says_why() -> None:
    message = termination.of_record(record(), "p_core", 14, "no space left on /out")
    assert (message["state"], message["exit_code"], message["reason"]) == ("ok", 14, "no space left on /out")
    failed = record(Outcome("failed", "train", "rank 1: it broke", None, 4))
    message = termination.of_record(failed, "p_core", 4, "no space left on /out")
    assert message["reason"] == "rank 1: it broke; no space left on /out"


def test_another_node_says_its_own_end() -> None:
    message = termination.of_outcome(Outcome("failed", "train", "rank 1: it broke", "fix it", 4))
    assert (message["state"], message["exit_code"], message["reason"]) == ("failed", 4, "rank 1: it broke")
    assert message["record_id"] is None
    message = termination.of_outcome(OK, 14, "the bundle was not stored")
    assert (message["state"], message["exit_code"], message["reason"]) == ("ok", 14, "the bundle was not stored")


@pytest.mark.parametrize("reason", ["x" * 100_000, "\u6c90" * 5000, '"\\' * 5000], ids=["long", "wide", "quoted"])
def test_a_long_reason_is_cut_to_what_the_kubelet_keeps(reason: str) -> None:
    line = termination.to_line(termination.of_outcome(Outcome("failed", "train", reason, None, 4)))
    assert 3000 < len(line.encode("utf-8")) < 4096
    kept = json.loads(line)["reason"]
    assert kept.endswith("...")
    assert reason.startswith(kept[:-3])


def test_a_secret_is_cut() -> None:
    outcome = Outcome("failed", "data", "could not read s3://key:SECRET@bucket/x?sig=SECRET", None, 3)
    assert "SECRET" not in termination.to_line(termination.of_outcome(outcome))


def test_the_file_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "log"
    place.write_text("what another left there, which is longer than the message " * 20)
    before = os.stat(str(place)).st_ino
    monkeypatch.setenv("FLAGBENCH_TERMINATION_LOG", str(place))
    termination.write(termination.of_record(record(), "p_core", 0))
    assert json.loads(place.read_text())["record_id"] == "r-1"
    assert place.read_text().count("\n") == 1
    assert os.stat(str(place)).st_ino == before


def test_without_a_file_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FLAGBENCH_TERMINATION_LOG", raising=False)
    termination.write(termination.of_record(record(), "p_core", 0))
    assert capsys.readouterr() == ("", "")
