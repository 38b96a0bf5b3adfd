"""The limits of a verdict on a claim: 0.95 and 1.10."""

from __future__ import annotations

from flagbench.manifests.model import MetricSpec
from flagbench.records.model import Metric
from flagbench.verdict.result import Ratio, Verdict

LOW, HIGH = 0.95, 1.10
"""The ratios to the expected value between which it counts as reproduced, both ends included."""

# A ratio that is 0.95 in decimal may miss it in the last bits of a division; no measurement resolves this.
_ROUNDING = 1e-9


def is_speed(spec: MetricSpec | Metric) -> bool:
    """Whether the limits 0.95 and 1.10 fit a metric: a rate, a time, or a utilisation."""
    return spec.unit == "s" or spec.unit.endswith("/s") or spec.name.startswith(("mfu", "hfu"))


def classify(value: Ratio) -> Verdict:
    """The verdict on a ratio to a claim (above 1 is better) from its interval; INCONCLUSIVE without one."""
    if value.ci95 is None:
        return Verdict.INCONCLUSIVE
    low, high = value.ci95
    if low > HIGH + _ROUNDING:
        return Verdict.ABOVE
    if high < LOW - _ROUNDING:
        return Verdict.BELOW
    if low >= LOW - _ROUNDING and high <= HIGH + _ROUNDING:
        return Verdict.REPRODUCED
    return Verdict.INCONCLUSIVE
