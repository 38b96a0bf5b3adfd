"""The two clocks of a step: the host's, and marks on the device's own time line. Neither synchronises."""

import time
from typing import Any, List

import torch

now = time.perf_counter
"""Host seconds, monotonic."""


class HostClock:
    """Marks of a device that works in step with the host: plain host times."""

    drain_every = 1
    """Steps after which marks are worth asking for."""

    def mark(self) -> Any:
        """A point in time."""
        return now()

    def reached(self, mark: Any) -> bool:
        """Whether the device has come to the mark."""
        return True

    def seconds(self, start: Any, end: Any) -> float:
        """Device seconds between two marks that were reached."""
        return end - start

    def release(self, marks: List[Any]) -> None:
        """Take marks back for reuse."""


class CudaClock:
    """Marks as CUDA events on the current stream, reused from a pool and never waited for."""

    drain_every = 100
    """Steps after which marks are worth asking for: a query is a call into the driver."""

    def __init__(self) -> None:
        self._pool: List[Any] = []

    def mark(self) -> Any:
        """Record an event on the current stream."""
        event = self._pool.pop() if self._pool else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, mark: Any) -> bool:
        """Whether the device has come to the event; asks, does not wait."""
        return bool(mark.query())

    def seconds(self, start: Any, end: Any) -> float:
        """Device seconds between two events that were reached."""
        return float(start.elapsed_time(end)) / 1e3

    def release(self, marks: List[Any]) -> None:
        """Take events back for reuse."""
        self._pool.extend(marks)
