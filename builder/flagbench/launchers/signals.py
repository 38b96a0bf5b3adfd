"""Signals that stop this process, forwarded to the run it waits for."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

FORWARDED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU),
)
GRACE_SECONDS = 10.0
"""Seconds from the first signal until the run is killed, as for `docker stop`."""
AT_ONCE_SECONDS = 4.0
"""The same after the second signal: enough to end every process and to print the record."""


class Grace:
    """How long a run may take to end after a signal."""

    def __init__(self) -> None:
        self.signalled: int | None = None
        """The first signal that was passed on."""
        self._began = 0.0
        self._deadline: float | None = None

    def note(self, number: int) -> None:
        """A signal was passed on."""
        clock = time.monotonic()
        if self._deadline is None:
            self.signalled, self._began, self._deadline = number, clock, clock + GRACE_SECONDS
        else:
            self._deadline = min(self._deadline, clock + AT_ONCE_SECONDS)

    def left(self) -> float | None:
        """Seconds until the run is killed; None until a signal has arrived."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def used(self) -> float:
        """Seconds since the first signal."""
        return time.monotonic() - self._began


class Forwarding:
    """Forwards signals to the run, which ends its ranks and still prints its record; this process waits for it.

    A signal that the caller ignores (SIGHUP under nohup) stays ignored. One that arrives before the run has started
    is kept for it; a second one then raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._deliver: Callable[[int], None] | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Forwarding:
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._forward)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def early(self) -> int | None:
        """The first signal that arrived before the run had started."""
        return self._early[0] if self._early else None

    def to(self, deliver: Callable[[int], None]) -> None:
        """Deliver every signal to `deliver` from now on. It is called between any two steps of the main thread."""
        self._deliver = deliver
        for number in self._early:
            deliver(number)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._deliver is None:
            self._early.append(number)
            if len(self._early) > 1:
                raise KeyboardInterrupt
        else:
            self._deliver(number)
