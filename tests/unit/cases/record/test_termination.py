"""The termination message: one short line of what ended how, without secrets, never a reason to fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.record import termination
from flagbench_cases.record.evidence import OK, Outcome

pytestmark = pytest.mark.image

BROKEN = Outcome("failed", "train", "rank 1: it broke", "fix it", 4)


def record(outcome: Outcome = OK) -> dict[str, Any]:
    rates = [{"name": "p_train", "value": 1.0}, {"name": "p_core", "value": 12.5}]
    metrics = [{**rate, "unit": "samples/s", "scope": "job"} for rate in rates]
    return {"record_id": "r-1", "status": outcome.as_dict(), "metrics": metrics}


GATE = {"name": "p_core", "value": 12.5, "unit": "samples/s"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (termination.of_record(record(), "p_core", 0), ("ok", 0, None, GATE, "r-1")),
        (termination.of_record(record(), "acc", 14, "no space"), ("ok", 14, "no space", None, "r-1")),
        (
            termination.of_record(record(BROKEN), "p_core", 4, "no space"),
            ("failed", 4, "rank 1: it broke; no space", GATE, "r-1"),
        ),
        (termination.of_outcome(BROKEN), ("failed", 4, "rank 1: it broke", None, None)),
        (termination.of_outcome(OK, 14, "not stored"), ("ok", 14, "not stored", None, None)),
    ],
)
def test_a_node_says_how_it_ended(message: dict[str, Any], expected: tuple[Any, ...]) -> None:
    names = ("state", "exit_code", "reason", "gate", "record_id")
    assert json.loads(termination.to_line(message)) == dict(zip(names, expected))


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
    termination.write(termination.of_record(record(), "p_core", 0))  # without a file, nothing is
    place = tmp_path / "log"
    place.write_text("what another left there, which is longer than the message " * 20)
    before = place.stat().st_ino
    monkeypatch.setenv("FLAGBENCH_TERMINATION_LOG", str(place))
    termination.write(termination.of_record(record(), "p_core", 0))
    assert (json.loads(place.read_text())["record_id"], place.stat().st_ino) == ("r-1", before)
    assert place.read_text().count("\n") == 1


def test_a_file_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLAGBENCH_TERMINATION_LOG", str(tmp_path))
    termination.write(termination.of_record(record(), "p_core", 0))
    warning = capsys.readouterr().err
    assert warning.startswith("warning: ")
    assert str(tmp_path) in warning
