"""A record whose rates cannot all be: p_core >= p_train >= p_whole over the same steps, to within one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flagbench.catalog.model import Case, Claim
from flagbench.record.model import Record
from flagbench.verify.result import Verdict
from flagbench.verify.sanity import problems
from flagbench.verify.verdict import verify_claim

Edit = Callable[..., Record]


def doctored(base: Record, edit: Edit, metrics: dict[str, float], **sections: Any) -> Record:
    changes = {name: {"value": value, "ci95": None} for name, value in metrics.items()}
    return edit(base, metrics=changes, raw={**base.raw, **sections})


@pytest.mark.parametrize(
    "metrics",
    [
        {"p_whole": 732.0, "p_train": 727.0 * 0.99, "p_core": 740.0},
        {"p_whole": 675.0, "p_train": 635.0, "p_core": 700.0},
        {"p_train": 1940.0, "p_core": 1920.0},
    ],
    ids=["whole by 1.7 %", "whole by 6 %", "train by 1 %"],
)
def test_rates_out_of_order_are_invalid(
    base: Record, edit: Edit, claim: Claim, case: Case, metrics: dict[str, float]
) -> None:
    record = doctored(base, edit, metrics)
    assert len(problems(record)) == 1
    assert verify_claim([record], claim, case).verdict is Verdict.INVALID


@pytest.mark.parametrize(
    "metrics",
    [
        {"p_train": 1925.0, "p_core": 1920.0},  # one of 200 steps is 0.5 %
        {"p_core_host": 2100.0},  # the publisher's clock leaves work out
        {"p_core_host": 1000.0},
    ],
    ids=["within a step", "the publisher's faster", "the publisher's slower"],
)
def test_what_may_be_is_not_refused(base: Record, edit: Edit, metrics: dict[str, float]) -> None:
    assert problems(doctored(base, edit, metrics)) == ()


def test_a_whole_run_may_have_warmed_up_fast(base: Record, edit: Edit) -> None:
    """p_train over 250 steps and p_core over 200: the first fifty may have taken next to nothing, and no less."""
    work, window = {"samples_executed": 250 * 256}, {"samples": 200 * 256, "seconds": 26.6, "steps": 200}
    changes = {"p_core": {"value": 1000.0, "ci95": None}, "p_whole": {"value": 900.0}}

    def record(p_train: float) -> Record:
        metrics = {**changes, "p_train": {"value": p_train, "ci95": None, "n": 250}}
        return edit(base, metrics=metrics, raw={**base.raw, "work": work, "window": window})

    assert problems(record(1240.0)) == ()
    assert len(problems(record(1270.0))) == 1


def test_a_window_shorter_than_its_device_time_is_invalid(base: Record, edit: Edit) -> None:
    window = {"first_step": 10, "steps": 200, "samples": 51200, "seconds": 26.6, "host_seconds": 26.7}
    assert problems(doctored(base, edit, {}, window=window)) == ()
    assert problems(doctored(base, edit, {}, window={**window, "host_seconds": 26.5})) == ()  # within a step
    for host_seconds in (26.0, 0.0):
        assert len(problems(doctored(base, edit, {}, window={**window, "host_seconds": host_seconds}))) == 1


def test_a_window_or_a_rate_of_no_step_says_nothing(base: Record, edit: Edit) -> None:
    window = {"first_step": 10, "steps": 0, "samples": 0, "seconds": 26.6, "host_seconds": 0}
    assert problems(doctored(base, edit, {}, window=window, work={"samples_executed": 0})) == ()
    none = edit(base, metrics={"p_core": {"n": 0}, "p_train": {"n": 0}, "p_whole": {"value": 5000.0}})
    assert problems(none) == ()
