"""The interval of a value over one or more runs of one side: the run is the unit.

Two runs of one program differ by more than the steps within a run do: memory layout, clocks and placement are drawn
once for a run (Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013). So the interval comes from
the spread between runs. Five runs or more show it themselves: mean and Student's t. Fewer do not, so their variance
is pooled with a prior, which counts as a number of earlier deviations:

  s^2 = (df0 s0^2 + sum((x - mean(x))^2)) / (df0 + n - 1)      half-width = t(df0 + n - 1) s / sqrt(n)

with x the logarithm of a run's value, so that the interval is that of a ratio. It is the interval of a normal mean
under a scaled inverse chi-square prior of the variance (Gelman et al., Bayesian Data Analysis, 3rd edition, 3.3).
Where runs agree, another run always narrows it.

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
"""The most runs that are ever said to be needed."""
LEAST_SPREAD = 0.0025
"""A store's history of runs one after another misses what changes from day to day, so its spread is at least this."""
WIDEST = 10.0
"""The largest half-width of an interval of logarithms: a factor of 22,000 decides nothing. The ends stay finite for
any rates that a record may have."""
MOST_DF = 30.0
"""Degrees of freedom that a history counts for at most: earlier runs do not have quite the spread of new ones."""


class Prior(NamedTuple):
    """What is known beforehand of the spread between runs."""

    spread: float
    """The standard deviation of runs, relative to their mean."""
    df: float
    """The degrees of freedom that it counts for."""
    source: str = "default"


DEFAULT = Prior(0.02, 10.0)
"""An assumption, not a measurement. With 10 degrees of freedom the true spread may be 1.4 % to 3.5 % (95 %)."""


class OverRuns(NamedTuple):
    """The interval of a mean over runs."""

    value: float
    interval: tuple[float, float]
    spread: float
    """The standard deviation between runs that it rests on, relative."""
    method: str


def history_prior(groups: Iterable[Sequence[float]]) -> Prior:
    """A prior from earlier runs, topped up with the default where they have fewer degrees of freedom than it.

    Args:
        groups: positive values of runs; those of a group had the same machine and software, so that they differ by
            nothing but the spread between runs.
    """
    squares, df = 0.0, 0
    for group in groups:
        logs = [math.log(value) for value in group]
        squares += _squares(logs)
        df += max(0, len(logs) - 1)
    if not df:
        return DEFAULT
    assumed = max(0.0, DEFAULT.df - df)
    spread = math.sqrt((squares + assumed * DEFAULT.spread**2) / (df + assumed))
    source = f"{df} deviations of earlier runs" if df > 1 else "1 deviation of earlier runs"
    return Prior(max(LEAST_SPREAD, spread), min(MOST_DF, df + assumed), source)


def over_runs(
    values: Sequence[float], within: Sequence[float] = (), prior: Prior = DEFAULT, level: float = LEVEL
) -> OverRuns | None:
    """The interval of the mean of one or more runs; None if a value is not positive or not finite.

    From five runs on it is Student's on the values as they are, which may be negative.

    Args:
        values: the value of each run.
        within: the half-width of the 95 % interval within each run, in the values' unit; used under five runs.
        prior: the spread between runs; used under five runs.
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n >= RUNS_FOR_STUDENT:
        if not math.isfinite(mean):
            return None
        deviation = math.sqrt(_squares(values) / (n - 1))
        half = t_two_sided(level, n - 1) * deviation / math.sqrt(n)
        spread = deviation / abs(mean) if mean else math.inf
        return OverRuns(mean, (mean - half, mean + half), spread, f"between {n} runs, Student t")
    if not all(0 < value < math.inf for value in values):
        return None
    df, spread = _pooled(n, _squares([math.log(value) for value in values]), prior)
    least = math.hypot(*(width / mean for width in within)) / n
    scale = t_two_sided(level, df) / t_two_sided(LEVEL, df)
    half = max(t_two_sided(level, df) * spread / math.sqrt(n), least * scale)
    factor = math.exp(min(half, WIDEST))
    runs = "one run" if n == 1 else f"{n} runs"
    method = f"{runs}, spread between runs {prior.spread:.1%} ({prior.source})"
    return OverRuns(mean, (mean / factor, mean * factor), spread, method)


def further_runs(
    decided: Callable[[float, float], bool],
    values: Sequence[float],
    within: Sequence[float] = (),
    prior: Prior = DEFAULT,
    level: float = LEVEL,
) -> int | None:
    """How many more runs with the same mean, spread and windows would decide; None if more than MOST_RUNS in all.

    Args:
        decided: whether an interval, relative to the mean, decides.
        values: the runs so far.
        within: the half-width of the interval within each; runs spread by no less than their windows let them.
    """
    found = over_runs(values, (), prior, level)
    if found is None or not math.isfinite(found.spread):
        return None
    n = len(values)
    least = math.hypot(*(width / found.value for width in within)) / math.sqrt(n)
    for runs in range(n + 1, MOST_RUNS + 1):
        df, spread = _pooled(runs, (runs - 1) * found.spread**2, prior)
        half = t_two_sided(level, df) * max(spread, least / t_two_sided(LEVEL, df)) / math.sqrt(runs)
        factor = math.exp(min(half, WIDEST))
        if decided(1 / factor, factor):
            return runs - n
    return None


def _pooled(runs: int, squares: float, prior: Prior) -> tuple[float, float]:
    """Degrees of freedom and relative spread of runs, from their squared deviations (of logarithms) in all."""
    if runs >= RUNS_FOR_STUDENT:
        return runs - 1, math.sqrt(squares / (runs - 1))
    df = prior.df + runs - 1
    return df, math.sqrt((prior.df * prior.spread**2 + squares) / df)


def _squares(values: Sequence[float]) -> float:
    """The sum of squared deviations from the mean."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)
