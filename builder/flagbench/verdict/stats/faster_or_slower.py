"""Compare the runs of two sides: is the measured side faster or slower than the baseline, or the same?

`interval` calls `compare_sides` for each speed of a baseline, and `judge` calls `classify_sides` and
`count_further_on_each_side`.

In words: the ratio of the two mean speeds gets a 95 % interval, and the interval decides. If all of it is within the
tolerance of 1, the sides are the SAME. If it lies above 1, the measured side is FASTER, below 1 SLOWER. Otherwise
there are too few runs to decide: INCONCLUSIVE. How wide the interval is follows from how much runs of the same side
differ. Few runs show that badly, so what earlier runs showed, the prior of `between`, counts with them.

A session is a group of runs of one machine that began within two hours of each other. Runs of one session have the
temperature and the neighbours of that session in common, so they differ by less than runs of different sessions do.
With several sessions on a side, the session and not the run is therefore the observation.

All is computed on logarithms of rates, whose differences are ratios. SAME is decided first, by equivalence: the whole
interval lies within the tolerance (two one-sided tests, Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics
15, 1987, here at 2.5 % each, so that one interval serves all outcomes).

One session on each side: each run counts as one observation (`_half_width_by_runs`).
- Two runs or more on both sides: Welch's t interval (Biometrika 34, 1947), which lets the sides have different
  spreads. With fewer than five runs on a side it is too narrow if the numbers of runs differ. So it is then at least
  as wide as Student's interval, in which both sides have the same spread.
- One run on a side: a predictive t interval, in which the variance of both sides is pooled with the prior. It is
  never narrower than the spread of five or more runs on the other side allows, so that a prior that is too small does
  not raise a false alarm.
- Sides of different sessions also differ by the spread between sessions: its half-width is added in quadrature. With
  one run on a side the default prior covers it, and the interval is never narrower than this half-width.

Several sessions on a side: each session's mean counts as one observation (`_half_width_by_sessions`; Kalibera and
Jones, Rigorous benchmarking in reasonable time, ISMM 2013; for clusters in general Donner and Klar, Design and
Analysis of Cluster Randomization Trials, 2000). With k and m sessions, A and B the sums of the squared deviations of
their means from that of their side, df = k + m - 2, f = sqrt(1/k + 1/m), less if the sides share sessions, and the
prior s0 on df0 degrees of freedom of `between`:

  s^2 = (df0 s0^2 + A + B) / (df0 + df)     pooled with the prior; s = s0 if that is an assumption
  S^2 = (A + B) / df                        what the sessions show, on v = (A + B)^2 / (A^2/(k - 1) + B^2/(m - 1))
  half-width = max(f t(df0 + df) s, min(f t(v), sqrt(2) t(df0)) S)

The second term is Student's interval with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946). It is
there so that a prior that is too small does not raise a false alarm. For few sessions it is no wider than the
interval of one session on each side with the spread S: with the same means and spreads, further sessions only narrow
the interval. The half-width is also computed with runs in place of sessions (with the prior between runs only if a
side has one run), and the wider interval is used.

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
    session_clause,
)
from flagbench_core.stats.student import t_two_sided

WITHIN = 0.02
"""The default tolerance of SAME: a ratio that differs from 1 by no more counts as the same speed.

It is a choice, as large as the spread between runs that DEFAULT assumes.
"""


class SideOutcome(str, Enum):
    """The outcome of comparing the measured side with the baseline."""

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
    """The 95 % interval of the ratio."""
    method: str
    """How the interval was computed, in words."""


class Further(NamedTuple):
    """The number of further runs, or sessions, on each side that would decide."""

    more: int
    unit: Literal["run", "session"]


class _HalfWidth(NamedTuple):
    """The half-width of the difference of two mean logarithms, and how it was computed.

    The greatest of several, as Python compares tuples, is the widest one: `half` comes first.
    """

    half: float
    method: str
    """The method in words, as a verdict shows it."""


class _Sample(NamedTuple):
    """The observations of one side: the logarithms of its runs' rates, or the means of those of each session."""

    size: int
    """The number of observations."""
    mean: float
    squares: float
    """The sum of squared deviations from the mean."""

    @property
    def variance(self) -> float:
        """The variance of one observation; defined from two observations on."""
        return self.squares / (self.size - 1)

    def extended(self, more: int, variance: float) -> _Sample:
        """Return a sample with `more` observations added, the same mean and this variance."""
        size = self.size + more
        return _Sample(size, self.mean, (size - 1) * variance)


