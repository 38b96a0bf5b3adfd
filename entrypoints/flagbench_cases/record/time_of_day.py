"""Finds out whether the time of day was set during a run: by a person, a time server, or a restored machine.

No duration depends on the time of day, but the dates in a record do, and would contradict each other.
"""

from __future__ import annotations

import time
from typing import NamedTuple

LEAST_SECONDS = 1.0
"""Smaller corrections, as time servers make by slowing a clock down, do not count."""


class ClockReading(NamedTuple):
    """The clocks of a machine at one moment."""

    time_of_day: float
    """Seconds since 1970."""
    elapsed: float
    """Seconds of a clock that is never set, and continues while the machine sleeps."""


def read() -> ClockReading:
    """Read the clocks."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # only Linux has the former
    return ClockReading(time.time(), time.clock_gettime(clock))


def set_by(begun: ClockReading, now: ClockReading | None = None) -> float | None:
    """Return the seconds by which the time of day was set since `begun`; None if it was not set.

    They are negative if it was set back. `now`: by default, the clocks are read.
    """
    now = now or read()
    moved = (now.time_of_day - begun.time_of_day) - (now.elapsed - begun.elapsed)
    if abs(moved) < LEAST_SECONDS:
        return None
    return round(moved, 1)
