"""The interval of a value over one or more runs of one side: the run is the unit, and a session more than its runs.

Two runs of one program differ by more than the steps within a run do: memory layout, clocks and placement are drawn
once for a run (Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013). So the interval comes from
the spread between runs. Five runs or more show it themselves: mean and Student's t. Fewer do not, so their variance
is pooled with a prior, which counts as a number of earlier deviations:

  s^2 = (df0 s0^2 + sum((x - mean(x))^2)) / (df0 + n - 1)      half-width = t(df0 + n - 1) s / sqrt(n)

with x the logarithm of a run's value, so that the interval is that of a ratio. It is the interval of a normal mean
under a scaled inverse chi-square prior of the variance (Gelman et al., Bayesian Data Analysis, 3rd edition, 3.3).

What is drawn once for a session, such as temperature, neighbours and a driver's state, no number of its runs shows.
The default prior covers it, and no interval is narrower. Where the spread is that of runs alone, of five or more or
of a history, the half-width of a session's part is added in quadrature (Zou and Donner, Statistics in Medicine 27,
2008).

The intervals within the runs are part of that spread and are not added to it. They bound it: the mean of runs is
never taken to be known better than their own windows say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from flagbench_core.stats.student import t_two_sided

LEVEL = 0.95
RUNS_FOR_STUDENT = 5
"""From this many runs on, their own spread is enough."""
MOST_RUNS = 100
"""The most runs that are advised."""
LEAST_SPREAD = 0.0025
"""A history's spread between runs is at least this: a few that agree by chance would raise alarms."""
LEAST_SESSION_SPREAD = 0.0075
"""A store's own spread between sessions counts for at least this: its sessions may all be of one week."""
SESSIONS_FOR_SPREAD = 5
"""From this many sessions of a machine on, a store has a spread between them of its own."""
WIDEST = 10.0
"""The largest half-width of an interval of logarithms: a factor of 22,000 decides nothing. The ends stay finite for
any rates that a record may have."""
MOST_DF = 30.0
"""Degrees of freedom that a history counts for at most: earlier runs do not have quite the spread of new ones."""


class SessionSpread(NamedTuple):
    """The standard deviation between sessions, relative to their mean."""

    spread: float
    df: float = math.inf
    source: str = "default"

    def half_width(self, level: float) -> float:
        """Of the interval of one session."""
        least = LEAST_SESSION_SPREAD * t_two_sided(level, math.inf)
        return max(self.spread * t_two_sided(level, self.df), least)

    def pooled(self, squares: float, df: int) -> SessionSpread:
        """With `df` squared deviations of session means pooled, of logarithms; the same if it is an assumption."""
        if math.isinf(self.df):
            return self
        total = self.df + df
        spread = math.sqrt((self.df * self.spread**2 + squares) / total)
        return SessionSpread(spread, total, f"{self.source}, and these")

    def __str__(self) -> str:
        """Spread and source, as the method of an interval states them."""
        return f"between sessions {max(self.spread, LEAST_SESSION_SPREAD):.1%} ({self.source})"


SESSION_SPREAD = SessionSpread(0.01)
"""An assumption, not a measurement."""


class Prior(NamedTuple):
    """The spread between runs that is known beforehand."""

    spread: float
    """The standard deviation of runs, relative to their mean."""
    df: float
    """The degrees of freedom that it counts for."""
    source: str = "default"
    session: SessionSpread | None = None
    """The spread between sessions; None if `spread` covers it."""


DEFAULT = Prior(0.02, 10.0)
"""An assumption, not a measurement. With 10 degrees of freedom the true spread may be 1.4 % to 3.5 % (95 %)."""


class OverRuns(NamedTuple):
    """The interval of a mean over runs."""

    value: float
    interval: tuple[float, float]
    spread: float
    """The standard deviation between runs that it rests on, relative."""
    method: str


def history_prior(sessions: Iterable[Sequence[float]], sessions_of_machine: Sequence[Sequence[float]] = ()) -> Prior:
    """A prior from earlier runs; the default for fewer than five.

    Args:
        sessions: positive values of runs, by session: those of one differ by nothing but the spread between runs.
        sessions_of_machine: the sessions of the machine that the prior is for.
    """
    df = 0
    deviations = []
    for session in sessions:
        deviations.append(_squares([math.log(value) for value in session]))
        df += max(0, len(session) - 1)
    squares = math.fsum(deviations)
    if df < RUNS_FOR_STUDENT - 1:  # such as a run a night: their spread is that of sessions, so of this machine
        runs: list[float] = []
        for session in sessions_of_machine:
            runs.extend(math.log(value) for value in session)
        squares, df = _squares(runs), len(runs) - 1
    if df < RUNS_FOR_STUDENT - 1:
        return DEFAULT
    spread = max(LEAST_SPREAD, math.sqrt(squares / df))
    source = f"{df} deviations of earlier runs"
    return Prior(spread, min(MOST_DF, df), source, _between_sessions(sessions_of_machine))


