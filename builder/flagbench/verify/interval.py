"""Intervals: of a measured metric, from one run or several, and of the ratio of two estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flagbench.record.model import Metric

RUNS_FOR_BETWEEN = 5
"""From this many runs on the interval is between runs: fewer say too little about the spread."""

# Two-sided 95 % quantiles of Student's t by degrees of freedom.
# Source: NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
_T95 = {
    4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201, 12: 2.179,
    13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086, 21: 2.080,
    22: 2.074, 23: 2.069, 24: 2.064, 25: 2.060, 26: 2.056, 27: 2.052, 28: 2.048, 29: 2.045, 30: 2.042,
}  # fmt: skip
_Z95 = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Interval:
    """A 95 % interval in the metric's unit, and how it was found."""

    low: float
    high: float
    method: str


@dataclass(frozen=True)
class Estimate:
    """A metric over one or more runs; `runs` is 0 for a published value.

    `interval` is None where the runs give none, and `reason` says why.
    """

    value: float
    runs: int
    interval: Interval | None
    reason: str | None = None

    @classmethod
    def published(cls, value: float) -> Estimate:
        """A published value: a number without spread, taken as exact."""
        return cls(value, 0, Interval(value, value, "published value"))


@dataclass(frozen=True)
class Ratio:
    """A ratio of two estimates; `low` and `high` are None where either has no interval."""

    value: float
    low: float | None = None
    high: float | None = None


def t95(df: int) -> float:
    """The two-sided 95 % quantile of Student's t with `df` >= 4 degrees of freedom.

    Above 30 it is the normal quantile with the first two terms of Fisher's expansion
    (Abramowitz and Stegun 26.7.5), within 0.001 of the exact value.
    """
    if df in _T95:
        return _T95[df]
    if df < min(_T95):
        raise ValueError(f"no t quantile for {df} degrees of freedom")
    z = _Z95
    return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)


def estimate(metrics: Sequence[Metric]) -> Estimate:
    """One metric of one or more runs under the same conditions, as a value and a 95 % interval.

    From five runs on: their mean and Student's t interval, which is between runs. Under five: the
    run's own interval (within-run), or the hull of the runs' intervals, which is wider than either.
    """
    if not metrics:
        raise ValueError("an estimate needs at least one run")
    runs = len(metrics)
    values = [m.value for m in metrics]
    value = statistics.fmean(values)
    if runs >= RUNS_FOR_BETWEEN:
        half = t95(runs - 1) * statistics.stdev(values) / math.sqrt(runs)
        return Estimate(value, runs, Interval(value - half, value + half, f"between {runs} runs, Student t"))
    intervals = [m.ci95 for m in metrics if m.ci95 is not None]
    if len(intervals) < runs:
        # A hull over only some of the runs would pass for the spread of all of them.
        return Estimate(value, runs, None, _no_interval(runs, runs - len(intervals)))
    within = metrics[0].ci_method or "method not stated"
    # The record's own label may already say what the interval is.
    label = within if "within-run" in within else f"within-run, {within}"
    method = label if runs == 1 else f"hull of {runs} within-run intervals"
    return Estimate(value, runs, Interval(min(i[0] for i in intervals), max(i[1] for i in intervals), method))


def ratio(measured: Estimate, expected: Estimate, better: str) -> Ratio | None:
    """Measured over expected, or its inverse where `better` is `lower`: above 1 is always better.

    The interval is the conservative one, lowest over highest to highest over lowest. None where the
    denominator is not positive.
    """
    return quotient(expected, measured) if better == "lower" else quotient(measured, expected)


def quotient(top: Estimate, bottom: Estimate) -> Ratio | None:
    """`top` over `bottom` with the conservative interval; None where `bottom` is not positive."""
    if bottom.value <= 0 or not math.isfinite(value := top.value / bottom.value):
        return None
    if top.interval is None or bottom.interval is None or bottom.interval.low <= 0:
        return Ratio(value)
    corners = [t / b for t in _ends(top.interval) for b in _ends(bottom.interval)]
    if not all(map(math.isfinite, corners)):
        return Ratio(value)
    return Ratio(value, min(corners), max(corners))


def _ends(interval: Interval) -> tuple[float, float]:
    return interval.low, interval.high


def _no_interval(runs: int, without: int) -> str:
    if runs == 1:
        return "one value, no interval"
    return f"{without} of {runs} runs have no interval, and {RUNS_FOR_BETWEEN} runs would give one between them"