class _Sides(NamedTuple):
    """The observations of both sides: their runs, or the means of their sessions."""

    measured: _Sample
    baseline: _Sample
    shared: int = 0
    """The number of sessions in which both sides have runs."""

    @property
    def df(self) -> int:
        """The degrees of freedom of the spread within the sides."""
        return self.measured.size + self.baseline.size - 2

    @property
    def squares(self) -> float:
        """The sum of squared deviations, each from the mean of its side."""
        return self.measured.squares + self.baseline.squares

    @property
    def spread(self) -> float:
        """The standard deviation of one observation about the mean of its side; defined if `df` is not 0."""
        return math.sqrt(self.squares / self.df)

    @property
    def smaller_size(self) -> int:
        """The number of observations on the side that has fewer."""
        return min(self.measured.size, self.baseline.size)

    @property
    def difference(self) -> float:
        """The mean of the measured side minus that of the baseline."""
        return self.measured.mean - self.baseline.mean

    @property
    def factor(self) -> float:
        """The standard deviation of the difference of the means, relative to that of one observation.

        It is sqrt(1/k + 1/m) for k and m independent observations. A shared session has the same deviation on both
        sides, which cancels in the difference.
        """
        k = self.measured.size
        m = self.baseline.size
        return math.sqrt(max(0.0, 1 / k + 1 / m - 2 * self.shared / (k * m)))

    def extended(self, measured: int, baseline: int, variance: float) -> _Sides:
        """Return the sides with observations added, the same means and this variance.

        Sides that share all their sessions share the further ones, too.

        Args:
            measured: the number of observations to add to the measured side.
            baseline: the number of observations to add to the baseline.
            variance: the variance of one observation of the result.
        """
        shared = self.shared
        if shared == self.measured.size == self.baseline.size:
            shared += measured
        more_measured = self.measured.extended(measured, variance)
        more_baseline = self.baseline.extended(baseline, variance)
        return _Sides(more_measured, more_baseline, shared)


class _Observations(NamedTuple):
    """Both sides by run and by session."""

    runs: _Sides
    means: _Sides
    """The means of the sessions; one on each side if both sides have the same sessions in equal parts."""


def compare_sides(sessions: Sequence[SessionRuns], *, least: float = 0.0, prior: Prior = DEFAULT) -> SidesRatio:
    """Compare the rates of the measured runs with those of the baseline.

    Args:
        sessions: the rates of each session; in all, at least one run on each side.
        least: the relative half-width that the intervals within the runs give the ratio. With one run on a side, the
            interval of the result is at least as wide.
        prior: the spread between runs, and that between sessions.

    Raises:
        ValueError: a rate is not positive, or a side has none.
    """
    observations = _collect_observations(sessions)
    width = _half_width(observations, prior)
    half = width.half
    if observations.runs.smaller_size == 1:
        half = min(max(half, least), WIDEST)
    difference = observations.means.difference
    return SidesRatio(math.exp(difference), _interval(difference, half), width.method)


def count_further_on_each_side(
    sessions: Sequence[SessionRuns], *, within: float = WITHIN, prior: Prior = DEFAULT
) -> Further | None:
    """Return the number of further runs or sessions on each side, with the same means and spreads, that would decide.

    More runs of the present sessions are counted if each side has one session and such runs can decide. Otherwise
    further sessions are counted, of as many runs as each has now. None if more than MOST_RUNS would be needed.
    """
    observations = _collect_observations(sessions)
    runs = observations.runs
    means = observations.means
    if means.df > 0:
        return _count_further_sessions(observations, runs.spread**2, means.spread**2, within, prior)
    variance = prior.spread**2
    if runs.smaller_size > 1:
        variance = runs.spread**2
    for more in range(1, MOST_RUNS + 1):
        more_runs = runs.extended(more, more, variance)
        if _decides(_Observations(more_runs, means), within, prior):
            return Further(more, "run")
    if means.shared:  # both sides have the same session, and so would further runs
        return None
    # One session on each side does not show the spread between sessions, so that of the prior is assumed.
    between = prior.session or SESSION_SPREAD
    variance_between = between.spread**2
    mean_runs_of_a_side = (runs.measured.size + runs.baseline.size) / 2
    variance_of_means = variance_between + variance / mean_runs_of_a_side
    return _count_further_sessions(observations, variance_between + variance, variance_of_means, within, prior)


