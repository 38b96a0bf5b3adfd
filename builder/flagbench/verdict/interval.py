"""Intervals: of a measured metric, from one run or several, and of the ratio of two estimates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from flagbench.records.model import Metric, Record
from flagbench.verdict.stats.between import DEFAULT, LEVEL, RUNS_FOR_STUDENT, Prior, over_runs


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
    ci_method: str | None = None

    def __str__(self) -> str:
        """`0.777 [0.767, 0.788]`: three decimals, the resolution that the limits 0.95 and 1.10 need."""
        text = f"{self.value:.3f}"
        return text if self.ci95 is None else f"{text} [{self.ci95[0]:.3f}, {self.ci95[1]:.3f}]"


def four_digits(value: float) -> str:
    """A measured value to four significant digits; the integer part is never rounded away."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:#.4g}"


def common(records: Sequence[Record], name: str) -> list[Metric]:
    """A metric of each record; empty where a record lacks it."""
    found = [metric for metric in (record.metric(name) for record in records) if metric is not None]
    return found if len(found) == len(records) else []


def estimate(metrics: Sequence[Metric], prior: Prior = DEFAULT, level: float = LEVEL) -> Estimate:
    """One metric of one or more runs under the same conditions, as a value and an interval between runs.

    Five runs or more have Student's. Fewer have one only where the window of every run gave an interval, for a run
    whose steps have not settled says nothing; the spread between runs is then pooled with `prior`.
    """
    runs = len(metrics)
    values = [float(metric.value) for metric in metrics]
    found = None
    if runs >= RUNS_FOR_STUDENT or not without_interval(metrics):
        found = over_runs(values, half_widths(metrics), prior, level)
    if found is None:
        return Estimate(math.fsum(values) / runs, runs)
    return Estimate(found.value, runs, found.interval, found.method)


def within_run(metric: Metric) -> Estimate:
    """One metric of one run and the interval that its record has, which is within the run."""
    if metric.ci95 is None:
        return Estimate(metric.value, 1)
    method = metric.ci_method or "method not stated"
    return Estimate(metric.value, 1, metric.ci95, method if "within-run" in method else f"within-run, {method}")


def without_interval(metrics: Sequence[Metric]) -> list[int]:
    """The places of the runs whose window gave no interval."""
    return [place for place, metric in enumerate(metrics) if metric.ci95 is None]


def half_widths(metrics: Sequence[Metric]) -> list[float]:
    """The half-width of the interval within each run, the wider side of it; 0 for a run without one."""
    ends = [(metric.value, *(metric.ci95 or (metric.value, metric.value))) for metric in metrics]
    return [max(value - low, high - value) for value, low, high in ends]


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
    if not all(map(math.isfinite, corners)):
        return Ratio(value)
    return Ratio(value, (min(corners), max(corners)), top.ci_method or bottom.ci_method)
