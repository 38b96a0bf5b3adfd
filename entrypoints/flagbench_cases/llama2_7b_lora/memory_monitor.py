"""The publisher's monitor: a thread that reads this process's memory, without a pause, while an epoch is trained.

It takes the interpreter's lock from the step over and over, so it is part of the published iteration time.
"""

import threading
from typing import Any, Iterable, Iterator

import psutil


class MemoryMonitor:
    """Reads the resident memory in a thread of its own from `with` to the end of its block; `peak` in bytes."""

    def __init__(self) -> None:
        self.peak = 0
        self._process = psutil.Process()
        self._watching = True
        self._thread = threading.Thread(target=self._watch, name="memory-monitor", daemon=True)

    def _watch(self) -> None:
        while self._watching:
            self.peak = max(self._process.memory_info().rss, self.peak)

    def __enter__(self) -> "MemoryMonitor":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._watching = False
        self._thread.join()


def monitored(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, with the monitor running from before the first is made until the last is done or given up."""
    with MemoryMonitor():
        yield from batches
