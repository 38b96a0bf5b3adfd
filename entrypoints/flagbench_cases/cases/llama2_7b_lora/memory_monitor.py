"""The publisher's monitor: a thread that reads this process's memory, without a pause, while an epoch is trained.

It takes the interpreter's lock from the step over and over, so it is part of the published iteration time. Before and
after an epoch garbage is collected, and torch's cache is given back to the device.
"""

import gc
import threading
from typing import Any, Iterable, Iterator, Optional

import psutil
import torch


class MemoryMonitor:
    """Reads the resident memory in a thread of its own from `with` to the end of its block; `peak` in bytes."""

    def __init__(self, device: Optional[Any] = None) -> None:
        """`device` is asked for its peak before its memory is given back."""
        self.peak = 0
        self._device = device
        self._process = psutil.Process()
        self._watching = True
        self._thread = threading.Thread(target=self._watch, name="memory-monitor", daemon=True)

    def _watch(self) -> None:
        while self._watching:
            self.peak = max(self._process.memory_info().rss, self.peak)

    def _give_back(self) -> None:
        if self._device is not None:
            self._device.memory_peak()
        gc.collect()
        torch.cuda.empty_cache()  # does nothing where there is no device

    def __enter__(self) -> "MemoryMonitor":
        self._give_back()
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._watching = False
        self._thread.join()
        self._give_back()


def monitored(batches: Iterable[Any], device: Optional[Any] = None) -> Iterator[Any]:
    """The batches, with the monitor running from before the first is made until the last is done or given up."""
    with MemoryMonitor(device):
        yield from batches
