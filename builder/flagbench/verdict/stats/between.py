"""The interval of a value over one or more runs under the same conditions.

`interval` calls `over_runs` for each metric, and `judge` asks `count_further_runs` how many more runs would decide.

Two runs of one program differ by more than the steps within a run do: memory layout, clocks and placement are drawn
once for a run (Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013). So the interval comes from
the spread between runs. Five runs or more show it themselves: mean and Student's t. Fewer do not, so their variance
is pooled with a prior, which counts as a number of earlier deviations:

  s^2 = (df0 s0^2 + sum((x - mean(x))^2)) / (df0 + n - 1)      half-width = t(df0 + n - 1) s / sqrt(n)

with x the logarithm of a run's value, so that the interval is that of a ratio. It is the interval of a normal mean
under a scaled inverse chi-square prior of the variance (Gelman et al., Bayesian Data Analysis, 3rd edition, 3.3).

Runs of one machine that began within two hours of each other form a session. Temperature, neighbours and a driver's
state are drawn once for a session, so no number of its runs shows their spread. The default prior covers that spread,
and the interval is never narrower than a session's part. A spread of runs alone (measured from five runs on, or by
earlier runs) does not cover it: then the half-width of a session's part is added in quadrature (Zou and Donner,
Statistics in Medicine 27, 2008).

Each run also has an interval of its own, from the steps of its window. That uncertainty is already part of the spread
between runs, so it is not added, but it is a lower bound: the mean of runs is never known better than their own
windows say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from flagbench_core.stats.student import t_two_sided

LEVEL = 0.95
"""The level of the intervals that are reported."""
RUNS_FOR_STUDENT = 5
"""From this many runs on, their own spread is used instead of a prior. With four, Student's t would be 3.2."""
MOST_RUNS = 100
"""The most runs that are advised: nobody would wait for more."""
LEAST_SPREAD = 0.0025
"""The least spread between runs of a history, relative: a few runs that agree by chance would raise false alarms."""
LEAST_SESSION_SPREAD = 0.0075
"""The least spread between the sessions of a store, relative: its sessions may all be of one week."""
SESSIONS_FOR_SPREAD = 5
"""From this many sessions of a machine on, a store uses their own spread instead of SESSION_SPREAD."""
WIDEST = 10.0
"""The largest half-width of an interval of logarithms: a factor of 22,000 decides nothing, and the ends stay finite
for any rates that a record may have."""
MOST_DF = 30.0
"""The most degrees of freedom that a history counts for: earlier runs do not have quite the spread of new ones."""


class SessionSpread(NamedTuple):
    """The spread between sessions that is known beforehand."""

    spread: float
    """The standard deviation between sessions, relative to their mean."""
    df: float = math.inf
    """The degrees of freedom that it counts for; infinite for an assumption, which measurements do not change."""
    source: str = "default"
    """Where the spread comes from, as the method of an interval states it."""

    def half_width(self, level: float) -> float:
        """Return the half-width of the interval of one session at a level, relative to its mean."""
        least = LEAST_SESSION_SPREAD * t_two_sided(level, math.inf)
        return max(self.spread * t_two_sided(level, self.df), least)

    def pooled(self, squares: float, df: int) -> SessionSpread:
        """Return the spread pooled with measured session means; an assumption stays as it is.

        Args:
            squares: the sum of the squared deviations of their logarithms.
            df: the degrees of freedom of that sum.
        """
        if math.isinf(self.df):
            return self
        total = self.df + df
        spread = math.sqrt((self.df * self.spread**2 + squares) / total)
        return SessionSpread(spread, total, f"{self.source}, and these")

    def __str__(self) -> str:
        """Return spread and source, as the method of an interval states them."""
        return f"between sessions {max(self.spread, LEAST_SESSION_SPREAD):.1%} ({self.source})"


SESSION_SPREAD = SessionSpread(0.01)
"""The spread between sessions of a store that has too few of them: an assumption, not a measurement."""


