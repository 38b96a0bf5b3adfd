"""A record whose rates cannot all be: a core rate is the highest and a whole rate the lowest, to within one step."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from flagbench.record.digest import config_digest
from flagbench.record.model import Metric, Window, Work
from flagbench.verify import Verdict
from flagbench.verify.sanity import problems

from .conftest import BASE, edit, held

WINDOW = Window(first_step=10, steps=200, samples=51200, seconds=26.6)


def rates(**values: float) -> dict[str, dict[str, Any]]:
    return {name: {"value": value, "ci95": None} for name, value in values.items()}


@pytest.mark.parametrize(
    "metrics",
    [
        rates(p_whole=732.0, p_train=727.0 * 0.99, p_core=740.0),
        rates(p_whole=675.0, p_train=635.0, p_core=700.0),
        rates(p_train=1940.0, p_core=1920.0),
    ],
    ids=["whole by 1.7 %", "whole by 6 %", "train by 1 %"],
)
def test_rates_out_of_order_are_invalid(metrics: dict[str, Any]) -> None:
    record = edit(metrics=metrics)
    assert len(list(problems(record))) == 1
    assert held(record).verdict is Verdict.INVALID


@pytest.mark.parametrize(
    "metrics",
    [rates(p_train=1925.0, p_core=1920.0), rates(p_core_host=2100.0), rates(p_core_host=1000.0)],
    ids=["within one of 200 steps", "the publisher's clock leaves work out", "the publisher's clock is slower"],
)
def test_what_may_be_is_not_refused(metrics: dict[str, Any]) -> None:
    assert list(problems(edit(metrics=metrics))) == []


@pytest.mark.parametrize(("p_train", "count"), [(1240.0, 0), (1270.0, 1)])
def test_a_whole_run_may_have_warmed_up_fast(p_train: float, count: int) -> None:
    """p_train over 250 steps and p_core over 200: the first fifty may have taken next to nothing, and no less."""
    metrics = rates(p_core=1000.0, p_whole=900.0, p_train=p_train)
    metrics["p_train"]["n"] = 250
    work = Work("samples", steps=250, samples_executed=250 * 256)
    assert len(list(problems(edit(metrics=metrics, work=work, window=WINDOW)))) == count


@pytest.mark.parametrize(("host_seconds", "count"), [(26.7, 0), (26.5, 0), (26.0, 1), (0.0, 1)])
def test_a_window_shorter_than_its_device_time_by_more_than_a_step_is_invalid(
    host_seconds: float, count: int
) -> None:
    assert len(list(problems(edit(window=replace(WINDOW, host_seconds=host_seconds))))) == count


def test_a_window_or_a_rate_of_no_step_says_nothing() -> None:
    window = edit(window=replace(WINDOW, steps=0, samples=0, host_seconds=0), work=Work("samples", 0, 0))
    rate = edit(metrics={"p_core": {"n": 0}, "p_train": {"n": 0}, "p_whole": {"value": 5000.0}})
    assert [*problems(window), *problems(rate)] == []


@pytest.mark.parametrize("name", ["infer", "val"])
@pytest.mark.parametrize(
    ("warmup", "whole", "is_valid"),
    [
        (0, 900.0, True),
        (0, 1009.0, True),
        (0, 1011.0, False),
        (0, 2000.0, False),
        # Twenty steps may have taken next to nothing beside a hundred, and no less.
        (20, 1209.0, True),
        (20, 1220.0, False),
        (None, 1011.0, False),
        ("many", 1011.0, False),
    ],
)
def test_a_whole_pass_is_no_faster_than_its_steps(name: str, warmup: object, whole: float, is_valid: bool) -> None:
    config = {"infer": {"warmup_steps": warmup}}
    values = {f"p_{name}_core": (1000.0, 100), f"p_{name}_whole": (whole, 1)}
    rates = (Metric(metric, value, "samples/s", "job", n=n) for metric, (value, n) in values.items())
    record = replace(BASE, config=config, config_digest=config_digest(config), metrics=(*BASE.metrics, *rates))
    assert (held(record).verdict is not Verdict.INVALID) is is_valid
    assert [f"p_{name}_whole" in problem for problem in problems(record)] == [True] * (not is_valid)
