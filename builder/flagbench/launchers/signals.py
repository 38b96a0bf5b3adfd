"""Signals that ask this process to stop, handed on to the run it watches."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Forwarding:
    """Hands signals to the run, which ends its ranks and still prints its record; this process waits for it.

    Ctrl-C reaches a run of this terminal by itself as well; a second copy of a signal changes nothing there. A signal
    that the caller ignores (SIGHUP under nohup) stays ignored. One that comes before the run has started is kept.
    """

    def __init__(self) -> None:
        self._deliver: Callable[[int], None] | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Forwarding:
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._hand_on)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def early(self) -> int | None:
        """The first signal that came before there was a run to hand it to."""
        return self._early[0] if self._early else None

    def to(self, deliver: Callable[[int], None]) -> None:
        """Hand everything to `deliver` from now on. It is called between any two steps of the main thread."""
        self._deliver = deliver
        for number in self._early:
            deliver(number)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        if self._deliver is None:
            self._early.append(number)
        else:
            self._deliver(number)
