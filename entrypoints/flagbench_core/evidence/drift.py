"""How the speed of devices changed during a soak: a run that repeats all its measurements for hours, lap after lap.

The report of a record shows the changes, and the acceptance of a machine compares them with a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flagbench_core.stats import summary

LEAST_LAPS = 3
"""The least number of laps that have a drift: the first lap begins on a cool device, and two others are compared."""
IN_FIFTHS = 10
"""From this number of laps on, fifths of them are compared; with fewer, single laps."""


def lap_drifts(laps: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]] | None:
    """The ratio of the late rate to the early one, by measurement and device: 0.9 if it became a tenth slower.

    From IN_FIFTHS laps on, this is the median of the last fifth of the laps over that of the second fifth; with fewer
    laps, the last lap over the second. The first fifth, or lap, is left out, since devices become warm in it.

    Args:
        laps: the `rates` of a record's `laps`, in order. Each has the rates of a measurement by its name: one for
            each device, in FLOP/s or B/s, or a single one for a collective of all devices.

    Returns:
        None for fewer than LEAST_LAPS laps. A measurement is left out if a compared lap lacks it, or if an early rate
        is 0.
    """
    if len(laps) < LEAST_LAPS:
        return None
    count = 1
    if len(laps) >= IN_FIFTHS:
        count = len(laps) // 5
    early_laps = laps[count : 2 * count]
    late_laps = laps[-count:]
    drifts = {}
    for name in early_laps[0]:
        if not all(name in rates for rates in (*early_laps, *late_laps)):
            continue
        early = _medians([rates[name] for rates in early_laps])
        late = _medians([rates[name] for rates in late_laps])
        if early and len(early) == len(late) and all(early):
            drifts[name] = [late_rate / early_rate for late_rate, early_rate in zip(late, early)]
    return drifts


def _medians(laps: Sequence[Sequence[float]]) -> list[float]:
    """The median of each device's rates over laps; empty unless all laps have as many devices."""
    if len({len(rates) for rates in laps}) != 1:
        return []
    return [summary.median(of_device) for of_device in zip(*laps)]
