"""Computes the energy that a device used in a period of time, from the samples of its monitor.

The difference of the device's energy counter is used if it has one, else the integral of its power.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, Iterator, NamedTuple, Sequence, Tuple

Times = Tuple[float, float]
"""The start and the end of a period, Unix seconds."""
COUNTER = "counter"
"""The source of an energy that is the difference of a device's counter."""
POWER = "power"
"""The source of an energy that is the integral of samples of a device's power."""
_ROUNDING_SECONDS = 1e-3
"""Times in the sampler's file are rounded to milliseconds."""


class Sample(NamedTuple):
    """What a monitor read of one device at one time."""

    begin: float
    """When the monitor began to read the device, Unix seconds."""
    end: float
    """When it had read the device, Unix seconds."""
    energy_mj: float | None
    """The device's energy counter, mJ; None if the device has none."""
    power_w: float | None


class Stretch(NamedTuple):
    """Consecutive steps of the window (the steps that p_core is computed from) on one device."""

    steps: int
    times: Times
    """When the device took them."""


class Energy(NamedTuple):
    """Energy, and how much time it covers: the samples may not cover the whole period."""

    joules: float
    seconds: float


def window_energy(samples: Sequence[Sample], stretches: Sequence[Stretch], max_gap: float) -> dict[str, Any] | None:
    """The record's `window_energy` of a device: the energy of all stretches. None if samples do not enclose them.

    With a counter, the energy of a stretch is the difference between the counter at its end and at its beginning,
    each interpolated between two readings. `error_j` is the largest possible error, over all stretches. It does not
    include how late a device updates its counter, which vendors do not state. For power that was read once a second,
    no limit of the error is known.

    `max_gap`: the most seconds between two samples between which power is integrated.
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
        joules, error = round(counted.joules, 3), round(counted.error, 3)
        return {**energy, "joules": joules, "source": COUNTER, "error_j": error}
    integrated = _integrated_over(samples, stretches, max_gap)
    if integrated is not None:
        return {**energy, "joules": round(integrated, 3), "source": POWER}
    return None


def _counted_over(samples: Sequence[Sample], stretches: Sequence[Stretch]) -> _Count | None:
    """The energy of all stretches according to the counter; None if its readings do not enclose all of them."""
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
    return _Count(joules, error)


def _integrated_over(samples: Sequence[Sample], stretches: Sequence[Stretch], max_gap: float) -> float | None:
    """Joules of all stretches as the integral of power; None if the samples do not cover all of them."""
    joules = 0.0
    for stretch in stretches:
        integral = integrate_power(samples, stretch.times, max_gap)
        if integral is None:
            return None
        begin, end = stretch.times
        if not math.isclose(integral.seconds, end - begin, abs_tol=_ROUNDING_SECONDS):
            return None
        joules += integral.joules
    return joules


class _Count(NamedTuple):
    """An energy according to a counter and its largest possible error, J."""

    joules: float
    error: float


def _counter_at(readings: Sequence[Sample], t: float) -> _Count | None:
    """The counter at the time `t`; None if there is no reading before it, or none after it.

    A counter never falls. So at the time `t` it had at least the value of the last reading before `t`, and at most
    the value of the first reading after `t`. Between these two it is interpolated linearly.
    """
    before: Sample | None = None
    for reading in readings:
        if reading.end <= t:
            before = reading
        if reading.begin >= t and before is not None:
            # The counter was read at an unknown time within each reading: the middle is taken.
            low = (before.energy_mj or 0.0) / 1000
            high = (reading.energy_mj or 0.0) / 1000
            t0 = (before.begin + before.end) / 2
            t1 = (reading.begin + reading.end) / 2
            share = 0.0
            if t1 > t0:
                share = (t - t0) / (t1 - t0)
            joules = low + share * (high - low)
            error = max(share, 1 - share) * (high - low)
            return _Count(joules, error)
    return None


def _counter_readings(samples: Sequence[Sample]) -> list[Sample]:
    """The samples that have the counter; empty if it was reset, or if the clock of the node was set back."""
    readings = [sample for sample in samples if sample.energy_mj is not None]
    for first, second in pairs(readings):
        if second.energy_mj < first.energy_mj or second.begin <= first.begin:
            return []
    return readings


def count_energy(samples: Sequence[Sample], times: Times) -> Energy | None:
    """The energy in a period according to the device's counter. It covers the time between the readings in it.

    None if the counter has fewer than two readings in the period, was reset or never moved.
    """
    joules = 0.0
    seconds = 0.0
    for first, second in pairs(_counter_readings(samples)):
        inside = min(second.begin, times[1]) - max(first.begin, times[0])
        if inside > 0:
            pair_joules = (second.energy_mj - first.energy_mj) / 1000
            joules += pair_joules * inside / (second.begin - first.begin)
            seconds += inside
    if joules <= 0:
        return None
    return Energy(joules, seconds)


def integrate_power(samples: Sequence[Sample], times: Times, max_gap: float) -> Energy | None:
    """The energy in a period as the integral of the device's power, by the trapezoidal rule.

    Power is interpolated linearly between two samples, also between one inside and one outside the period. Two
    samples are skipped if they are more than `max_gap` seconds apart, if one of them has no power, or if they are not
    in order because the clock was set. None if no two samples are left.
    """
    joules = 0.0
    seconds = 0.0
    for first, second in pairs(samples):
        t0 = first.begin
        t1 = second.begin
        p0 = first.power_w
        p1 = second.power_w
        if p0 is None or p1 is None:
            continue
        if not 0 < t1 - t0 <= max_gap:
            continue
        begin = max(t0, times[0])
        end = min(t1, times[1])
        if end > begin:
            middle = (begin + end) / 2
            slope = (p1 - p0) / (t1 - t0)
            mean_power = p0 + slope * (middle - t0)
            joules += (end - begin) * mean_power
            seconds += end - begin
    if seconds <= 0:
        return None
    return Energy(joules, seconds)


def pairs(items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The pairs of adjacent items, like itertools.pairwise of Python 3.10."""
    return zip(items, islice(items, 1, None))
