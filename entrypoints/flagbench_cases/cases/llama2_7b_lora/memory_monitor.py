"""Repeats the publisher's memory monitor: a thread that continuously reads this process's memory during an epoch.

The thread contends with the step for the interpreter lock, so it affects the published iteration time. Before and
after an epoch, garbage is collected and torch's cache is emptied.
"""

from __future__ import annotations

import gc
import threading
from typing import Any, Iterable, Iterator

import psutil
import torch


class MemoryMonitor:
    """A context manager that reads the resident memory in a thread."""

    def __init__(self, device: Any | None = None) -> None:
        """`device`: its peak of used memory is read before its cache is emptied, so that it is not missed."""
        self.peak = 0
        """The largest resident memory that was read, bytes."""
        self._device = device
        self._process = psutil.Process()
        self._watching = True
        self._thread = threading.Thread(target=self._watch, name="memory-monitor", daemon=True)

    def _watch(self) -> None:
        while self._watching:
            self.peak = max(self._process.memory_info().rss, self.peak)

    def _release(self) -> None:
        if self._device is not None:
            self._device.sample_memory_peak()
        gc.collect()
        torch.cuda.empty_cache()  # does nothing without a device

    def __enter__(self) -> MemoryMonitor:
        self._release()
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._watching = False
        self._thread.join()
        self._release()


def monitored(batches: Iterable[Any], device: Any | None = None) -> Iterator[Any]:
    """Iterate over the batches with the monitor running."""
    with MemoryMonitor(device):
        yield from batches
