"""Two records side by side: conditions are shown and never refused, ratios are B over A."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.record.model import Record, Status
from flagbench.verify import Agreement, compare_records


def test_identical_records_have_ratio_one_and_no_difference(base: Record) -> None:
    found = compare_records(base, base)
    assert (found.conditions, found.config, found.problems) == ((), (), ())
    assert [m.ratio.value for m in found.metrics if m.ratio is not None] == [1.0] * len(base.metrics)


def test_the_ratio_is_b_over_a_with_the_conservative_interval(base: Record, replay: Callable[[str], Record]) -> None:
    pairs = {m.name: m for m in compare_records(base, replay("a100-1x8-below")).metrics}
    host = pairs["p_core_host"].ratio
    assert host is not None
    assert (host.value, host.low, host.high) == pytest.approx((1510 / 1940, 1490 / 1950, 1530 / 1930))
    acc = pairs["acc"].ratio
    assert acc is not None
    assert (acc.low, acc.high) == (None, None)


def test_what_differs_is_listed_for_b_beside_a(base: Record, replay: Callable[[str], Record]) -> None:
    found = compare_records(base, replay("cpu-tiny"))
    by_name = {c.name: c for c in found.conditions}
    assert (by_name["devices"].expected, by_name["devices"].here) == (8, 1)
    assert by_name["driver"].agreement is Agreement.UNKNOWN
    assert "nodes" not in by_name
    assert ("train.learning_rate", 5e-05, 0.001) in found.config
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_metric_of_one_record_is_listed_without_a_ratio(base: Record, edit: Callable[..., Record]) -> None:
    without = edit(base, without=("mem_peak",))
    pair = next(m for m in compare_records(without, base).metrics if m.name == "mem_peak")
    assert pair.a is None
    assert pair.b is not None
    assert pair.ratio is None


def test_another_unit_has_no_ratio(base: Record, edit: Callable[..., Record]) -> None:
    other = edit(base, metrics={"e2e_time": {"unit": "min"}})
    pair = next(m for m in compare_records(base, other).metrics if m.name == "e2e_time")
    assert (pair.unit, pair.ratio) == ("s | min", None)


def test_a_failed_run_is_compared_and_said_to_have_failed(base: Record, edit: Callable[..., Record]) -> None:
    failed = edit(base, status=Status("failed", "train", "a rank failed", 4))
    assert compare_records(base, failed).problems == ("B: the run ended as failed in train: a rank failed",)


def test_records_of_different_cases_are_a_usage_error(base: Record, edit: Callable[..., Record]) -> None:
    with pytest.raises(FlagbenchError) as caught:
        compare_records(base, edit(base, case="glm"))
    assert "glm" in caught.value.message
    assert caught.value.code is ExitCode.USAGE
