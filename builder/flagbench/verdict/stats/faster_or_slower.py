"""Runs against runs: is one side faster, slower or the same.

On logarithms of rates, whose differences are ratios. SAME is decided first, by equivalence: the whole interval lies
within the tolerance (two one-sided tests, Schuirmann 1987, here at 2.5 % each, so that one interval serves all). Then
FASTER or SLOWER: the interval does not contain 1.

One session on each side: the run is the unit. With two runs or more on both sides, Welch's t interval (Biometrika 34,
1947), which lets the sides have different spreads; under five runs on a side it is too narrow where the numbers of
runs differ, and never taken narrower than Student's with one spread. With one run on a side, a predictive t interval:
the variance of both sides is pooled with the prior of `between`. It is never narrower than five or more runs on the
other side allow, so that a prior that is too small does not raise the alarm. Sides of different sessions differ by
what sessions differ by, too: its half-width is added in quadrature. With one run on a side, the default prior covers
it, and no interval is narrower.

Several sessions on a side: the mean of a session is the unit (Kalibera and Jones, ISMM 2013; for clusters in general
Donner and Klar, Design and Analysis of Cluster Randomization Trials, 2000). With k and m sessions, A and B the sums
of the squared deviations of their means from that of their side, df = k + m - 2, f = sqrt(1/k + 1/m), less where the
sides share sessions, and the prior s0 on df0 degrees of freedom of `between`:

  s^2 = (df0 s0^2 + A + B) / (df0 + df)     pooled with the prior; s0 where that is an assumption
  S^2 = (A + B) / df                        what the sessions show, on v = (A + B)^2 / (A^2/(k - 1) + B^2/(m - 1))
  half-width = max(f t(df0 + df) s, min(f t(v), sqrt(2) t(df0)) S)

The second term is Student's interval with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946), so that a
prior that is too small does not raise the alarm. Of few sessions it is no wider than that of one session on each side
with the spread S: with the same means and spreads, further sessions only narrow the interval. It is never narrower
than the same formula gives with runs for sessions, where the prior between runs counts only with one run on a side.

Sides that have the same sessions, each with the same share of their runs, are compared as if they had one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple

from flagbench.verdict.stats.between import (
    DEFAULT,
    LEVEL,
    MOST_RUNS,
    RUNS_FOR_STUDENT,
    SESSION_SPREAD,
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


class SessionRuns(NamedTuple):
    """The rates of the runs of one session, higher is faster; a side that has none in this session is empty."""

    measured: Sequence[float]
    baseline: Sequence[float]


class SidesRatio(NamedTuple):
    """The ratio of the measured side to the baseline: above 1, the measured side is faster."""

    ratio: float
    interval: tuple[float, float]
    method: str


class Further(NamedTuple):
    """How many more runs, or sessions, on each side would decide."""

    more: int
    unit: Literal["run", "session"]


class _Sample(NamedTuple):
    """Logarithms of the rates of one side: of its runs, or the means of its sessions."""

    size: int
    mean: float
    squares: float
    """The sum of squared deviations from the mean."""

    @property
    def variance(self) -> float:
        """Of one value."""
        return self.squares / (self.size - 1)

    def extended(self, more: int, variance: float) -> _Sample:
        """With `more` values added, the same mean and this variance."""
        size = self.size + more
        return _Sample(size, self.mean, (size - 1) * variance)


class _Sides(NamedTuple):
    """Runs of both sides, or the means of their sessions."""

    measured: _Sample
    baseline: _Sample
    shared: int = 0
    """How many sessions both sides have."""

    @property
    def df(self) -> int:
        """Degrees of freedom of the spread within the sides."""
        return self.measured.size + self.baseline.size - 2

    @property
    def squares(self) -> float:
        """The sum of squared deviations, each from the mean of its side."""
        return self.measured.squares + self.baseline.squares

    @property
    def spread(self) -> float:
        """The standard deviation of one value about the mean of its side, where `df` is not 0."""
        return math.sqrt(self.squares / self.df)

    @property
    def fewest(self) -> int:
        """Of the values on a side."""
        return min(self.measured.size, self.baseline.size)

    @property
    def difference(self) -> float:
        """Of the two means."""
        return self.measured.mean - self.baseline.mean

    @property
    def factor(self) -> float:
        """The standard deviation of the difference, relative to that of one value."""
        k, m = self.measured.size, self.baseline.size
        return math.sqrt(max(0.0, 1 / k + 1 / m - 2 * self.shared / (k * m)))

    def extended(self, measured: int, baseline: int, variance: float) -> _Sides:
        """With so many values added to each side, the same means and this variance.

        Sides that share all their sessions share the further ones, too.
        """
        shared = self.shared
        if shared == self.measured.size == self.baseline.size:
            shared += measured
        return _Sides(self.measured.extended(measured, variance), self.baseline.extended(baseline, variance), shared)


def compare_sides(sessions: Sequence[SessionRuns], *, least: float = 0.0, prior: Prior = DEFAULT) -> SidesRatio:
    """Compare the rates of the measured runs with those of the baseline.

    Args:
        sessions: the rates of each session; at least one run on each side in all.
        least: the half-width, relative, that the intervals within the runs give the ratio; with one run on a side,
            it is never known better.
        prior: the spread between runs, and that between sessions.

    Raises:
        ValueError: a rate is not positive, or a side has none.
    """
    runs, means = _runs_and_session_means(sessions)
    half, method = _half_width(runs, means, prior)
    if runs.fewest == 1:
        half = min(max(half, least), WIDEST)
    return SidesRatio(math.exp(means.difference), _interval(means.difference, half), method)


def further_each(
    sessions: Sequence[SessionRuns], *, within: float = WITHIN, prior: Prior = DEFAULT
) -> Further | None:
    """How many more runs or sessions on each side, with the same means and spreads, would decide.

    Runs of the present sessions, if each side has one and they are enough; else further sessions, of as many runs as
    each has now. None if more than MOST_RUNS.
    """
    runs, means = _runs_and_session_means(sessions)
    if means.df > 0:
        return _further_sessions(runs, means, runs.spread**2, means.spread**2, within, prior)
    variance = prior.spread**2
    if runs.fewest > 1:
        variance = runs.spread**2
    for more in range(1, MOST_RUNS + 1):
        if _decides(runs.extended(more, more, variance), means, within, prior):
            return Further(more, "run")
    if means.shared:
        return None
    between = (prior.session or SESSION_SPREAD).spread ** 2
    of_sessions = between + variance * 2 / (runs.measured.size + runs.baseline.size)
    return _further_sessions(runs, means, between + variance, of_sessions, within, prior)


def _further_sessions(
    runs: _Sides, means: _Sides, variance_of_runs: float, variance_of_means: float, within: float, prior: Prior
) -> Further | None:
    """How many more sessions on each side would decide, of as many runs as each has now."""
    measured = _runs_a_session(runs.measured, means.measured)
    baseline = _runs_a_session(runs.baseline, means.baseline)
    for more in range(1, MOST_RUNS + 1):
        all_runs = runs.extended(more * measured, more * baseline, variance_of_runs)
        all_means = means.extended(more, more, variance_of_means)
        if _decides(all_runs, all_means, within, prior):
            return Further(more, "session")
    return None


def side_outcome(interval: tuple[float, float], within: float = WITHIN) -> SideOutcome:
    """What the interval of a ratio says; SAME before SLOWER."""
    low, high = interval
    if low >= 1 - within and high <= 1 + within:
        return SideOutcome.SAME
    if low > 1:
        return SideOutcome.FASTER
    if high < 1:
        return SideOutcome.SLOWER
    return SideOutcome.INCONCLUSIVE


def _runs_and_session_means(sessions: Sequence[SessionRuns]) -> tuple[_Sides, _Sides]:
    """The samples of runs and of session means; what sides of the same sessions differ by is one session."""
    measured: list[float] = []
    baseline: list[float] = []
    measured_means: list[float] = []
    baseline_means: list[float] = []
    shared = 0
    for session in sessions:
        measured.extend(session.measured)
        baseline.extend(session.baseline)
        if session.measured:
            measured_means.append(_mean(_logarithms(session.measured)))
        if session.baseline:
            baseline_means.append(_mean(_logarithms(session.baseline)))
        if session.measured and session.baseline:
            shared += 1
    runs = _Sides(_sample(_logarithms(measured)), _sample(_logarithms(baseline)))
    if _have_same_sessions(sessions, len(measured), len(baseline)):
        return runs, _Sides(_Sample(1, runs.measured.mean, 0.0), _Sample(1, runs.baseline.mean, 0.0), shared=1)
    return runs, _Sides(_sample(measured_means), _sample(baseline_means), shared)


def _have_same_sessions(sessions: Sequence[SessionRuns], measured: int, baseline: int) -> bool:
    """Whether each session has the same share of both sides; `measured` and `baseline`: their numbers of runs."""
    return all(len(session.measured) * baseline == len(session.baseline) * measured for session in sessions)


def _logarithms(rates: Sequence[float]) -> list[float]:
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(f"a side needs positive rates, not {list(rates)}")
    return [math.log(rate) for rate in rates]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _sample(values: Sequence[float]) -> _Sample:
    mean = _mean(values)
    return _Sample(len(values), mean, math.fsum((value - mean) ** 2 for value in values))


def _runs_a_session(runs: _Sample, means: _Sample) -> int:
    return max(1, round(runs.size / means.size))


def _decides(runs: _Sides, means: _Sides, within: float, prior: Prior) -> bool:
    half, _ = _half_width(runs, means, prior)
    return side_outcome(_interval(means.difference, half), within) is not SideOutcome.INCONCLUSIVE


def _interval(difference: float, half: float) -> tuple[float, float]:
    return math.exp(difference - half), math.exp(difference + half)


def _half_width(runs: _Sides, means: _Sides, prior: Prior) -> tuple[float, str]:
    """Of the difference of the two means, at most WIDEST, and how it was found."""
    count = f"{runs.measured.size} and {runs.baseline.size} runs"
    if means.df == 0:
        half, method = _half_width_by_runs(runs, means, prior)
    else:
        half, method = _half_width_by_sessions(runs, means, prior)
        count = f"{count} of {means.measured.size} and {means.baseline.size} sessions"
    return min(half, WIDEST), f"{count}, {method}"


def _half_width_by_runs(runs: _Sides, means: _Sides, prior: Prior) -> tuple[float, str]:
    if runs.fewest > 1:
        half, method = _welch(runs.measured, runs.baseline), "Welch t"
        if runs.fewest < RUNS_FOR_STUDENT:
            half = max(half, t_two_sided(LEVEL, runs.df) * runs.spread * runs.factor)
    else:
        half, method = _predictive(runs, prior)
        for side in (runs.measured, runs.baseline):
            if side.size >= RUNS_FOR_STUDENT:
                half = max(half, t_two_sided(LEVEL, side.size - 1) * math.sqrt(side.variance) * runs.factor)
    between = prior.session or SESSION_SPREAD
    part = between.half_width(LEVEL) * means.factor
    if runs.fewest == 1 and prior.session is None:
        return max(half, part), method
    return math.hypot(half, part), f"{method}{with_sessions(between, means.factor)}"


def _half_width_by_sessions(runs: _Sides, means: _Sides, prior: Prior) -> tuple[float, str]:
    between = prior.session or SESSION_SPREAD
    pooled = between.pooled(means.squares, means.df)
    half_widths = [
        (pooled.half_width(LEVEL) * means.factor, str(pooled)),
        (_by_spread(means, between.df), f"Student t between sessions {means.spread:.1%}"),
    ]
    if runs.fewest > 1:
        half_widths.append((_by_spread(runs, math.inf), f"Student t between runs {runs.spread:.1%}"))
    else:
        half_widths.append((_by_spread(runs, prior.df), f"Student t between runs {runs.spread:.1%}"))
        half_widths.append(_predictive(runs, prior))
    return max(half_widths)


def _by_spread(sides: _Sides, prior_df: float) -> float:
    """Student's half-width by the spread that the values show, no wider than that of one value on each side."""
    if sides.squares <= 0:
        return 0.0
    one_each = t_two_sided(LEVEL, prior_df) * math.sqrt(2)
    return min(t_two_sided(LEVEL, _effective_df(sides)) * sides.factor, one_each) * sides.spread


def _effective_df(sides: _Sides) -> float:
    """Satterthwaite's degrees of freedom of the pooled variance: as many as `df` if both sides spread alike."""
    total = 0.0
    for side in (sides.measured, sides.baseline):
        if side.size > 1:
            total += side.squares**2 / (side.size - 1)
    return sides.squares**2 / total


def _predictive(runs: _Sides, prior: Prior) -> tuple[float, str]:
    df = prior.df + runs.df
    half = t_two_sided(LEVEL, df) * math.sqrt((prior.df * prior.spread**2 + runs.squares) / df) * runs.factor
    return half, f"predictive t, spread between runs {prior.spread:.1%} ({prior.source})"


def _welch(a: _Sample, b: _Sample) -> float:
    x, y = a.variance / a.size, b.variance / b.size
    if x + y <= 0:
        return 0.0
    df = (x + y) ** 2 / (x**2 / (a.size - 1) + y**2 / (b.size - 1))
    return t_two_sided(LEVEL, df) * math.sqrt(x + y)
