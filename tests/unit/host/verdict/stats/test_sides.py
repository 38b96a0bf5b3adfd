"""Runs of one side and of two, and looks that share alpha."""

from __future__ import annotations

import math

import pytest

from flagbench.verdict.stats.between import (
    DEFAULT,
    LEAST_SESSION_SPREAD,
    LEAST_SPREAD,
    SESSION,
    Prior,
    SessionSpread,
    further_runs,
    history_prior,
    over_runs,
)
from flagbench.verdict.stats.compare import SideOutcome, compare_sides, further_runs_each, side_outcome
from flagbench.verdict.stats.looks import look_levels

FIVE, SIX = (1914.0, 1917.0, 1920.0, 1923.0, 1926.0), (1900.0, 1931.0, 1905.0, 1942.0, 1950.0, 1890.0)
NIGHTS = Prior(0.003, 20.0, "20 deviations of earlier runs", SessionSpread(0.009, 5.0))


def test_welchs_interval_of_logarithms_is_scipys() -> None:
    # scipy.stats.ttest_ind(log(FIVE), log(SIX), equal_var=False).confidence_interval(0.95), version 1.17.1.
    found = compare_sides(FIVE, SIX)
    assert found.ratio == pytest.approx(1.0002396950599484, rel=1e-12)
    assert found.interval == pytest.approx((0.9869060971838437, 1.0137534365513665), rel=1e-9)
    low, high = compare_sides(SIX, FIVE).interval
    assert (1 / high, 1 / low) == pytest.approx(found.interval)


@pytest.mark.parametrize(
    ("interval", "outcome"),
    [
        ((0.98, 1.02), SideOutcome.SAME),
        ((0.981, 0.995), SideOutcome.SAME),
        ((0.979, 0.995), SideOutcome.SLOWER),
        ((1.001, 1.021), SideOutcome.FASTER),
        ((0.979, 1.0), SideOutcome.INCONCLUSIVE),
        ((0.9, 1.1), SideOutcome.INCONCLUSIVE),
    ],
)
def test_the_same_is_decided_before_slower(interval: tuple[float, float], outcome: SideOutcome) -> None:
    assert side_outcome(interval, 0.02) is outcome


def test_one_run_against_five_pools_their_spread_with_the_prior() -> None:
    squares = sum((math.log(v) - sum(map(math.log, FIVE)) / 5) ** 2 for v in FIVE)
    spread = math.sqrt((10 * 0.02**2 + squares) / 14)
    half = 2.1447866879 * spread * math.sqrt(1 + 1 / 5)  # t of 14 degrees of freedom
    found = compare_sides([1920.0], FIVE)
    assert found.interval == pytest.approx((found.ratio * math.exp(-half), found.ratio * math.exp(half)))


def test_a_prior_that_is_too_small_raises_no_alarm() -> None:
    noisy, tiny = (1700.0, 1800.0, 1900.0, 2000.0, 2100.0), Prior(0.0025, 30.0)
    assert side_outcome(compare_sides([1650.0], noisy, prior=tiny).interval) is SideOutcome.INCONCLUSIVE


def test_a_history_adds_what_two_sessions_differ_by() -> None:
    alone, apart = (compare_sides([1900.0], [1900.0], prior=NIGHTS, session=share) for share in (0.0, math.sqrt(2)))
    within, between = 2.08596 * 0.003 * math.sqrt(2), 2.57058 * 0.009 * math.sqrt(2)
    assert math.log(alone.interval[1]) == pytest.approx(within, rel=1e-5)
    assert math.log(apart.interval[1]) == pytest.approx(math.hypot(within, between), rel=1e-5)


@pytest.mark.parametrize(("prior", "between"), [(DEFAULT, 1.95996 * 0.01), (NIGHTS, 2.57058 * 0.009)])
def test_several_runs_of_two_sessions_differ_by_them(prior: Prior, between: float) -> None:
    alone, apart = (compare_sides(FIVE, SIX, prior=prior, session=share) for share in (0.0, math.sqrt(2)))
    half = math.hypot(math.log(alone.interval[1] / alone.ratio), math.sqrt(2) * between)
    assert math.log(apart.interval[1] / apart.ratio) == pytest.approx(half, rel=1e-5)
    outcomes = [side_outcome(found.interval) for found in (alone, apart)]
    assert outcomes == [SideOutcome.SAME, SideOutcome.INCONCLUSIVE]
    # Both sides twice as often narrow what their runs differ by, and not what their sessions do.
    assert further_runs_each(FIVE, SIX, within=0.01) is not None
    assert further_runs_each(FIVE, SIX, within=0.01, session=math.sqrt(2)) is None


def test_one_run_against_many_is_not_narrower_than_a_session() -> None:
    found = compare_sides([1900.0], [1900.0] * 20, session=math.sqrt(2))
    assert math.log(found.interval[1]) == pytest.approx(1.95996 * 0.01 * math.sqrt(2), rel=1e-5)


