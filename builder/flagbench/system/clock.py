"""Two clocks: the time of day, in the format of a record, and one for durations, which is never set."""

from __future__ import annotations

import time
from datetime import datetime, timezone

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
"""How a record writes a time, in UTC: `2026-11-28T16:00:00Z`. Such times sort as texts."""


def utc_now() -> str:
    """The time of day in UTC, to the second, as a record writes it."""
    return datetime.now(timezone.utc).strftime(TIME_FORMAT)


def parse_utc(text: str) -> datetime:
    """The time of a record as a datetime in UTC, without a time zone. Raises ValueError for another format."""
    return datetime.strptime(text, TIME_FORMAT)


def elapsed() -> float:
    """Seconds since the machine started, time asleep included; only the difference of two readings has a meaning."""
    # Only Linux has CLOCK_BOOTTIME. Elsewhere time asleep is not counted.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