class Prior(NamedTuple):
    """The spread between runs that is known beforehand."""

    spread: float
    """The standard deviation of runs, relative to their mean."""
    df: float
    """The degrees of freedom that it counts for."""
    source: str = "default"
    """Where the spread comes from, as the method of an interval states it."""
    session: SessionSpread | None = None
    """The spread between sessions; None if `spread` covers it."""


DEFAULT = Prior(0.02, 10.0)
"""The prior without a history: an assumption, not a measurement. With 10 degrees of freedom the true spread may be
1.4 % to 3.5 % (95 %)."""


class OverRuns(NamedTuple):
    """The mean of runs and its interval, both in the unit of the values."""

    value: float
    interval: tuple[float, float]
    spread: float
    """The standard deviation between runs that the interval rests on, relative to the mean."""
    method: str
    """How the interval was computed, in words."""


class _MeanWidth(NamedTuple):
    """The spread of runs and the half-width of their mean, both of logarithms."""

    spread: float
    half_width: float


def history_prior(sessions: Iterable[Sequence[float]], sessions_of_machine: Sequence[Sequence[float]] = ()) -> Prior:
    """Return a prior from earlier runs, or DEFAULT if they are fewer than five.

    Args:
        sessions: positive values of runs, by session: runs of one session differ by the spread between runs only.
        sessions_of_machine: those of the sessions that are of the machine that the prior is for.
    """
    df = 0
    deviations = []
    for session in sessions:
        deviations.append(_squares([math.log(value) for value in session]))
        df += max(0, len(session) - 1)
    squares = math.fsum(deviations)
    if df < RUNS_FOR_STUDENT - 1:
        # Sessions of one run each, such as a run a night. Their spread contains that between sessions, which is a
        # machine's own, so only runs of this machine count.
        runs: list[float] = []
        for session in sessions_of_machine:
            runs.extend(math.log(value) for value in session)
        squares = _squares(runs)
        df = len(runs) - 1
    if df < RUNS_FOR_STUDENT - 1:
        return DEFAULT
    spread = max(LEAST_SPREAD, math.sqrt(squares / df))
    source = f"{df} deviations of earlier runs"
    return Prior(spread, min(MOST_DF, df), source, _between_sessions(sessions_of_machine))


def _between_sessions(sessions: Sequence[Sequence[float]]) -> SessionSpread:
    """Return the spread between the sessions of a machine, or SESSION_SPREAD if they are too few."""
    means = []
    for session in sessions:
        if session:
            means.append(math.fsum(math.log(value) for value in session) / len(session))
    count = len(means)
    if count < SESSIONS_FOR_SPREAD:
        return SESSION_SPREAD
    return SessionSpread(math.sqrt(_squares(means) / (count - 1)), count - 1, f"{count} earlier sessions")


