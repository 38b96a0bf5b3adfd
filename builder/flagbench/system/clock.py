"""Two clocks: the time of day, in the format of a record, and one for durations, which is never set."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def utc_now() -> str:
    """The time of day in UTC, to the second, as a record writes it: `2026-11-28T16:00:00Z`."""
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def elapsed() -> float:
    """Seconds since the machine started, time asleep included; only the difference of two readings has a meaning."""
    # Only Linux has CLOCK_BOOTTIME. Elsewhere time asleep is not counted.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
