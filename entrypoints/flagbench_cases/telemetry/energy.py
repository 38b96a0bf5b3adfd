"""The energy of a device over a time, J: from the device's counter, or from its power if it has no counter."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, Iterator, NamedTuple, Sequence, Tuple

Times = Tuple[float, float]
"""The start and the end of a time, Unix seconds."""
COUNTER = "counter"
"""The source of an energy that is the difference of a device's counter."""
POWER = "power"
"""The source of an energy that is the integral of samples of a device's power."""


class Sample(NamedTuple):
    """What a monitor read of one device, between two points in time."""

    begin: float  # Unix seconds
    end: float
    energy_mj: float | None  # counted by the device
    power_w: float | None


class Stretch(NamedTuple):
    """Consecutive steps of the window on one device, and when it took them."""

    steps: int
    times: Times


def of_window(samples: Sequence[Sample], stretches: Sequence[Stretch], longest: float) -> dict[str, Any] | None:
    """The record's `window_energy` of a device: the energy of all stretches. None if samples do not enclose them.

    By the counter, a stretch has the difference of its values at the end and at the beginning, each interpolated
    between two readings. `error_j` is the largest possible error, over all stretches. It does not
    include how late a device updates its counter, which vendors do not state. Power that was read once a second has
    no such limit. `longest`: seconds between two samples of power that are more than a gap.
    """
    if not stretches:
        return None
    lengths = [stretch.times[1] - stretch.times[0] for stretch in stretches]
    energy = {
        "steps": sum(stretch.steps for stretch in stretches),
        "seconds": round(math.fsum(lengths), 3),
    }
    counted = _counted_over(samples, stretches)
    if counted is not None:
        joules, error = counted
        return {**energy, "joules": round(joules, 3), "source": COUNTER, "error_j": round(error, 3)}
    integrated = _integrated_over(samples, stretches, longest)
    if integrated is not None:
        return {**energy, "joules": round(integrated, 3), "source": POWER}
    return None


def _counted_over(samples: Sequence[Sample], stretches: Sequence[Stretch]) -> tuple[float, float] | None:
    """Joules of all stretches by the counter, and the largest error; None if it does not cover one of them."""
    readings = _counter_readings(samples)
    joules = error = 0.0
    for stretch in stretches:
        begin = _counter_at(readings, stretch.times[0])
        end = _counter_at(readings, stretch.times[1])
        if begin is None or end is None:
            return None
        joules += end.joules - begin.joules
        error += end.error + begin.error
    if joules <= 0:
        return None
    return joules, error


def _integrated_over(samples: Sequence[Sample], stretches: Sequence[Stretch], longest: float) -> float | None:
    """Joules of all stretches by the power; None if samples do not cover one of them."""
    joules = 0.0
    for stretch in stretches:
        integral = by_power(samples, stretch.times, longest)
        if integral is None:
            return None
        stretch_joules, covered_seconds = integral
        begin, end = stretch.times
        if not math.isclose(covered_seconds, end - begin, abs_tol=1e-3):
            return None
        joules += stretch_joules
    return joules


class _Count(NamedTuple):
    """The value of a counter at a point in time and its largest possible error, J."""

    joules: float
    error: float


def _counter_at(readings: Sequence[Sample], t: float) -> _Count | None:
    """The counter at a time between two readings; None if there is no reading before it, or none after it.

    A counter never falls. So at that time it had at least the value of the last reading that had ended, and at most
    that of the first which had not yet begun. Between them it is interpolated linearly.
    """
    before: Sample | None = None
    for reading in readings:
        if reading.end <= t:
            before = reading
        if reading.begin >= t and before is not None:
            low = (before.energy_mj or 0.0) / 1000
            high = (reading.energy_mj or 0.0) / 1000
            t0 = (before.begin + before.end) / 2
            t1 = (reading.begin + reading.end) / 2
            share = 0.0
            if t1 > t0:
                share = (t - t0) / (t1 - t0)
            return _Count(low + share * (high - low), max(share, 1 - share) * (high - low))
    return None


def _counter_readings(samples: Sequence[Sample]) -> list[Sample]:
    """The samples that have the counter; empty if it was reset, or if the clock of the node was set back."""
    readings = [sample for sample in samples if sample.energy_mj is not None]
    for first, second in pairs(readings):
        if second.energy_mj < first.energy_mj or second.begin <= first.begin:
            return []
    return readings


def by_counter(samples: Sequence[Sample], times: Times) -> tuple[float, float] | None:
    """Joules by the counter, and the seconds that they cover: those between readings.

    None if the counter has fewer than two readings there, was reset or never moved.
    """
    joules = seconds = 0.0
    for first, second in pairs(_counter_readings(samples)):
        inside = min(second.begin, times[1]) - max(first.begin, times[0])
        if inside > 0:
            joules += (second.energy_mj - first.energy_mj) / 1000 * inside / (second.begin - first.begin)
            seconds += inside
    if joules <= 0:
        return None
    return joules, seconds


def by_power(samples: Sequence[Sample], times: Times, longest: float) -> tuple[float, float] | None:
    """Joules by the trapezoidal rule, and the seconds that they cover.

    Power is interpolated linearly between two samples, also across the ends of the time. A pair that is more than
    `longest` seconds apart, lacks a value or is not in order (the clock was set) is skipped.
    """
    joules = seconds = 0.0
    for first, second in pairs(samples):
        t0 = first.begin
        t1 = second.begin
        p0 = first.power_w
        p1 = second.power_w
        if p0 is None or p1 is None or not 0 < t1 - t0 <= longest:
            continue
        begin = max(t0, times[0])
        end = min(t1, times[1])
        if end > begin:
            slope = (p1 - p0) / (t1 - t0)
            joules += (end - begin) * (p0 + slope * ((begin + end) / 2 - t0))
            seconds += end - begin
    if seconds <= 0:
        return None
    return joules, seconds


def pairs(items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Adjacent pairs, like itertools.pairwise in Python 3.10."""
    return zip(items, islice(items, 1, None))