def _count_further_sessions(
    observations: _Observations, variance_of_runs: float, variance_of_means: float, within: float, prior: Prior
) -> Further | None:
    """Return the number of further sessions on each side that would decide, of as many runs as each has now.

    Args:
        observations: the present runs and sessions.
        variance_of_runs: the variance of one run about the mean of its side.
        variance_of_means: the variance of the mean of one session about the mean of its side.
        within: the tolerance of SAME.
        prior: the spread between runs, and that between sessions.
    """
    runs = observations.runs
    means = observations.means
    measured = _mean_runs_of_session(runs.measured, means.measured)
    baseline = _mean_runs_of_session(runs.baseline, means.baseline)
    for more in range(1, MOST_RUNS + 1):
        more_runs = runs.extended(more * measured, more * baseline, variance_of_runs)
        more_means = means.extended(more, more, variance_of_means)
        if _decides(_Observations(more_runs, more_means), within, prior):
            return Further(more, "session")
    return None


def classify_sides(interval: tuple[float, float], within: float = WITHIN) -> SideOutcome:
    """Return the outcome for the interval of a ratio.

    SAME goes before FASTER and SLOWER: a difference that many runs prove, and that is within the tolerance, is of no
    use to a reader.
    """
    low, high = interval
    if low >= 1 - within and high <= 1 + within:
        return SideOutcome.SAME
    if low > 1:
        return SideOutcome.FASTER
    if high < 1:
        return SideOutcome.SLOWER
    return SideOutcome.INCONCLUSIVE


def _collect_observations(sessions: Sequence[SessionRuns]) -> _Observations:
    """Return the observations by run and by session.

    Sides of the same sessions in equal parts are treated as if they shared one session.
    """
    measured: list[float] = []
    baseline: list[float] = []
    measured_means: list[float] = []
    baseline_means: list[float] = []
    shared = 0
    for session in sessions:
        measured.extend(session.measured)
        baseline.extend(session.baseline)
        if session.measured:
            logarithms = _logarithms(session.measured)
            measured_means.append(_mean(logarithms))
        if session.baseline:
            logarithms = _logarithms(session.baseline)
            baseline_means.append(_mean(logarithms))
        if session.measured and session.baseline:
            shared += 1
    runs = _Sides(_sample(_logarithms(measured)), _sample(_logarithms(baseline)))
    if _have_same_sessions(sessions, len(measured), len(baseline)):
        one_measured = _Sample(1, runs.measured.mean, 0.0)
        one_baseline = _Sample(1, runs.baseline.mean, 0.0)
        return _Observations(runs, _Sides(one_measured, one_baseline, shared=1))
    return _Observations(runs, _Sides(_sample(measured_means), _sample(baseline_means), shared))


def _have_same_sessions(sessions: Sequence[SessionRuns], measured: int, baseline: int) -> bool:
    """Whether each session has the same share of the runs of both sides.

    `measured` and `baseline` are the numbers of runs of each side in all sessions.
    """
    # The shares are compared by cross-multiplication, in exact integers.
    return all(len(session.measured) * baseline == len(session.baseline) * measured for session in sessions)


def _logarithms(rates: Sequence[float]) -> list[float]:
    """Return the logarithm of each rate. Raises ValueError if there is none, or one is not positive and finite."""
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(f"a side needs positive rates, not {list(rates)}")
    return [math.log(rate) for rate in rates]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _sample(values: Sequence[float]) -> _Sample:
    """Return the size, mean and squared deviations of one side's logarithms."""
    mean = _mean(values)
    return _Sample(len(values), mean, math.fsum((value - mean) ** 2 for value in values))


def _mean_runs_of_session(runs: _Sample, means: _Sample) -> int:
    """Return the mean number of runs in a session of one side, rounded, at least 1."""
    return max(1, round(runs.size / means.size))


def _decides(observations: _Observations, within: float, prior: Prior) -> bool:
    """Whether these observations would give FASTER, SLOWER or SAME."""
    width = _half_width(observations, prior)
    interval = _interval(observations.means.difference, width.half)
    return classify_sides(interval, within) is not SideOutcome.INCONCLUSIVE


def _interval(difference: float, half: float) -> tuple[float, float]:
    """Return the interval of a ratio from the difference of two mean logarithms and its half-width."""
    return math.exp(difference - half), math.exp(difference + half)


