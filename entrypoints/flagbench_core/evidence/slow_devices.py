"""Devices of one run that are slower than the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flagbench_core.evidence.roofs import spread
from flagbench_core.stats import summary

LEAST_SLOW = 0.05
"""A device that is slower than the others by less does not count as slow: equal chips differ by their power."""
ERRORS = 3.0
"""A slow device is slower by at least this number of standard errors of the median of its measurements."""


def share_of_others(rates: Sequence[float], rank: int) -> float:
    """The rate of one of several devices over the median rate of the others; 1 if that is 0."""
    others = summary.median([*rates[:rank], *rates[rank + 1 :]])
    if not others:
        return 1.0
    return rates[rank] / others


def slowest_device(rates: Sequence[float]) -> dict[str, Any] | None:
    """The slowest of several devices, by rank: its rate, and its share of the median of the others.

    The first of equals; None for one device alone. Not a share of the middle one, which of two devices is the slower.
    """
    if len(rates) < 2:
        return None
    rank = min(range(len(rates)), key=rates.__getitem__)
    return {"rank": rank, "value": rates[rank], "share": share_of_others(rates, rank)}


def slow_overall(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The devices that are slow in all measurements together, each with the median share of the others' rate.

    What disturbs a device for a second changes a measurement, and not most of them. The standard error of a median is
    1.253 times that of a mean, for normal values.
    """
    of_devices = [measurement["devices"] for measurement in measured if len(measurement.get("devices", ())) > 1]
    if not of_devices:
        return []
    shares = []
    for rank in range(len(of_devices[0])):
        shares.append([share_of_others(rates, rank) for rates in of_devices])
    # The noise is that of a typical device: the measurements of a single one may agree by chance.
    noise = summary.median([spread(device_shares) for device_shares in shares])
    allowed = max(LEAST_SLOW, ERRORS * 1.253 * noise / math.sqrt(len(of_devices)))
    slow = []
    for rank, device_shares in enumerate(shares):
        share = summary.median(device_shares)
        if share < 1 - allowed:
            slow.append({"rank": rank, "share": share})
    return slow
