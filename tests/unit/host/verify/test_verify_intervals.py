"""Fast enough: how intervals are found, and where the limits 0.95 and 1.10 cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flagbench.record.model import Metric
from flagbench.verify import Verdict
from flagbench.verify.interval import Estimate, Ratio, estimate, quotient, t95
from flagbench.verify.metric import HIGH, LOW, classify

from .conftest import held, runs


def measured(value: float, ci95: tuple[float, float] | None = None) -> Metric:
    return Metric("p_core", value, "samples/s", "job", ci95=ci95, ci_method="within-run block bootstrap")


def around(value: float, width: float) -> Estimate:
    return Estimate(value, 1, (value * (1 - width), value * (1 + width)), "test")


@pytest.mark.parametrize(
    ("ci95", "expected"),
    [
        ((0.95, 1.10), Verdict.REPRODUCED),
        ((0.95, 0.95), Verdict.REPRODUCED),
        ((1.10, 1.10), Verdict.REPRODUCED),
        ((0.9499, 1.0), Verdict.INCONCLUSIVE),
        ((1.0, 1.1001), Verdict.INCONCLUSIVE),
        ((0.90, 0.95), Verdict.INCONCLUSIVE),
        ((1.10, 1.20), Verdict.INCONCLUSIVE),
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
    # t(4 degrees of freedom) = 2.776, half width 19.6293.
    found = estimate([measured(v, (0.0, 1e9)) for v in (1920.0, 1930.0, 1940.0, 1950.0, 1960.0)])
    assert (found.value, found.ci_method) == (1940.0, "between 5 runs, Student t")
    assert found.ci95 == pytest.approx((1940 - 19.6293, 1940 + 19.6293), abs=1e-3)


def test_under_five_runs_have_the_hull_of_their_own_intervals_or_none() -> None:
    one, other = measured(10.0, (9.0, 11.0)), measured(14.0, (13.0, 15.0))
    assert estimate([one]) == Estimate(10.0, 1, (9.0, 11.0), "within-run block bootstrap")
    assert estimate([one, other]) == Estimate(12.0, 2, (9.0, 15.0), "hull of 2 within-run intervals")
    assert estimate([one, measured(14.0)]) == Estimate(12.0, 2)
    assert estimate([replace(one, ci_method=None)]).ci_method == "within-run, method not stated"


@pytest.mark.parametrize(
    ("df", "exact"), [(4, 2.7764), (10, 2.2281), (30, 2.0423), (31, 2.0395), (60, 2.0003), (1000, 1.9623)]
)
def test_t_quantiles(df: int, exact: float) -> None:
    assert t95(df) == pytest.approx(exact, abs=1e-3)


def test_a_quotient_has_no_interval_where_the_denominator_may_be_zero() -> None:
    noisy = Estimate(1.0, 5, (-0.1, 2.1), "test")
    assert quotient(around(1.0, 0.1), noisy) == Ratio(1.0)
    assert quotient(around(1.0, 0.1), Estimate(0.0, 1)) is None
    assert quotient(noisy, around(1.0, 0.5)).ci95[0] == pytest.approx(-0.2)


def test_five_runs_decide_what_one_value_could_not() -> None:
    spread = [1930.0, 1935.0, 1940.0, 1945.0, 1950.0]
    for count, why in (
        (1, "one value, no interval"),
        (4, "4 of 4 runs have no interval, and 5 runs would give one between them"),
    ):
        result = held(*runs(*spread[:count]))
        assert result.verdict is Verdict.INCONCLUSIVE
        assert result.reason.endswith(f"; {why}")
    assert held(*runs(*spread)).verdict is Verdict.REPRODUCED
    assert held(*runs(1500.0, 1700.0, 1900.0, 2100.0, 2300.0)).reason.endswith("; the interval crosses a limit")
    assert held(*runs(*spread[:2], ci95=lambda v: (v - 10, v + 10))).verdict is Verdict.REPRODUCED
