"""How the speed of devices changed during a soak: the late laps beside the early ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flagbench_core.stats import summary

LEAST_LAPS = 3
"""Fewer have no drift: the first lap begins on a cool device, and two others are compared."""
IN_FIFTHS = 10
"""From this number of laps on, fifths of them are compared; of fewer, single laps."""


def lap_drifts(laps: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]] | None:
    """The late rate over the early one, by measurement and device: 0.9 is a device that became a tenth slower.

    From IN_FIFTHS laps on, the median of the last fifth over that of the second fifth; of fewer, the last lap over
    the second. The first fifth, or lap, is left out, since devices become warm in it.

    Args:
        laps: the `rates` of a record's `laps`, in order: by the name of the measurement, those of each device in
            FLOP/s or B/s. A collective has one rate, of all devices together.

    Returns:
        None for fewer than LEAST_LAPS laps. Without measurements that a compared lap lacks, or whose early rate is 0.
    """
    if len(laps) < LEAST_LAPS:
        return None
    fifth = len(laps) // 5 if len(laps) >= IN_FIFTHS else 1
    early, late = laps[fifth : 2 * fifth], laps[-fifth:]
    drifts = {}
    for name in early[0]:
        if not all(name in rates for rates in (*early, *late)):
            continue
        before = _medians([rates[name] for rates in early])
        after = _medians([rates[name] for rates in late])
        if before and len(before) == len(after) and all(before):
            drifts[name] = [rate / first for rate, first in zip(after, before)]
    return drifts


def _medians(laps: Sequence[Sequence[float]]) -> list[float]:
    """The median of each device's rates over laps; empty unless all laps have as many devices."""
    if len({len(rates) for rates in laps}) != 1:
        return []
    return [summary.median(of_device) for of_device in zip(*laps)]
