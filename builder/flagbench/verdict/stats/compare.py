"""Runs against runs: is one side faster, slower or the same.

On logarithms of rates, whose differences are ratios. With two runs or more on both sides, Welch's t interval
(Biometrika 34, 1947), which lets the sides have different spreads; under five runs on a side it is too narrow where
the numbers of runs differ, and never taken narrower than Student's with one spread. With one run on a side, a
predictive t interval: the variance of both sides is pooled with the prior of `between`. It is never narrower than
five or more runs on the other side allow, so that a prior that is too small does not raise the alarm.

Two sides of different sessions differ by what sessions differ by, too: its half-width is added in quadrature. With
one run on a side, the default prior covers it, and no interval is narrower.

SAME is decided first, by equivalence: the whole interval lies within the tolerance (two one-sided tests, Schuirmann
1987, here at 2.5 % each, so that one interval serves all). Then FASTER or SLOWER: the interval does not contain 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from flagbench.verdict.stats.between import (
    DEFAULT,
    LEVEL,
    MOST_RUNS,
    RUNS_FOR_STUDENT,
    SESSION,
    WIDEST,
    Prior,
    with_sessions,
)
from flagbench_core.stats.student import t_two_sided

WITHIN = 0.02
"""Ratios that differ from 1 by no more count as the same."""


class SideOutcome(str, Enum):
    """One side compared with the other."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    INCONCLUSIVE = "INCONCLUSIVE"


class SidesRatio(NamedTuple):
    """The ratio of two sides: above 1, this side is faster."""

    ratio: float
    interval: tuple[float, float]
    method: str


class _Side(NamedTuple):
    runs: int
    mean: float
    squares: float

    @property
    def variance(self) -> float:
        """Of a run."""
        return self.squares / (self.runs - 1)


def compare_sides(
    here: Sequence[float],
    there: Sequence[float],
    *,
    least: float = 0.0,
    prior: Prior = DEFAULT,
    session: float = 0.0,
) -> SidesRatio:
    """Compare the rates of runs here with those of runs there.

    Args:
        here, there: one rate of each run, higher is faster; at least one on each side.
        least: the half-width, relative, that the intervals within the runs give the ratio; with one run on a side,
            it is never known better.
        session: the share of a session's deviation in the difference, 0 where both sides are of the same.

    Raises:
        ValueError: a rate is not positive, or a side has none.
    """
    a, b = _side(here), _side(there)
    half, method = _half_width(a, b, prior, session)
    if min(a.runs, b.runs) == 1:
        half = min(max(half, least), WIDEST)
    difference = a.mean - b.mean
    interval = math.exp(difference - half), math.exp(difference + half)
    return SidesRatio(math.exp(difference), interval, method)


def further_runs_each(
    here: Sequence[float],
    there: Sequence[float],
    *,
    within: float = WITHIN,
    prior: Prior = DEFAULT,
    session: float = 0.0,
) -> int | None:
    """How many more runs on each side, with the same means and spreads, would decide; None if more than MOST_RUNS.

    They are of the sessions that there are: `session` is as for `compare_sides`.
    """
    a, b = _side(here), _side(there)
    df = a.runs + b.runs - 2
    variance = (a.squares + b.squares) / df if min(a.runs, b.runs) > 1 else prior.spread**2
    difference = a.mean - b.mean
    for more in range(1, MOST_RUNS + 1):
        x, y = (_Side(side.runs + more, side.mean, (side.runs + more - 1) * variance) for side in (a, b))
        half, _ = _half_width(x, y, prior, session)
        interval = math.exp(difference - half), math.exp(difference + half)
        if side_outcome(interval, within) is not SideOutcome.INCONCLUSIVE:
            return more
    return None


def side_outcome(interval: tuple[float, float], within: float = WITHIN) -> SideOutcome:
    """What the interval of a ratio says; SAME before SLOWER."""
    low, high = interval
    if low >= 1 - within and high <= 1 + within:
        return SideOutcome.SAME
    if low > 1:
        return SideOutcome.FASTER
    return SideOutcome.SLOWER if high < 1 else SideOutcome.INCONCLUSIVE


def _side(values: Sequence[float]) -> _Side:
    if not values or not all(0 < value < math.inf for value in values):
        raise ValueError(f"a side needs positive rates, not {list(values)}")
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    return _Side(len(logs), mean, math.fsum((log - mean) ** 2 for log in logs))


def _half_width(a: _Side, b: _Side, prior: Prior, session: float) -> tuple[float, str]:
    """Of the difference of the two means, at most WIDEST, and how it was found."""
    factor = math.sqrt(1 / a.runs + 1 / b.runs)
    squares, df, between = a.squares + b.squares, a.runs + b.runs - 2, prior.session or SESSION
    if min(a.runs, b.runs) > 1:
        half, method = _welch(a, b), "Welch t"
        if min(a.runs, b.runs) < RUNS_FOR_STUDENT:
            half = max(half, t_two_sided(LEVEL, df) * math.sqrt(squares / df) * factor)
    else:
        pooled = prior.df + df
        half = t_two_sided(LEVEL, pooled) * math.sqrt((prior.df * prior.spread**2 + squares) / pooled) * factor
        for side in (a, b):
            if side.runs >= RUNS_FOR_STUDENT:
                half = max(half, t_two_sided(LEVEL, side.runs - 1) * math.sqrt(side.variance) * factor)
        method = f"predictive t, spread between runs {prior.spread:.1%} ({prior.source})"
    part = between.half_width(LEVEL) * session
    if min(a.runs, b.runs) == 1 and prior.session is None:
        half = max(half, part)
    else:
        half, method = math.hypot(half, part), f"{method}{with_sessions(between, session)}"
    return min(half, WIDEST), f"{a.runs} and {b.runs} runs, {method}"


def _welch(a: _Side, b: _Side) -> float:
    x, y = a.variance / a.runs, b.variance / b.runs
    if x + y <= 0:
        return 0.0
    df = (x + y) ** 2 / (x**2 / (a.runs - 1) + y**2 / (b.runs - 1))
    return t_two_sided(LEVEL, df) * math.sqrt(x + y)
