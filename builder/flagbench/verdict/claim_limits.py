"""The limits of a verdict on a claim (a published row), 0.95 and 1.10, and the verdict that a ratio gets by them."""

from __future__ import annotations

from flagbench.manifests.model import MetricSpec
from flagbench.records.model import Metric
from flagbench.verdict.result import Ratio, Verdict

LOW, HIGH = 0.95, 1.10
"""The ratios to the expected value between which it counts as reproduced, both ends included.

Equal devices of different makers spread by 1.8 to 4.5 % in MLPerf's llama2-70b-lora submissions.
"""
_ROUNDING = 1e-9
"""A ratio that is 0.95 in decimal may miss it in the last bits of a division; no measurement resolves this."""


def is_speed(spec: MetricSpec | Metric) -> bool:
    """Whether a metric is a rate, a time, or a utilisation, so that the limits 0.95 and 1.10 fit it."""
    return spec.unit == "s" or spec.unit.endswith("/s") or spec.name.startswith(("mfu", "hfu"))


def classify(value: Ratio) -> Verdict:
    """Return the verdict on a ratio to a claim (above 1 is better) by its interval; INCONCLUSIVE without one."""
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
