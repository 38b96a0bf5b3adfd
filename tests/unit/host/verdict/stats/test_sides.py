"""Runs of one side and of two, and looks that share alpha."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest

from flagbench.verdict.stats.between import (
    DEFAULT,
    LEAST_SESSION_SPREAD,
    LEAST_SPREAD,
    SESSION_SPREAD,
    Prior,
    SessionSpread,
    count_further_runs,
    history_prior,
    over_runs,
)
from flagbench.verdict.stats.faster_or_slower import (
    Further,
    SessionRuns,
    SideOutcome,
    classify_sides,
    compare_sides,
    count_further_on_each_side,
)
from flagbench.verdict.stats.looks import look_levels

FIVE, SIX = (1914.0, 1917.0, 1920.0, 1923.0, 1926.0), (1900.0, 1931.0, 1905.0, 1942.0, 1950.0, 1890.0)
NIGHTS = Prior(0.003, 20.0, "20 deviations of earlier runs", SessionSpread(0.009, 5.0))


def together(here: Sequence[float], there: Sequence[float]) -> list[SessionRuns]:
    """Runs of both sides in one session."""
    return [SessionRuns(here, there)]


def apart(here: Sequence[Sequence[float]], there: Sequence[Sequence[float]]) -> list[SessionRuns]:
    """Sides of different sessions, each with its runs."""
    return [*(SessionRuns(runs, ()) for runs in here), *(SessionRuns((), runs) for runs in there)]


def spaced(count: int, spread: float) -> list[float]:
    """Equally spaced values around 0, with that standard deviation."""
    places = [place - (count - 1) / 2 for place in range(count)]
    deviation = math.sqrt(sum(place**2 for place in places) / max(1, count - 1))
    return [place * spread / (deviation or 1.0) for place in places]


def nights(count: int, spread: float, runs: int = 1, within: float = 0.0, ratio: float = 1.0) -> list[list[float]]:
    """Runs of so many sessions, whose means spread by `spread`, and the runs of each by `within`."""
    found = []
    for night in spaced(count, spread):
        found.append([1900.0 * ratio * math.exp(night + run) for run in spaced(runs, within)])
    return found


def half_width(sessions: list[SessionRuns], prior: Prior = DEFAULT) -> float:
    low, high = compare_sides(sessions, prior=prior).interval
    return math.log(high / low) / 2


def outcome(sessions: list[SessionRuns], within: float = 0.02) -> SideOutcome:
    return classify_sides(compare_sides(sessions).interval, within)


def test_welchs_interval_of_logarithms_is_scipys() -> None:
    # scipy.stats.ttest_ind(log(FIVE), log(SIX), equal_var=False).confidence_interval(0.95), version 1.17.1.
    found = compare_sides(together(FIVE, SIX))
    assert found.ratio == pytest.approx(1.0002396950599484, rel=1e-12)
    assert found.interval == pytest.approx((0.9869060971838437, 1.0137534365513665), rel=1e-9)
    low, high = compare_sides(together(SIX, FIVE)).interval
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
    assert classify_sides(interval, 0.02) is outcome


def test_one_run_against_five_pools_their_spread_with_the_prior() -> None:
    squares = sum((math.log(v) - sum(map(math.log, FIVE)) / 5) ** 2 for v in FIVE)
    spread = math.sqrt((10 * 0.02**2 + squares) / 14)
    half = 2.1447866879 * spread * math.sqrt(1 + 1 / 5)  # t of 14 degrees of freedom
    found = compare_sides(together([1920.0], FIVE))
    assert found.interval == pytest.approx((found.ratio * math.exp(-half), found.ratio * math.exp(half)))


def test_a_prior_that_is_too_small_raises_no_alarm() -> None:
    noisy, tiny = (1700.0, 1800.0, 1900.0, 2000.0, 2100.0), Prior(0.0025, 30.0)
    assert classify_sides(compare_sides(together([1650.0], noisy), prior=tiny).interval) is SideOutcome.INCONCLUSIVE


def test_a_history_adds_what_two_sessions_differ_by() -> None:
    within, between = 2.08596 * 0.003 * math.sqrt(2), 2.57058 * 0.009 * math.sqrt(2)
    assert half_width(together([1900.0], [1900.0]), NIGHTS) == pytest.approx(within, rel=1e-5)
    two = apart([[1900.0]], [[1900.0]])
    assert half_width(two, NIGHTS) == pytest.approx(math.hypot(within, between), rel=1e-5)


@pytest.mark.parametrize(("prior", "between"), [(DEFAULT, 1.95996 * 0.01), (NIGHTS, 2.57058 * 0.009)])
def test_several_runs_of_two_sessions_differ_by_them(prior: Prior, between: float) -> None:
    one, two = together(FIVE, SIX), apart([FIVE], [SIX])
    half = math.hypot(half_width(one), math.sqrt(2) * between)
    assert half_width(two, prior) == pytest.approx(half, rel=1e-5)
    assert (outcome(one), outcome(two)) == (SideOutcome.SAME, SideOutcome.INCONCLUSIVE)
    # Further runs of a session narrow what its runs differ by, and not what it differs by from others.
    for sessions, unit in ((one, "run"), (two, "session")):
        further = count_further_on_each_side(sessions, within=0.01, prior=prior)
        assert further is not None
        assert further.unit == unit


def test_one_run_against_many_is_not_narrower_than_a_session() -> None:
    assert half_width(apart([[1900.0]], [[1900.0] * 20])) == pytest.approx(1.95996 * 0.01 * math.sqrt(2), rel=1e-5)


def test_two_runs_are_not_narrower_than_one_spread_allows() -> None:
    alike = together((1900.0, 1900.01), SIX)
    assert outcome(alike) is SideOutcome.INCONCLUSIVE
    assert half_width(alike) > half_width(together(FIVE, SIX))


def test_several_sessions_a_side_are_the_units() -> None:
    # Five nights of three runs a side, 2 % apart: t(8) = 2.30600 times 2 % times sqrt(1/5 + 1/5). Were the runs the
    # units, it would be about 1.5 %.
    sides = apart(nights(5, 0.02, 3, 0.0025), nights(5, 0.02, 3, 0.0025))
    assert half_width(sides) == pytest.approx(2.306004 * 0.02 * math.sqrt(0.4), rel=1e-5)
    assert "15 and 15 runs of 5 and 5 sessions, Student t between sessions 2.0%" in compare_sides(sides).method
    # Sessions that agree still count for the prior's 1 %, or for what the store's own spread and theirs give.
    alike = apart(nights(5, 0.001), nights(5, 0.001))
    assert half_width(alike) == pytest.approx(1.959964 * 0.01 * math.sqrt(0.4), rel=1e-5)
    store = Prior(0.003, 20.0, "20 deviations of earlier runs", SessionSpread(0.02, 5.0))
    pooled = math.sqrt((5 * 0.02**2 + 8 * 0.001**2) / 13)
    assert half_width(alike, store) == pytest.approx(2.160369 * pooled * math.sqrt(0.4), rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "here", "there", "spread", "expected"),
    [
        (0.95, 5, 5, 0.01, SideOutcome.SLOWER),
        (1.05, 3, 3, 0.01, SideOutcome.FASTER),
        (0.95, 2, 2, 0.02, SideOutcome.INCONCLUSIVE),
        (0.95, 1, 5, 0.01, SideOutcome.SLOWER),
        (0.975, 5, 5, 0.02, SideOutcome.INCONCLUSIVE),
        (1.005, 5, 5, 0.005, SideOutcome.SAME),
    ],
)
def test_sides_of_several_nights(ratio: float, here: int, there: int, spread: float, expected: SideOutcome) -> None:
    sides = apart(nights(here, spread, 3, 0.0025, ratio), nights(there, spread, 3, 0.0025))
    assert outcome(sides) is expected


def test_a_noisy_session_against_many_is_not_known_better_than_its_runs() -> None:
    # Runs spread by 3 %: two of them on one side, of twenty each in five sessions whose means hide that.
    sides = apart(nights(1, 0.0, 2, 0.03), nights(5, 0.002, 20, 0.03))
    assert half_width(sides) == pytest.approx(1.98 * 0.03 * math.sqrt(1 / 2 + 1 / 100), rel=0.03)


def test_sides_of_the_same_sessions_are_compared_by_their_runs() -> None:
    first, second = [1900.0, 1905.0, 1910.0], [1960.0, 1965.0, 1970.0]
    both = [SessionRuns(first, first), SessionRuns(second, second)]
    assert half_width(both) == pytest.approx(half_width(together([*first, *second], [*first, *second])))
    # A run too few on one side leaves most of the sessions' difference cancelled.
    uneven = [SessionRuns(first, first), SessionRuns(second, second[:2])]
    assert half_width(uneven) < half_width(apart([first, second], [first, second[:2]]))
    assert count_further_on_each_side(uneven) == Further(1, "session")


@pytest.mark.parametrize("spread", [0.0, 0.005, 0.01, 0.02, 0.04])
@pytest.mark.parametrize("within", [0.0, 0.0025, 0.01])
@pytest.mark.parametrize("prior", [DEFAULT, NIGHTS])
def test_further_sessions_and_runs_never_widen_the_interval(spread: float, within: float, prior: Prior) -> None:
    def width(here: int, there: int, runs: int) -> float:
        return half_width(apart(nights(here, spread, runs, within), nights(there, spread, runs, within)), prior)

    assumed = (prior.session or SESSION_SPREAD).spread
    for here, there, runs in itertools.product(range(1, 7), range(1, 7), (1, 2, 3, 5)):
        if here == there == 1 and (spread > assumed or within > assumed):
            continue  # one session on each side does not show it
        now = width(here, there, runs) * (1 + 1e-9)
        assert width(here + 1, there, runs) <= now
        assert width(here + 1, there + 1, runs) <= now
        if runs > 1 and here + there > 2:  # one run of each session does not show `within`
            assert width(here, there, runs + 1) <= now


def test_further_runs_are_as_many_as_then_decide() -> None:
    further = count_further_on_each_side(together([1900.0], [1920.0]))
    assert further == Further(29, "run")
    here, there = nights(1, 0.0, 30, 0.02), nights(1, 0.0, 30, 0.02, 1920 / 1900)
    assert outcome(together(here[0], there[0])) is not SideOutcome.INCONCLUSIVE
    assert count_further_on_each_side(together([1900.0], [1901.0]), within=0.0001) is None
    assert count_further_runs(lambda low, high: False, [1.0]) is None
    assert count_further_runs(lambda low, high: high < 1.03, [1.0]) == 2
    # A window of +-11 % needs as many runs as narrow it to 5 %, however little runs are assumed to spread.
    assert count_further_runs(lambda low, high: high < 1.05, [1.0]) == 1
    assert count_further_runs(lambda low, high: high < 1.05, [1.0], [0.11]) == 6
    assert count_further_runs(lambda low, high: high < 1.05, [1.0], [0.11], session=0.0) == 5
    # No number of runs narrows what a session adds.
    assert count_further_runs(lambda low, high: high < 1.019, [1.0] * 5) is None
    assert count_further_runs(lambda low, high: high < 1.019, [1.0] * 5, in_new_sessions=True) == 1


@pytest.mark.parametrize(
    ("ratio", "here", "there", "spread", "runs"),
    [
        (0.96, 2, 2, 0.02, 1),
        (0.985, 3, 3, 0.01, 3),
        (0.97, 2, 4, 0.015, 2),
        (1.01, 3, 3, 0.005, 1),
        (1.0, 5, 5, 0.02, 3),
    ],
)
def test_further_sessions_are_as_many_as_then_decide(
    ratio: float, here: int, there: int, spread: float, runs: int
) -> None:
    def sides(more: int) -> list[SessionRuns]:
        return apart(nights(here + more, spread, runs, 0.0, ratio), nights(there + more, spread, runs))

    further = count_further_on_each_side(sides(0))
    assert further is not None
    assert further.unit == "session"
    outcomes = [outcome(sides(more)) is SideOutcome.INCONCLUSIVE for more in range(further.more + 3)]
    assert outcomes == [True] * further.more + [False] * 3


def test_one_session_a_side_says_sessions_where_its_runs_do_not_decide() -> None:
    # Its runs would: the interval is that of runs that spread by 2 %.
    assert count_further_on_each_side(apart([[1900.0]], [[2000.0]])) == Further(3, "run")
    # They would not: 2.2 % lies within the +-2.8 % of a session a side. Of three it is +-1.9 %.
    slower = apart(nights(1, 0.0, 5, 0.0025, 0.978), nights(1, 0.0, 5, 0.0025))
    assert count_further_on_each_side(slower) == Further(3, "session")
    assert count_further_on_each_side(apart([[1900.0] * 5], [[1900.1] * 5]), within=0.0001) is None


def test_a_side_needs_positive_rates() -> None:
    for rates in ([], [0.0], [-1.0], [math.inf], [math.nan]):
        with pytest.raises(ValueError, match="positive rates"):
            compare_sides(together(rates, FIVE))
    assert over_runs([0.0]) is None
    assert over_runs([1.0, -1.0]) is None


def test_a_history_is_of_five_runs_and_has_a_floor() -> None:
    assert (
        history_prior([]) == history_prior([[1.0], [2.0]]) == history_prior([[100.0, 101.0, 102.0, 103.0]]) == DEFAULT
    )
    within = history_prior([[100.0, 101.0, 102.0], [200.0, 202.0, 204.0]])
    assert (within.df, within.session) == (4, SESSION_SPREAD)
    assert within.spread == pytest.approx(0.0099, abs=1e-5)  # the spread of the logarithms of 100, 101 and 102
    many = history_prior([[100.0] * 20, [90.0] * 30])
    assert (many.spread, many.df) == (LEAST_SPREAD, 30)
    assert "48" in many.source


def test_five_sessions_have_a_spread_of_their_own() -> None:
    nights = [[100.0], [101.0], [102.0], [103.0], [104.0]]
    spread = 0.0155038  # of the logarithms
    four, five = (history_prior([[night for (night,) in nights]], nights[:count]).session for count in (4, 5))
    assert four == SESSION_SPREAD
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
    one = together([rate], [1e150])
    for found in (over_runs([rate], [1e150]), over_runs([rate, 1e150]), compare_sides(one, least=1e300)):
        assert found is not None
        assert all(map(math.isfinite, found.interval))
    two = apart([[rate], [1e150]], [[1e-150], [1.0]])
    for sessions in (together([rate, 1e150], [1e-150, 1.0]), together([rate], [1e-150]), two):
        assert math.isfinite(compare_sides(sessions).interval[1])
        count_further_on_each_side(sessions)
    count_further_runs(lambda low, high: False, [rate, 1e150])
