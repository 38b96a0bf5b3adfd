"""Fast enough: how intervals are found, and where the limits 0.95 and 1.10 cut."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flagbench.records.model import Metric
from flagbench.verdict import Verdict
from flagbench.verdict.interval import Estimate, Ratio, estimate, quotient
from flagbench.verdict.limits import HIGH, LOW, classify
from flagbench.verdict.series import widened
from flagbench.verdict.stats.between import over_runs

from .conftest import edit, held, runs


def measured(value: float, ci95: tuple[float, float] | None = None) -> Metric:
    return Metric("p_core", value, "samples/s", "job", ci95=ci95, ci_method="within-run block bootstrap")


def around(value: float, width: float) -> Estimate:
    return Estimate(value, 1, (value * (1 - width), value * (1 + width)), "test")


@pytest.mark.parametrize(
    ("ci95", "expected"),
    [
        ((0.95, 1.10), Verdict.REPRODUCED),
        ((0.9499, 1.0), Verdict.INCONCLUSIVE),
        ((1.0, 1.1001), Verdict.INCONCLUSIVE),
        ((0.90, 0.9499), Verdict.BELOW),
        ((1.1001, 1.20), Verdict.ABOVE),
        ((0.5, 2.0), Verdict.INCONCLUSIVE),
        (None, Verdict.INCONCLUSIVE),
    ],
)
def test_the_limits_belong_to_reproduced(ci95: tuple[float, float] | None, expected: Verdict) -> None:
    assert classify(Ratio(1.0, ci95)) is expected


@given(claim=st.floats(1e-3, 1e6), limit=st.sampled_from([LOW, HIGH]))
def test_a_measured_value_at_a_limit_reproduces_any_claim(claim: float, limit: float) -> None:
    found = quotient(around(limit * claim, 0.0), Estimate(claim, runs=0))
    assert found is not None
    assert classify(found) is Verdict.REPRODUCED


def test_five_runs_give_students_interval_between_them() -> None:
    # Mean 1940, deviations -20 -10 0 10 20: s = sqrt(1000/4) = 15.8114, s/sqrt(5) = 7.07107,
    # t(4 degrees of freedom) = 2.77645, half width 19.6324.
    found = estimate([measured(v, (0.0, 1e9)) for v in (1920.0, 1930.0, 1940.0, 1950.0, 1960.0)])
    assert (found.value, found.ci_method) == (1940.0, "between 5 runs, Student t")
    assert found.ci95 == pytest.approx((1940 - 19.6324, 1940 + 19.6324), abs=1e-3)


def half_width(*values: float, width: float = 0.01) -> float:
    """The half-width of the logarithm of runs' mean."""
    found = estimate([measured(value, (value * (1 - width), value * (1 + width))) for value in values])
    assert found.ci95 is not None
    return math.log(found.ci95[1] / found.value)


def test_under_five_runs_the_spread_between_them_is_assumed() -> None:
    # One run: t(10) = 2.22814 times 2 %. Two: t(11) = 2.20099, and s^2 = (10 x 0.02^2 + d^2 / 2) / 11.
    assert half_width(10.0) == pytest.approx(2.22814 * 0.02, rel=1e-5)
    apart = math.log(1.05)
    spread = math.sqrt((10 * 0.02**2 + apart**2 / 2) / 11)
    assert half_width(10.0, 10.5) == pytest.approx(2.20099 * spread / math.sqrt(2), rel=1e-5)


def test_another_run_that_agrees_always_narrows_the_interval() -> None:
    widths = [half_width(*[10.0, 10.1, 10.0, 10.1][:runs]) for runs in (1, 2, 3, 4)]
    assert widths == sorted(widths, reverse=True)


def test_a_run_is_never_known_better_than_its_own_window() -> None:
    assert half_width(10.0, width=0.2) == pytest.approx(0.2)


def test_under_five_runs_each_window_must_have_given_an_interval() -> None:
    assert estimate([measured(10.0, (9.0, 11.0)), measured(14.0)]) == Estimate(12.0, 2)


def test_a_quotient_by_what_may_be_zero_has_no_interval() -> None:
    noisy = Estimate(1.0, 5, (-0.1, 2.1), "test")
    assert quotient(around(1.0, 0.1), noisy) == Ratio(1.0)
    assert quotient(around(1.0, 0.1), Estimate(0.0, 1)) is None
    assert quotient(noisy, around(1.0, 0.5)).ci95[0] == pytest.approx(-0.2)


def test_five_runs_decide_what_one_value_could_not() -> None:
    spread = [1930.0, 1935.0, 1940.0, 1945.0, 1950.0]
    for count in (1, 4):
        assert held(*runs(*spread[:count])).verdict is Verdict.INCONCLUSIVE
    assert held(*runs(*spread)).verdict is Verdict.REPRODUCED
    assert held(*runs(*spread[:2], ci95=lambda v: (v - 10, v + 10))).verdict is Verdict.REPRODUCED


def test_an_undecided_verdict_says_how_many_more_runs_decide() -> None:
    result = held(*runs(1700.0, 1800.0, 1900.0, 2000.0, 2100.0))
    assert result.verdict is Verdict.INCONCLUSIVE
    more = int(re.search(r"about (\d+) more runs would decide", result.reason)[1])
    # 1900 is 0.978 of the claim, 2.87 % above the limit; t x 8.3 % / sqrt(n) is less than that from 35 runs on.
    assert more == pytest.approx(30, abs=2)
    at_the_limit = 0.95 * 1942.6
    assert "would probably not decide" in held(*runs(*[at_the_limit - 10, at_the_limit + 10] * 3)).reason


def test_a_window_that_is_not_steady_says_what_would_decide() -> None:
    why = "its rate changes by -3.0% from the beginning to the end; about 200 more steps would decide"
    result = held(edit(metrics={"p_core_host": {"ci95": None, "ci_reason": why}}))
    assert (result.verdict, why in result.reason) == (Verdict.INCONCLUSIVE, True)


@pytest.mark.parametrize("runs", [1, 2, 4, 5, 8])
def test_a_widened_interval_is_that_of_the_runs_at_its_level(runs: int) -> None:
    values = [0.97 + 0.01 * (k % 3) for k in range(runs)]
    found, higher = (over_runs(values, level=level) for level in (0.95, 0.99))
    wide = widened(Ratio(found.value, found.interval), 0.99, runs)
    assert wide.ci95 == pytest.approx(higher.interval, rel=1e-12)
