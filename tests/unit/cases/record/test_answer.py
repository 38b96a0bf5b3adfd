"""The last lines of a run on stderr: what was measured, whether its checks hold, and what to type next."""

from __future__ import annotations

from typing import Any

import pytest

from flagbench_cases.record import answer
from flagbench_cases.record.evidence import OK, Outcome

pytestmark = pytest.mark.image

INTERVAL = {"ci95": [12347.6, 12611.2]}
NOT_STEADY = {"ci_reason": "its window is 20 steps, shorter than 100"}
PASSED = {"name": "steps", "ok": True, "detail": "20 of 20 steps"}
FAILED = {"name": "learned", "ok": False, "detail": "mean loss of the first tenth 0.7, of the last 0.7"}


def record(
    outcome: Outcome = OK,
    results: tuple[tuple[str, float], ...] = (("acc", 0.9775), ("loss", 0.10638)),
    checks: tuple[dict[str, Any], ...] = (PASSED,),
    **interval: Any,
) -> dict[str, Any]:
    gate = {"name": "p_core", "value": 12472.87, "unit": "samples/s", **interval}
    learned = [{"name": name, "value": value, "unit": "fraction"} for name, value in results]
    return {"status": outcome.as_dict(), "metrics": [gate, *learned], "quality": {"checks": list(checks)}}


def test_a_steady_run_has_its_interval() -> None:
    assert answer.lines(record(**INTERVAL), "p_core") == [
        "p_core 12,473 samples/s, 95 % interval 12,348 to 12,611",
        "acc 0.9775",
        "1 check passed",
        answer.NEXT,
    ]


def test_a_run_without_interval_or_accuracy() -> None:
    lines = answer.lines(record(results=(("loss", 0.10638),), checks=(PASSED, PASSED), **NOT_STEADY), "p_core")
    assert lines[0] == "p_core 12,473 samples/s, without a 95 % interval: its window is 20 steps, shorter than 100"
    assert lines[1:3] == ["loss 0.1064", "all 2 checks passed"]


def test_a_loss_says_which_steps_it_is_of() -> None:
    made = record(results=(("loss", 0.10638),))
    made["metrics"][1]["note"] = "mean training loss of the last 50 steps"
    assert answer.lines(made, "p_core")[1] == "loss 0.1064, mean training loss of the last 50 steps"


def test_a_gate_of_several_devices_has_the_slowest_beside_it() -> None:
    slowest = {"rank": 5, "value": 8731.0, "share": 0.7}
    (line, *_) = answer.lines(record(**INTERVAL, slowest_device=slowest), "p_core")
    assert "rank 5, 8,731, 70.0 % of the others" in line


def test_checks_that_failed_are_named() -> None:
    invalid = Outcome("failed", "report", "the check learned failed", None, 12)
    lines = answer.lines(record(invalid, checks=(PASSED, FAILED), **INTERVAL), "p_core")
    assert lines[2] == "1 of 2 checks passed; failed: learned"


def test_a_gate_that_was_not_measured_is_left_out() -> None:
    assert answer.lines(record(results=()), "tokens_per_second") == ["1 check passed", answer.NEXT]


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("failed", "train", "rank 1: it broke", "fix it", 4),
        Outcome("interrupted", "train", "SIGTERM", None, 7),
    ],
)
def test_a_run_that_did_not_end_has_its_error_alone(outcome: Outcome) -> None:
    assert answer.lines(record(outcome), "p_core") == []


def test_a_run_without_checks_has_its_error_alone() -> None:
    invalid = Outcome("failed", "report", "the run ended before every rank had finished a step", None, 12)
    assert answer.lines({**record(invalid), "quality": None}, "p_core") == []
