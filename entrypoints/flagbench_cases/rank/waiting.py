"""Measures how long a rank's main thread ran, and how long it was ready to run and waited for a processor.

A rank that waits long shares its processors with other work, which explains slow steps.
"""

from __future__ import annotations

SCHEDSTAT = "/proc/thread-self/schedstat"
"""Linux's file about the calling thread: nanoseconds that it ran and waited, and how often it ran."""
NANOSECONDS = 1e9
"""Nanoseconds of a second."""


class ProcessorTime:
    """Measures the processor time of the calling thread from the creation of this object on."""

    def __init__(self, path: str = SCHEDSTAT) -> None:
        self._path = path
        self._before = self._read()

    def seconds_since_start(self) -> dict[str, float]:
        """`ran` and `waited`, seconds; empty if the kernel does not count them."""
        before = self._before
        after = self._read()
        if before is None or after is None:
            return {}
        seconds = {}
        for name in after:
            seconds[name] = max(0, after[name] - before[name]) / NANOSECONDS
        return seconds

    def _read(self) -> dict[str, int] | None:
        """`ran` and `waited` since the thread started, nanoseconds; None if the kernel does not count them."""
        try:
            with open(self._path, encoding="ascii") as file:
                ran, waited = map(int, file.read().split()[:2])
        except (OSError, ValueError):
            return None
        return {"ran": ran, "waited": waited}
