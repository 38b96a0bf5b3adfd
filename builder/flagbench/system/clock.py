"""The time: of day as a record writes it, and a clock that is never set."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def utc_now() -> str:
    """This second, UTC, as a record writes a time."""
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def elapsed() -> float:
    """Seconds of a clock that is never set. It keeps counting while the machine sleeps, as the time of day does."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
