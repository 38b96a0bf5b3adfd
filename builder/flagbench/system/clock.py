"""Two clocks: the time of day, in the format of a record, and one for durations, which is never set."""

from __future__ import annotations

import time
from datetime import datetime, timezone

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def utc_now() -> str:
    """The time of day in UTC, to the second, as a record writes it: `2026-11-28T16:00:00Z`."""
    return format_utc(datetime.now(timezone.utc))


def format_utc(time: datetime) -> str:
    """A time in UTC as a record writes it; such texts sort by time."""
    return f"{time.year:04}-{time:%m-%dT%H:%M:%SZ}"  # strftime writes the year 1 as `1`


def parse_utc(text: str) -> datetime:
    """The time of a record as a datetime in UTC, without a time zone. Raises ValueError for another format."""
    return datetime.strptime(text, _TIME_FORMAT)


def elapsed() -> float:
    """Seconds since the machine started, time asleep included; only the difference of two readings has a meaning."""
    # Only Linux has CLOCK_BOOTTIME. Elsewhere time asleep is not counted.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
