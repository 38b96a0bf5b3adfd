"""Statistics of step times: median, spread, drift. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence

MIN_DRIFT_STEPS = 20
"""The least number of steps that have a drift: the median of fewer than ten steps is not steady itself."""


def median(values: Sequence[float]) -> float:
    """The median."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def stdev(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1); 0 for one value."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    squares = math.fsum((number - mean) ** 2 for number in values)
    return math.sqrt(squares / (len(values) - 1))


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile by linear interpolation between the two nearest values, equal to that of numpy.percentile."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * (percent / 100)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    difference = ordered[above] - ordered[below]
    share = place - below
    if share < 0.5:
        return ordered[below] + difference * share
    return ordered[above] - difference * (1 - share)  # numpy rounds this way, so that both ends are exact


def drift(values: Sequence[float]) -> float | None:
    """Median of the second half relative to that of the first, minus 1.

    None for fewer than MIN_DRIFT_STEPS values, or if the first half has a median of 0.
    """
    if len(values) < MIN_DRIFT_STEPS:
        return None
    half = len(values) // 2
    first = median(values[:half])
    if not first:
        return None
    return median(values[half:]) / first - 1


def thin(values: Sequence[float], most: int) -> list[float]:
    """At most `most` of the values, evenly spaced and in order."""
    if len(values) <= most:
        return list(values)
    return [values[int(i * len(values) / most)] for i in range(most)]