def test_two_runs_are_not_narrower_than_one_spread_allows() -> None:
    alike = compare_sides((1900.0, 1900.01), SIX)
    assert side_outcome(alike.interval) is SideOutcome.INCONCLUSIVE
    assert alike.interval[1] / alike.interval[0] > compare_sides(FIVE, SIX).interval[1] ** 2


def test_further_runs_are_as_many_as_then_decide() -> None:
    more = further_runs_each([1900.0], [1920.0])
    assert more is not None
    spread = [math.exp(0.02 * math.sqrt(more / (more + 1)) * sign) for sign in (1, -1)]
    here = [1900.0 * spread[k % 2] for k in range(more + 1)]
    found = compare_sides(here, [1920 / 1900 * v for v in here])
    assert side_outcome(found.interval) is not SideOutcome.INCONCLUSIVE
    assert further_runs_each([1900.0], [1901.0], within=0.0001) is None
    assert further_runs(lambda low, high: False, [1.0]) is None
    assert further_runs(lambda low, high: high < 1.03, [1.0]) == 2
    # A window of +-11 % needs as many runs as narrow it to 5 %, however little runs are assumed to spread.
    assert further_runs(lambda low, high: high < 1.05, [1.0]) == 1
    assert further_runs(lambda low, high: high < 1.05, [1.0], [0.11]) == 6
    assert further_runs(lambda low, high: high < 1.05, [1.0], [0.11], session=0.0) == 5
    # No number of runs narrows what a session adds.
    assert further_runs(lambda low, high: high < 1.019, [1.0] * 5) is None
    assert further_runs(lambda low, high: high < 1.019, [1.0] * 5, apart=True) == 1


def test_a_side_needs_positive_rates() -> None:
    for rates in ([], [0.0], [-1.0], [math.inf], [math.nan]):
        with pytest.raises(ValueError, match="positive rates"):
            compare_sides(rates, FIVE)
    assert over_runs([0.0]) is None
    assert over_runs([1.0, -1.0]) is None


def test_a_history_is_of_five_runs_and_has_a_floor() -> None:
    assert (
        history_prior([]) == history_prior([[1.0], [2.0]]) == history_prior([[100.0, 101.0, 102.0, 103.0]]) == DEFAULT
    )
    within = history_prior([[100.0, 101.0, 102.0], [200.0, 202.0, 204.0]])
    assert (within.df, within.session) == (4, SESSION)
    assert within.spread == pytest.approx(0.0099, abs=1e-5)  # the spread of the logarithms of 100, 101 and 102
    many = history_prior([[100.0] * 20, [90.0] * 30])
    assert (many.spread, many.df) == (LEAST_SPREAD, 30)
    assert "48" in many.source


def test_five_sessions_have_a_spread_of_their_own() -> None:
    nights = [[100.0], [101.0], [102.0], [103.0], [104.0]]
    spread = 0.0155038  # of the logarithms
    four, five = (history_prior([[night for (night,) in nights]], nights[:count]).session for count in (4, 5))
    assert four == SESSION
    assert five is not None
    assert (five.spread, five.df) == (pytest.approx(spread, rel=1e-4), 4)
    assert five.half_width(0.95) == pytest.approx(2.77645 * spread, rel=1e-4)
    alike = history_prior(nights, [[102.0]] * 5).session
    assert alike is not None
    assert alike.half_width(0.95) == pytest.approx(1.959964 * LEAST_SESSION_SPREAD)
    # A night's run shows the spread of sessions, too.
    assert history_prior(nights, nights).spread == pytest.approx(spread, rel=1e-4)
    assert history_prior(nights) == DEFAULT  # those of other machines are spread by what the machines differ by


@pytest.mark.parametrize("looks", [(1, 2, 3, 5, 8), (5,), (2, 4, 6, 8, 10)])
def test_looks_spend_alpha_between_them(looks: tuple[int, ...]) -> None:
    levels = look_levels(looks)
    assert [*levels] == [*looks]
    assert sum(1 - level for level in levels.values()) == pytest.approx(0.05)
    assert all(0.95 <= level < 1 for level in levels.values())


@pytest.mark.parametrize("looks", [(), (0, 1), (1, 1), (3, 2)])
def test_looks_are_increasing_numbers_of_runs(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="increasing"):
        look_levels(looks)


@pytest.mark.parametrize("rate", [1e-150, 1.0, 1e150])
def test_an_interval_has_finite_ends_whatever_a_record_says(rate: float) -> None:
    for found in (over_runs([rate], [1e150]), over_runs([rate, 1e150]), compare_sides([rate], [1e150], least=1e300)):
        assert found is not None
        assert all(map(math.isfinite, found.interval))
    for sides in (([rate, 1e150], [1e-150, 1.0]), ([rate], [1e-150])):
        assert math.isfinite(compare_sides(*sides).interval[1])
        further_runs_each(*sides)
    further_runs(lambda low, high: False, [rate, 1e150])
