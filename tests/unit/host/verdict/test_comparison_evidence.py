"""Doubts that need the evidence of a record: a clock that hides work, too few steps, a ceiling that is not there."""

from __future__ import annotations

import pytest

from catalogs import CATALOG
from flagbench.verdict import Verdict, VerifyResult, verify_baseline
from forging import column, consistent, each
from honest import CLAIMS, Pace, honest_record

from .conftest import Raw, made, read, verified

TESTED = "records"
DISTILBERT, AQUILA = "distilbert/a100-1x8-fp32", "aquila-33b/a100-1x8-tp8"


def rules(result: VerifyResult) -> set[str]:
    return {finding.rule for finding in result.findings}


def test_a_slow_step_is_not_moved_out_of_the_hosts_clock() -> None:
    raw = honest_record(CLAIMS[DISTILBERT], Pace(slower=1 / 0.6), count=130)
    for span in raw["evidence"]["spans"]:
        both = each(raw, span, "after", "host")
        span["columns"]["after"] = [[a + h - 1 for a, h in zip(*own, strict=True)] for own in both]
    for name, change in (("host", lambda _: 1), ("device", lambda micro: round(0.6 * micro))):
        column(raw, name, change)
    result = verified(consistent(raw))
    assert (result.verdict, "host-clock" in rules(result)) == (Verdict.INCONCLUSIVE, True)


def test_half_of_an_inference_step_is_not_moved_out_of_it() -> None:
    raw = made(AQUILA)
    for span in raw["evidence"]["spans"]:
        both = each(raw, span, "after", "host")
        span["columns"]["after"] = [[a + h - round(h / 2) for a, h in zip(*own, strict=True)] for own in both]
    for name in ("host", "device"):
        column(raw, name, lambda micro: round(micro / 2))
    result = verified(consistent(raw), claim=AQUILA)
    assert (result.verdict, "loop-clock" in rules(result)) == (Verdict.INCONCLUSIVE, True)


def test_a_doubt_that_takes_no_verdict_away_is_no_finding() -> None:
    raw = honest_record(CLAIMS[AQUILA], Pace(slower=1.3), steps=220)
    assert rules(verified(raw, claim=AQUILA)) == set()
    column(raw, "device", lambda micro: micro * 3 // 4)
    result = verified(consistent(raw), claim=AQUILA)
    assert (result.verdict, rules(result)) == (Verdict.BELOW, set())


def test_a_run_without_its_ceiling_is_inconclusive() -> None:
    raw = made()
    del raw["evidence"]["ceilings"]
    result = verified(consistent(raw))
    assert (result.verdict, rules(result)) == (Verdict.INCONCLUSIVE, {"ceiling-not-measured", "heat-not-seen"})


@pytest.mark.parametrize(("steps", "verdict"), [(130, Verdict.REPRODUCED), (50, Verdict.INCONCLUSIVE)])
def test_each_of_five_windows_has_its_own_least_length(steps: int, verdict: Verdict) -> None:
    result = verified(*(made(steps=steps, run=f"made-up-run-{number}", seed=number) for number in range(5)))
    assert result.verdict is verdict


def test_what_nobody_published_is_not_what_a_baseline_had() -> None:
    first, second = (made(run=f"made-up-run-{number}", seed=number) for number in range(2))
    first["conditions"]["data"] = "not published"
    case = CATALOG.cases["distilbert"]
    assert verify_baseline([read(second)], read(first), case).verdict is Verdict.NOT_COMPARABLE


def test_a_number_that_was_edited_is_no_baseline() -> None:
    edited: Raw = made(run="made-up-edited", seed=1)
    edited["conditions"]["device_model"] = "NVIDIA A800"
    assert verified(edited).verdict is Verdict.INVALID
