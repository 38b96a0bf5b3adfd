"""The statistics of a fleet: the middle and the spread of a number over nodes, and how far below it a node is named.

Some nodes of a fleet may be sick, so the spread must not be widened by them. The rules that were compared, by
simulation: a fixed share below the median, the median absolute deviation, Rosner's test, and this one, which found
slow nodes as well as the best of them with up to a fifth of the nodes sick (tests/bench/fleet_simulation.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, median, stdev
from typing import NamedTuple

_NORMAL_MAD = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""
_CLIPPED_AT = 3.0
"""Nodes further from the middle than so many spreads do not count for the spread."""
_CLIPPED_DEVIATION = 1.013
"""The standard deviation of a normal distribution over that of its part within `_CLIPPED_AT` deviations."""
_ROUNDS = 5
"""How often the spread is computed again from the nodes within it: it changes little from the third time on."""


class Middle(NamedTuple):
    """Where the nodes of a fleet lie in one number."""

    value: float
    """The mean of the nodes that count, in the unit of the number."""
    spread: float
    """The standard deviation between nodes, relative to the mean."""


def clipped_middle(values: Sequence[float], least_spread: float) -> Middle | None:
    """Return the mean and the spread of the values that lie within three spreads of the middle.

    It begins with the median and the median absolute deviation, which a third of sick nodes does not move. Then it
    takes mean and standard deviation, which are twice as precise, of the values within three spreads, repeatedly.

    Args:
        values: the number on each node, of several nodes.
        least_spread: the least spread that is believed, relative to the middle.

    Returns None if the median is not positive.
    """
    middle = median(values)
    if middle <= 0:
        return None
    deviation = median(abs(value - middle) for value in values)
    spread = max(_NORMAL_MAD * deviation / middle, least_spread)
    for _ in range(_ROUNDS):
        within = [value for value in values if abs(value / middle - 1) < _CLIPPED_AT * spread]
        middle = fmean(within)
        spread = max(_CLIPPED_DEVIATION * stdev(within) / middle, least_spread)
    return Middle(middle, spread)


def limit_in_spreads(nodes: int, numbers: int, false_alarms: float) -> float:
    """Return how many spreads below the middle a node is named.

    By chance, that happens in `false_alarms` of sound fleets: the quantile of a normal distribution for all numbers
    of all nodes. It is widened by the error that the spread itself has, which was found by simulation; 4.6 for 64
    nodes and 7 numbers.
    """
    quantile = NormalDist().inv_cdf(1 - false_alarms / max(1, nodes * numbers))
    return quantile * (1 + 0.5 / math.sqrt(nodes) + 4 / nodes)