def _between_sessions(sessions: Sequence[Sequence[float]]) -> SessionSpread:
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
    """The interval of the mean of one or more runs; None if a value is not positive or not finite.

    From five runs on it is Student's on the values as they are, which may be negative.

    Args:
        values: the value of each run.
        within: the half-width of the 95 % interval within each run, in the values' unit, 0 where it is not known;
            used under five runs.
        prior: the spread between runs, used under five runs, and that between sessions.
        session: the share of a session's deviation in the mean: 1 if all runs are of one session, less for several,
            and 0 for what does not differ between sessions.
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n >= RUNS_FOR_STUDENT:
        return _student(values, mean, prior, level, session)
    if not all(0 < value < math.inf for value in values):
        return None
    squares = _squares([math.log(value) for value in values])
    spread, half = _half_width(n, squares, _least(within, mean), prior, level, session)
    factor = math.exp(min(half, WIDEST))
    runs = "one run" if n == 1 else f"{n} runs"
    method = f"{runs}, spread between runs {prior.spread:.1%} ({prior.source}){with_sessions(prior.session, session)}"
    return OverRuns(mean, (mean / factor, mean * factor), spread, method)


def _student(values: Sequence[float], mean: float, prior: Prior, level: float, session: float) -> OverRuns | None:
    """The interval of five runs or more, by their own spread and that between sessions."""
    if not math.isfinite(mean):
        return None
    n = len(values)
    deviation = math.sqrt(_squares(values) / (n - 1))
    between = prior.session or SESSION_SPREAD
    half_of_runs = t_two_sided(level, n - 1) * deviation / math.sqrt(n)
    half = math.hypot(half_of_runs, mean * between.half_width(level) * session)
    spread = deviation / abs(mean) if mean else math.inf
    method = f"between {n} runs, Student t{with_sessions(between, session)}"
    return OverRuns(mean, (mean - half, mean + half), spread, method)


def further_runs(
    decided: Callable[[float, float], bool],
    values: Sequence[float],
    within: Sequence[float] = (),
    prior: Prior = DEFAULT,
    session: float = 1.0,
    apart: bool = False,
) -> int | None:
    """How many more runs with the same mean, spread and windows would decide; None if more than MOST_RUNS in all.

    Args:
        decided: whether an interval, relative to the mean, decides.
        values: the runs so far.
        within, prior, session: as for `over_runs`; runs spread by no less than their windows let them.
        apart: whether each further run is of a session of its own.
    """
    over = over_runs(values, (), prior, LEVEL, session)
    if over is None or not math.isfinite(over.spread):
        return None
    n = len(values)
    least = _least(within, over.value)
    for runs in range(n + 1, MOST_RUNS + 1):
        share = session
        if apart:
            share = math.hypot(session * n, math.sqrt(runs - n)) / runs
        _, half = _half_width(runs, (runs - 1) * over.spread**2, least, prior, LEVEL, share)
        factor = math.exp(min(half, WIDEST))
        if decided(1 / factor, factor):
            return runs - n
    return None


def _half_width(
    runs: int, squares: float, least: float, prior: Prior, level: float, session: float
) -> tuple[float, float]:
    """The spread of runs and the half-width of their mean, from their squared deviations in all; of logarithms.

    `least`: the half-width of the 95 % interval of a run that its window alone gives.
    """
    if runs >= RUNS_FOR_STUDENT:
        df = float(runs - 1)
        spread = math.sqrt(squares / df)
    else:
        df = prior.df + runs - 1
        spread = math.sqrt((prior.df * prior.spread**2 + squares) / df)
    half_of_runs = t_two_sided(level, df) * max(spread, least / t_two_sided(LEVEL, df)) / math.sqrt(runs)
    between = (prior.session or SESSION_SPREAD).half_width(level) * session
    if runs < RUNS_FOR_STUDENT and prior.session is None:
        return spread, max(half_of_runs, between)
    return spread, math.hypot(half_of_runs, between)


def _least(within: Sequence[float], mean: float) -> float:
    """The half-width of a run's own window, relative; of several, the root of the mean square of those not 0."""
    widths = [width / mean for width in within if width]
    if not widths:
        return 0.0
    return math.hypot(*widths) / math.sqrt(len(widths))


def with_sessions(between: SessionSpread | None, session: float) -> str:
    """What the method of an interval says of a session's part, if it has one."""
    if between is None or not session:
        return ""
    return f", {between}"


def _squares(values: Sequence[float]) -> float:
    """The sum of squared deviations from the mean."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)
