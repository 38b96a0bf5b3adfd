# A copy of builder/flagbench/evidence/stats.py, made by `flagbench manifests compile`.
"""Statistics of step times: median, spread, and the interval of a rate by block bootstrap. Standard library only."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

METHOD = "within-run block bootstrap"
"""What `rate_interval` computes: the `ci_method` of a record."""
RESAMPLES = 1000
MIN_STEPS = 20


def median(values: Sequence[float]) -> float:
    """The median."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def stdev(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1); 0 for one value."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def drift(values: Sequence[float]) -> float | None:
    """Median of the second half relative to that of the first, minus 1; None for fewer than MIN_STEPS values, or if
    the first half has a median of 0."""
    half = len(values) // 2
    first = median(values[:half]) if len(values) >= MIN_STEPS else 0.0
    return median(values[half:]) / first - 1 if first else None


def rate_interval(amounts: Sequence[float], seconds: Sequence[float]) -> tuple[float, float] | None:
    """95 % percentile interval of sum(amounts) / sum(seconds) by moving-block bootstrap; None for fewer than
    MIN_STEPS steps.

    Steps are autocorrelated, so blocks of about sqrt(n) steps are drawn instead of single steps (Kuensch 1989, The
    jackknife and the bootstrap for general stationary observations). Blocks wrap around, so that every step is drawn
    equally often (Politis and Romano 1992). The generator is seeded, so the interval is deterministic. A small number
    of blocks underestimates the spread between blocks, so the interval is widened (see `_widening`).
    """
    n = len(seconds)
    if n < MIN_STEPS:
        return None
    block = max(2, math.isqrt(n))
    sums_a, sums_t = _wrapped_sums(amounts, block), _wrapped_sums(seconds, block)
    generator = random.Random(n)
    rates = []
    for _ in range(RESAMPLES):
        starts = [int(generator.random() * n) for _ in range(-(-n // block))]
        rates.append(sum(sums_a[s] for s in starts) / sum(sums_t[s] for s in starts))
    rates.sort()
    point = math.fsum(amounts) / math.fsum(seconds)
    wider = _widening(n, block)
    low, high = rates[int(0.025 * RESAMPLES)], rates[int(0.975 * RESAMPLES) - 1]
    return point + (low - point) * wider, point + (high - point) * wider


def _widening(n: int, block: int) -> float:
    """The factor by which a percentile interval from n / block blocks is too narrow.

    Centring blocks on their own mean removes block / n of the variance. With few blocks, 1.96 standard errors must be
    replaced by Student's t with n / block - 1 degrees of freedom, t = z + (z**3 + z) / (4 df) (Abramowitz and Stegun
    26.7.5, first term). For AR(1) steps with phi 0.6, coverage at n = 200 is 92 % instead of 87 %.
    """
    z = 1.96
    student = z + (z**3 + z) / (4 * (n / block - 1))
    return math.sqrt(n / (n - block)) * student / z


def _wrapped_sums(values: Sequence[float], block: int) -> list[float]:
    """The sum of the `block` values starting at each index, wrapping around."""
    total: list[float] = [0.0]
    sums: list[float] = []
    for value in list(values) + list(values[: block - 1]):
        total.append(total[-1] + value)
    for start in range(len(values)):
        sums.append(total[start + block] - total[start])
    return sums


def thin(values: Sequence[float], most: int) -> list[float]:
    """At most `most` of the values, evenly spaced and in order."""
    if len(values) <= most:
        return list(values)
    return [values[int(i * len(values) / most)] for i in range(most)]
