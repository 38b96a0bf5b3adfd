"""The clocks of a run: host time, and marks on the device's timeline. Reading them does not synchronise the device.

A mark is a point in the queue of work of a device. It has a time once the device has reached it.
"""

from __future__ import annotations

import time
from typing import Any

import torch

now = time.perf_counter
"""The current time of the host, seconds since an arbitrary point; monotonic."""


class HostClock:
    """Marks for a synchronous device: host times."""

    drain_every = 1
    """Number of steps after which marks are queried."""

    def mark(self) -> Any:
        """A mark at the current host time."""
        return now()

    def reached(self, mark: Any) -> bool:
        """Whether the device has reached the mark."""
        return True

    def seconds(self, start: Any, end: Any) -> float:
        """Device seconds between two reached marks."""
        return end - start

    def release(self, marks: list[Any]) -> None:
        """Return marks that are no longer needed; does nothing, since they are numbers."""

    def copy(self, value: torch.Tensor) -> torch.Tensor:
        """The value on the host, valid when the next mark is reached."""
        return value.clone()


class CudaClock:
    """Marks as CUDA events on the current stream. They are reused, and never waited for."""

    drain_every = 100
    """Number of steps after which marks are queried; a query is a driver call."""

    def __init__(self) -> None:
        self._pool: list[Any] = []

    def mark(self) -> Any:
        """Record an event on the current stream."""
        event = self._take_event()
        event.record()
        return event

    def _take_event(self) -> Any:
        """An event that is not in use."""
        if not self._pool:
            return torch.cuda.Event(enable_timing=True)
        return self._pool.pop()

    def reached(self, mark: Any) -> bool:
        """Whether the device has reached the event; does not wait."""
        return bool(mark.query())

    def seconds(self, start: Any, end: Any) -> float:
        """Device seconds between two reached events."""
        milliseconds = float(start.elapsed_time(end))
        return milliseconds / 1e3

    def release(self, marks: list[Any]) -> None:
        """Return events that are no longer needed, for reuse."""
        self._pool.extend(marks)

    def copy(self, value: torch.Tensor) -> torch.Tensor:
        """The value on the host, valid when the next mark is reached. Waits for nothing."""
        return torch.empty_like(value, device="cpu", pin_memory=True).copy_(value, non_blocking=True)
