"""Fast enough: how intervals are found, and where the limits 0.95 and 1.10 cut."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flagbench.records.model import Metric
from flagbench.verdict import Verdict, verify_claim
from flagbench.verdict.claim_limits import HIGH, LOW, classify
from flagbench.verdict.interval import Estimate, Ratio, Terms, estimate, quotient
from flagbench.verdict.samples import group_sides_into_sessions, session_share
from flagbench.verdict.stats.between import Prior, SessionSpread

from .conftest import CASE, CLAIM, edit, held, line, runs


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


def test_five_runs_give_students_interval_and_a_sessions_part() -> None:
    # Mean 1940, deviations -20 -10 0 10 20: s = sqrt(1000/4) = 15.8114, s/sqrt(5) = 7.07107,
    # t(4 degrees of freedom) = 2.77645, half-width 19.6324; of a session 1.95996 x 1 % x 1940 = 38.0233.
    five = [measured(v, (0.0, 1e9)) for v in (1920.0, 1930.0, 1940.0, 1950.0, 1960.0)]
    found, alone = estimate(five), estimate(five, session=0.0)
    assert (found.value, found.ci_method) == (1940.0, "between 5 runs, Student t, between sessions 1.0% (default)")
    assert found.ci95 == pytest.approx((1940 - 42.7926, 1940 + 42.7926), abs=1e-3)
    assert alone.ci_method == "between 5 runs, Student t"
    assert alone.ci95 == pytest.approx((1940 - 19.6324, 1940 + 19.6324), abs=1e-3)


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


def test_a_history_adds_a_sessions_part() -> None:
    # t(20) = 2.08596 times 0.3 %, and t(5) = 2.57058 times 0.9 %: half of it where two sessions weigh the same.
    prior = Prior(0.003, 20.0, "20 deviations of earlier runs", SessionSpread(0.009, 5.0, "6 earlier sessions"))
    found = estimate([measured(10.0, (9.99, 10.01))], prior, session=math.sqrt(0.5))
    assert found.ci95 is not None
    expected = math.hypot(2.08596 * 0.003, 2.57058 * 0.009 * math.sqrt(0.5))
    assert math.log(found.ci95[1] / 10) == pytest.approx(expected, rel=1e-5)
    assert "between sessions 0.9% (6 earlier sessions)" in str(found.ci_method)


@pytest.mark.parametrize(
    ("minutes", "share"),
    [((0, 30, 60), 1.0), ((0, 100, 200), 1.0), ((121, 0), math.sqrt(0.5)), ((0, 130, 140), math.sqrt(5) / 3)],
)
def test_a_session_is_runs_within_two_hours_of_each_other(minutes: tuple[int, ...], share: float) -> None:
    times = (f"2026-05-01T{10 + minute // 60}:{minute % 60:02}:00Z" for minute in minutes)
    records = [edit(record_id=f"fixture-{time}", created_at=time) for time in times]
    assert session_share(records) == pytest.approx(share)


def test_sides_of_one_session_do_not_differ_by_it() -> None:
    a, b, c = (edit(record_id=f"run-{day}", created_at=f"2026-05-0{day}T12:00:00Z") for day in (1, 2, 3))
    again = edit(record_id="again", created_at="2026-05-01T13:00:00Z")
    elsewhere = edit(again, system=replace(again.system, cpu=replace(again.system.cpu, model="another")))
    assert group_sides_into_sessions([a], [again]) == [([0], [0])]
    assert group_sides_into_sessions([a], [b]) == [([0], []), ([], [0])]
    assert group_sides_into_sessions([b, a], [c, again]) == [([1], [1]), ([0], []), ([], [0])]
    assert group_sides_into_sessions([a], [elsewhere]) == [([0], []), ([], [0])]


def refused(value: float) -> Metric:
    return Metric("p_core", value, "samples/s", "job", ci_reason="the window of 20 steps is shorter than 100")


@pytest.mark.parametrize(("steady", "all_runs"), [(1, 2), (3, 4), (3, 6), (3, 5), (5, 8)])
def test_a_refused_window_does_not_make_the_others_decide_less(steady: int, all_runs: int) -> None:
    good, bad = measured(10.0, (9.99, 10.01)), refused(10.0)
    alone, together = estimate([good] * steady), estimate([good] * steady + [bad] * (all_runs - steady))
    assert alone.ci95 is not None
    assert together.ci95 is not None
    assert together.ci95[0] >= 0.999 * alone.ci95[0]


@pytest.mark.parametrize(("steady", "all_runs"), [(0, 1), (1, 3), (0, 5), (2, 5), (3, 8)])
def test_most_windows_must_have_given_an_interval(steady: int, all_runs: int) -> None:
    metrics = [measured(10.0, (9.99, 10.01))] * steady + [refused(10.0)] * (all_runs - steady)
    assert estimate(metrics) == Estimate(10.0, all_runs)


def test_five_runs_without_a_window_give_an_interval() -> None:
    assert estimate([measured(10.0)] * 4).ci95 is None
    assert estimate([measured(10.0)] * 5).ci95 is not None


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


@pytest.mark.parametrize(("value", "verdict"), [(0.96, Verdict.INCONCLUSIVE), (0.962, Verdict.REPRODUCED)])
def test_a_verdict_at_a_look_must_hold_at_its_level(value: float, verdict: Verdict) -> None:
    # Of five equal runs on five days: 1.95996 x 1 % / sqrt(5) = 0.88 % at 95 %, and 1.15 % at 99 %.
    rate = value * 1942.6
    five = runs(*[rate] * 5, ci95=lambda v: (v - 1, v + 1))
    strict = verify_claim(five, CLAIM, CASE, terms=Terms(level=0.99))
    assert (held(*five).verdict, strict.verdict) == (Verdict.REPRODUCED, verdict)
    gate = line(strict, "p_core")
    assert gate.verdict is verdict
    assert gate.ratio.ci95 == line(held(*five), "p_core").ratio.ci95
