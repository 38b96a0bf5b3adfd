"""Finds devices of one run that are slower than the others, by the rates that each of them measured.

`derive` uses it for a record, and the acceptance of a machine for its own limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flagbench_core.evidence.roofs import spread
from flagbench_core.stats import summary

LEAST_SLOW = 0.05
"""The share by which a slow device is slower than the others, at least: equal chips differ by the power they need."""
ERRORS = 3.0
"""A slow device is slower by at least this number of standard errors of the median of its measurements."""
MEDIAN_ERROR = 1.253
"""The standard error of a median relative to that of a mean, for normal values: sqrt(pi / 2)."""


def share_of_others(rates: Sequence[float], rank: int) -> float:
    """The ratio of the rate of one of several devices to the median rate of the others; 1 if that is 0."""
    others = summary.median([*rates[:rank], *rates[rank + 1 :]])
    if not others:
        return 1.0
    return rates[rank] / others


def slowest_device(rates: Sequence[float]) -> dict[str, Any] | None:
    """The slowest of several devices as {rank, value, share}, the first of equals; None for one device alone.

    `value` is its rate, and `share` the ratio of that rate to the median of the others.
    """
    if len(rates) < 2:
        return None
    rank = min(range(len(rates)), key=rates.__getitem__)
    return {"rank": rank, "value": rates[rank], "share": share_of_others(rates, rank)}


def find_slow_devices(rates_of_measurements: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """The devices that are slow in all measurements together, as {rank, share}.

    `share` is the ratio of the device's rate to the median of the others, as the median over the measurements: a
    disturbance of a second changes one measurement, and not most of them.

    Args:
        rates_of_measurements: by measurement, the rate of each device; empty if they were not measured one by one.
    """
    rates_by_measurement = [rates for rates in rates_of_measurements if len(rates) > 1]
    if not rates_by_measurement:
        return []
    shares = []
    for rank in range(len(rates_by_measurement[0])):
        shares.append([share_of_others(rates, rank) for rates in rates_by_measurement])
    # The noise is that of a typical device: the measurements of a single one may agree by chance.
    noise = summary.median([spread(device_shares) for device_shares in shares])
    allowed = max(LEAST_SLOW, ERRORS * MEDIAN_ERROR * noise / math.sqrt(len(rates_by_measurement)))
    slow = []
    for rank, device_shares in enumerate(shares):
        share = summary.median(device_shares)
        if share < 1 - allowed:
            slow.append({"rank": rank, "share": share})
    return slow
