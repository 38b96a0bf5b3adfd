"""Two records side by side: conditions are shown and never refused, ratios are B over A."""

from __future__ import annotations

import json
import math

import pytest

from flagbench.errors import FlagbenchError
from flagbench.records.model import Record, Status
from flagbench.verdict import Agreement, compare_records
from flagbench.verdict.compare import MetricPair
from flagbench_core.exit_codes import ExitCode

from .conftest import BASE, CASE, edit, replay


def pair(a: Record, b: Record, name: str) -> MetricPair:
    return next(metric for metric in compare_records(a, b, CASE).metrics if metric.name == name)


def test_identical_records_have_ratio_one_and_no_difference() -> None:
    found = compare_records(BASE, BASE, CASE)
    assert (found.conditions, found.config, found.problems) == ((), (), ())
    unknown = edit(conditions={"driver": None})
    assert compare_records(unknown, unknown, CASE).conditions == ()
    assert [m.ratio.value for m in found.metrics if m.ratio is not None] == [1.0] * len(BASE.metrics)


def test_the_interval_of_a_ratio_is_between_runs() -> None:
    host, acc = (pair(BASE, replay("a100-1x8-below"), name) for name in ("p_core_host", "acc"))
    assert (host.a.ci95, host.b.ci95) == ((1930.0, 1950.0), (1490.0, 1530.0))
    assert "within-run" in host.a.ci_method
    # One run against one: t(10 degrees of freedom) = 2.2281, times the assumed 2 %, times sqrt(2).
    factor = math.exp(2.2281 * 0.02 * math.sqrt(2))
    ratio = 1510 / 1940
    assert (host.ratio.value, *host.ratio.ci95) == pytest.approx((ratio, ratio / factor, ratio * factor), rel=1e-4)
    assert "1 and 1 runs" in host.ratio.ci_method
    assert acc.ratio.ci95 is None


def test_a_ratio_is_never_known_better_than_the_windows() -> None:
    wide = edit(metrics={"p_core_host": {"ci95": (1740.0, 2140.0)}})
    low, high = pair(wide, wide, "p_core_host").ratio.ci95
    assert high == pytest.approx(math.exp(math.sqrt(2) * 200 / 1940)) == pytest.approx(1 / low)


def test_what_differs_is_listed_for_b_beside_a() -> None:
    found = compare_records(BASE, replay("cpu-tiny"), CASE)
    by_name = {c.name: c for c in found.conditions}
    assert (by_name["devices"].expected, by_name["devices"].here) == (8, 1)
    assert by_name["driver"].agreement is Agreement.UNKNOWN
    assert "nodes" not in by_name
    assert ("train.learning_rate", 5e-05, 0.0015) in found.config
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_metric_of_one_record_or_in_another_unit_has_no_ratio() -> None:
    lacking = pair(edit(without=("mem_peak",)), BASE, "mem_peak")
    assert (lacking.a, lacking.b is None, lacking.ratio) == (None, False, None)
    other = pair(BASE, edit(metrics={"e2e_time": {"unit": "min"}}), "e2e_time")
    assert (other.unit, other.ratio) == ("s | min", None)


def test_a_failed_run_is_compared_and_said_to_have_failed() -> None:
    failed = edit(status=Status("failed", "train", "a rank failed", 4))
    assert compare_records(BASE, failed, CASE).problems == ("B: the run failed in phase train: a rank failed",)


def test_records_of_different_cases_are_a_usage_error() -> None:
    with pytest.raises(FlagbenchError, match="glm") as caught:
        compare_records(BASE, edit(case="glm"), CASE)
    assert caught.value.code is ExitCode.USAGE