def over_runs(
    values: Sequence[float],
    within: Sequence[float] = (),
    prior: Prior = DEFAULT,
    level: float = LEVEL,
    session: float = 1.0,
) -> OverRuns | None:
    """Return the interval of the mean of one or more runs; None if a value is not positive or not finite.

    From five runs on it is Student's t interval of the values as they are, which may be negative.

    Args:
        values: the value of each run.
        within: the half-width of the 95 % interval within each run, in the values' unit, 0 if it is not known;
            used for fewer than five runs.
        prior: the spread between runs, used for fewer than five runs, and the spread between sessions.
        level: the level of the interval, such as 0.95.
        session: how much of a session's deviation is left in the mean: 1 if all runs are of one session, less for
            several, and 0 for a value that does not differ between sessions.
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n >= RUNS_FOR_STUDENT:
        return _student_interval(values, mean, prior, level, session)
    if not all(0 < value < math.inf for value in values):
        return None
    squares = _squares([math.log(value) for value in values])
    width = _mean_width(n, squares, _half_width_of_windows(within, mean), prior, level, session)
    factor = math.exp(min(width.half_width, WIDEST))
    runs = f"{n} runs"
    if n == 1:
        runs = "one run"
    between_runs = f"spread between runs {prior.spread:.1%} ({prior.source})"
    method = f"{runs}, {between_runs}{session_clause(prior.session, session)}"
    return OverRuns(mean, (mean / factor, mean * factor), width.spread, method)


def _student_interval(
    values: Sequence[float], mean: float, prior: Prior, level: float, session: float
) -> OverRuns | None:
    """Return the interval of five runs or more, by their own spread and that between sessions."""
    if not math.isfinite(mean):
        return None
    n = len(values)
    deviation = math.sqrt(_squares(values) / (n - 1))
    between = prior.session or SESSION_SPREAD
    half_of_runs = t_two_sided(level, n - 1) * deviation / math.sqrt(n)
    half = math.hypot(half_of_runs, mean * between.half_width(level) * session)
    spread = deviation / abs(mean) if mean else math.inf
    method = f"between {n} runs, Student t{session_clause(between, session)}"
    return OverRuns(mean, (mean - half, mean + half), spread, method)


def count_further_runs(
    is_decided: Callable[[float, float], bool],
    values: Sequence[float],
    within: Sequence[float] = (),
    prior: Prior = DEFAULT,
    session: float = 1.0,
    in_new_sessions: bool = False,
) -> int | None:
    """Return how many more runs with the same mean, spread and windows would decide.

    None if more than MOST_RUNS would be needed, those so far included.

    Args:
        is_decided: whether an interval, given by its two ends relative to the mean, decides.
        values: the value of each run so far.
        within: the half-widths within the runs, as for `over_runs`; the runs spread by at least as much.
        prior: as for `over_runs`.
        session: as for `over_runs`.
        in_new_sessions: whether each further run is in a session of its own.
    """
    over = over_runs(values, (), prior, LEVEL, session)
    if over is None or not math.isfinite(over.spread):
        return None
    n = len(values)
    least = _half_width_of_windows(within, over.value)
    for runs in range(n + 1, MOST_RUNS + 1):
        share = session
        if in_new_sessions:
            share = math.hypot(session * n, math.sqrt(runs - n)) / runs
        width = _mean_width(runs, (runs - 1) * over.spread**2, least, prior, LEVEL, share)
        factor = math.exp(min(width.half_width, WIDEST))
        if is_decided(1 / factor, factor):
            return runs - n
    return None


def _mean_width(runs: int, squares: float, least: float, prior: Prior, level: float, session: float) -> _MeanWidth:
    """Return the spread of runs and the half-width of their mean.

    Args:
        runs: the number of runs.
        squares: the sum of the squared deviations of their logarithms.
        least: the half-width of the 95 % interval that the window of a run alone gives it.
        prior: as for `over_runs`.
        level: as for `over_runs`.
        session: as for `over_runs`.
    """
    if runs >= RUNS_FOR_STUDENT:
        df = float(runs - 1)
        spread = math.sqrt(squares / df)
    else:
        df = prior.df + runs - 1
        spread = math.sqrt((prior.df * prior.spread**2 + squares) / df)
    least_spread = least / t_two_sided(LEVEL, df)
    half_of_runs = t_two_sided(level, df) * max(spread, least_spread) / math.sqrt(runs)
    between = prior.session or SESSION_SPREAD
    half_of_sessions = between.half_width(level) * session
    if runs < RUNS_FOR_STUDENT and prior.session is None:
        # The spread of the prior covers that between sessions, so adding it would count it twice.
        return _MeanWidth(spread, max(half_of_runs, half_of_sessions))
    return _MeanWidth(spread, math.hypot(half_of_runs, half_of_sessions))


def _half_width_of_windows(within: Sequence[float], mean: float) -> float:
    """Return the half-width that its own window gives a run, relative to the mean; 0 if no run has one.

    For several runs it is the root of the mean square of their half-widths.
    """
    widths = [width / mean for width in within if width]
    if not widths:
        return 0.0
    return math.hypot(*widths) / math.sqrt(len(widths))


def session_clause(between: SessionSpread | None, session: float) -> str:
    """Return the clause about sessions in the method of an interval; empty if sessions have no part in it."""
    if between is None or not session:
        return ""
    return f", {between}"


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)
