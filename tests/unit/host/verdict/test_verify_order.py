"""A record whose rates cannot all be: a core rate is the highest and a whole rate the lowest, to within one step."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from flagbench.records.digest import config_digest
from flagbench.records.model import Metric, Record, Window, Work
from flagbench.verdict import Verdict

from .conftest import BASE, edit, held

WINDOW = Window(first_step=10, steps=200, samples=51200, seconds=26.6)


def rates(n: int | None = None, **values: float) -> Record:
    """BASE with other rates; `n`: the steps of p_train, of which the window has the last 200."""
    metrics: dict[str, dict[str, Any]] = {name: {"value": value, "ci95": None} for name, value in values.items()}
    if n is None:
        return edit(metrics=metrics)
    metrics["p_train"]["n"] = n
    return edit(metrics=metrics, window=WINDOW, work=Work("samples", steps=n, samples_executed=n * 256))


def window(**fields: Any) -> Record:
    return edit(window=replace(WINDOW, **fields))


def infers(name: str, warmup: object, whole: float) -> Record:
    """With a pass of 100 steps at 1000 samples/s, after a warm-up."""
    config = {"infer": {"warmup_steps": warmup}}
    values = {f"p_{name}_core": (1000.0, 100), f"p_{name}_whole": (whole, 1)}
    made = (Metric(metric, value, "samples/s", "job", n=n) for metric, (value, n) in values.items())
    return replace(BASE, config=config, config_digest=config_digest(config), metrics=(*BASE.metrics, *made))


@pytest.mark.parametrize(
    ("record", "is_valid"),
    [
        (rates(p_train=1925.0, p_core=1920.0), True),  # within one of 200 steps
        (rates(p_train=1940.0, p_core=1920.0), False),
        (rates(p_whole=675.0, p_train=635.0, p_core=700.0), False),
        # The publisher's clock leaves work out, or is slower.
        (rates(p_core_host=2100.0), True),
        (rates(p_core_host=1000.0), True),
        # The fifty steps before the window may have taken next to nothing, and no less.
        (rates(250, p_core=1000.0, p_whole=900.0, p_train=1240.0), True),
        (rates(250, p_core=1000.0, p_whole=900.0, p_train=1270.0), False),
        # A window is at most a step shorter than the device's time in it.
        (window(host_seconds=26.5), True),
        (window(host_seconds=26.0), False),
        (window(steps=0, samples=0, host_seconds=0), True),
        (infers("val", 0, 1009.0), True),
        (infers("val", 0, 1011.0), False),
        (infers("infer", 20, 1209.0), True),
        (infers("infer", 20, 1220.0), False),
        (infers("infer", None, 1011.0), False),
        (infers("infer", "many", 1011.0), False),
    ],
)
def test_rates_out_of_order_are_invalid(record: Record, is_valid: bool) -> None:
    assert (held(record).verdict is not Verdict.INVALID) is is_valid
