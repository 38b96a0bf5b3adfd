"""Intervals: of a measured metric, from one run or several, and of the ratio of two estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from msgspec import Struct

from flagbench.record.model import Metric, Record

RUNS_FOR_BETWEEN = 5
"""From this many runs on the interval is between runs: fewer say too little about the spread."""

# Two-sided 95 % quantiles of Student's t by degrees of freedom.
# Source: NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
_T95 = {
    4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201, 12: 2.179,
    13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086, 21: 2.080,
    22: 2.074, 23: 2.069, 24: 2.064, 25: 2.060, 26: 2.056, 27: 2.052, 28: 2.048, 29: 2.045, 30: 2.042,
}  # fmt: skip


class Estimate(Struct, frozen=True):
    """A metric over one or more runs, and its 95 % interval; `ci95` is None where the runs give none.

    A published value has no runs and no interval: it is taken as exact.
    """

    value: float
    runs: int
    ci95: tuple[float, float] | None = None
    ci_method: str | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The bounds of the value, or None if they are unknown."""
        return self.ci95 if self.runs else (self.value, self.value)

    def text(self, unit: str = "") -> str:
        """`1510 samples/s [1490, 1530]`; a published value has every digit that its publisher printed."""
        if not self.runs:
            return f"{self.value:.15g}"
        text = f"{four_digits(self.value)} {unit}".rstrip()
        return text if self.ci95 is None else f"{text} [{', '.join(map(four_digits, self.ci95))}]"


class Ratio(Struct, frozen=True):
    """A ratio of two estimates; `ci95` is None where either has no interval."""

    value: float
    ci95: tuple[float, float] | None = None

    def __str__(self) -> str:
        """`0.777 [0.767, 0.788]`: three decimals, the resolution that the limits 0.95 and 1.10 need."""
        text = f"{self.value:.3f}"
        return text if self.ci95 is None else f"{text} [{self.ci95[0]:.3f}, {self.ci95[1]:.3f}]"


def four_digits(value: float) -> str:
    """A measured value to four significant digits; the integer part is never rounded away."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:#.4g}"


def t95(df: int) -> float:
    """The two-sided 95 % quantile of Student's t with `df` >= 4 degrees of freedom.

    Above 30 it is the normal quantile with the first two terms of Fisher's expansion
    (Abramowitz and Stegun 26.7.5), within 0.001 of the exact value.
    """
    if df <= max(_T95):
        return _T95[df]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)


def common(records: Sequence[Record], name: str) -> list[Metric]:
    """A metric of each record; empty where a record lacks it."""
    found = [metric for metric in (record.metric(name) for record in records) if metric is not None]
    return found if len(found) == len(records) else []


def estimate(metrics: Sequence[Metric]) -> Estimate:
    """One metric of one or more runs under the same conditions, as a value and a 95 % interval.

    From five runs on: their mean and Student's t interval, which is between runs. Under five: the
    run's own interval (within-run), or the hull of the runs' intervals, which is wider than either.
    """
    runs = len(metrics)
    values = [m.value for m in metrics]
    value = statistics.fmean(values)
    if runs >= RUNS_FOR_BETWEEN:
        half = t95(runs - 1) * statistics.stdev(values) / math.sqrt(runs)
        return Estimate(value, runs, (value - half, value + half), f"between {runs} runs, Student t")
    intervals = [m.ci95 for m in metrics if m.ci95 is not None]
    if len(intervals) < runs:
        # A hull over only some of the runs would pass for the spread of all of them.
        return Estimate(value, runs)
    method = f"hull of {runs} within-run intervals"
    if runs == 1:
        method = metrics[0].ci_method or "method not stated"
        if "within-run" not in method:
            method = f"within-run, {method}"
    return Estimate(value, runs, (min(low for low, _ in intervals), max(high for _, high in intervals)), method)


def ratio(measured: Estimate, expected: Estimate, better: str) -> Ratio | None:
    """Measured over expected, or its inverse where `better` is `lower`: above 1 is always better."""
    return quotient(expected, measured) if better == "lower" else quotient(measured, expected)


def quotient(top: Estimate, bottom: Estimate) -> Ratio | None:
    """`top` over `bottom`; None where `bottom` is not positive.

    The interval is the conservative one, lowest over highest to highest over lowest.
    """
    if bottom.value <= 0 or not math.isfinite(value := top.value / bottom.value):
        return None
    above, below = top.ends, bottom.ends
    if above is None or below is None or below[0] <= 0:
        return Ratio(value)
    corners = [a / b for a in above for b in below]
    return Ratio(value, (min(corners), max(corners)) if all(map(math.isfinite, corners)) else None)