def _half_width(observations: _Observations, prior: Prior) -> _HalfWidth:
    """Return the half-width of the difference of the two means, at most WIDEST."""
    runs = observations.runs
    means = observations.means
    sizes = f"{runs.measured.size} and {runs.baseline.size} runs"
    if means.df == 0:  # one session on each side
        width = _half_width_by_runs(runs, means, prior)
    else:
        width = _half_width_by_sessions(runs, means, prior)
        sizes = f"{sizes} of {means.measured.size} and {means.baseline.size} sessions"
    return _HalfWidth(min(width.half, WIDEST), f"{sizes}, {width.method}")


def _half_width_by_runs(runs: _Sides, means: _Sides, prior: Prior) -> _HalfWidth:
    """Return the half-width with one session on each side, where the run is the observation."""
    if runs.smaller_size > 1:
        method = "Welch t"
        half = _welch_half_width(runs.measured, runs.baseline)
        if runs.smaller_size < RUNS_FOR_STUDENT:
            students_half = t_two_sided(LEVEL, runs.df) * runs.spread * runs.factor
            half = max(half, students_half)
    else:
        half, method = _predictive_half_width(runs, prior)
        for side in (runs.measured, runs.baseline):
            if side.size >= RUNS_FOR_STUDENT:
                spread = math.sqrt(side.variance)
                half_of_side = t_two_sided(LEVEL, side.size - 1) * spread * runs.factor
                half = max(half, half_of_side)
    between = prior.session or SESSION_SPREAD
    half_of_sessions = between.half_width(LEVEL) * means.factor
    if runs.smaller_size == 1 and prior.session is None:
        # The spread of the prior covers that between sessions, so adding it would count it twice.
        return _HalfWidth(max(half, half_of_sessions), method)
    return _HalfWidth(math.hypot(half, half_of_sessions), f"{method}{session_clause(between, means.factor)}")


def _half_width_by_sessions(runs: _Sides, means: _Sides, prior: Prior) -> _HalfWidth:
    """Return the half-width with several sessions on a side: the widest of those that the module lists."""
    between = prior.session or SESSION_SPREAD
    pooled = between.pooled(means.squares, means.df)
    by_runs = f"Student t between runs {runs.spread:.1%}"
    widths = [
        _HalfWidth(pooled.half_width(LEVEL) * means.factor, str(pooled)),
        _HalfWidth(_student_half_width(means, between.df), f"Student t between sessions {means.spread:.1%}"),
    ]
    if runs.smaller_size > 1:
        widths.append(_HalfWidth(_student_half_width(runs, math.inf), by_runs))
    else:
        widths.append(_HalfWidth(_student_half_width(runs, prior.df), by_runs))
        widths.append(_predictive_half_width(runs, prior))
    return max(widths)


def _student_half_width(sides: _Sides, prior_df: float) -> float:
    """Return Student's half-width by the spread that the observations show; 0 if they show none.

    It is at most that of one observation on each side with this spread, known on `prior_df` degrees of freedom.
    """
    if sides.squares <= 0:
        return 0.0
    most_errors = t_two_sided(LEVEL, prior_df) * math.sqrt(2)
    errors = t_two_sided(LEVEL, _effective_df(sides)) * sides.factor
    return min(errors, most_errors) * sides.spread


def _effective_df(sides: _Sides) -> float:
    """Return Satterthwaite's degrees of freedom of the pooled variance: equal to `df` if both sides spread alike."""
    total = 0.0
    for side in (sides.measured, sides.baseline):
        if side.size > 1:
            total += side.squares**2 / (side.size - 1)
    return sides.squares**2 / total


def _predictive_half_width(runs: _Sides, prior: Prior) -> _HalfWidth:
    """Return the half-width by the spread of the runs pooled with the prior between runs."""
    df = prior.df + runs.df
    spread = math.sqrt((prior.df * prior.spread**2 + runs.squares) / df)
    method = f"predictive t, spread between runs {prior.spread:.1%} ({prior.source})"
    return _HalfWidth(t_two_sided(LEVEL, df) * spread * runs.factor, method)


def _welch_half_width(a: _Sample, b: _Sample) -> float:
    """Return Welch's half-width of the difference of two means, whose observations may have different spreads."""
    variance_a = a.variance / a.size
    variance_b = b.variance / b.size
    variance = variance_a + variance_b
    if variance <= 0:
        return 0.0
    df = variance**2 / (variance_a**2 / (a.size - 1) + variance_b**2 / (b.size - 1))
    return t_two_sided(LEVEL, df) * math.sqrt(variance)
