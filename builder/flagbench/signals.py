"""Signals that stop this process: forwarded to the run or build it waits for, or raised as an interrupt."""

from __future__ import annotations

import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
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


@contextmanager
def raising_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, unless the caller ignores them.

    For the main thread.
    """
    numbers = [each for each in (signal.SIGHUP, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Forwarding:
    """Forwards signals to the run, which ends its ranks and still prints its record; this process waits for it.

    A signal that the caller ignores (SIGHUP under nohup) stays ignored. One that arrives before the run has started
    is kept for it; a second one then raises KeyboardInterrupt.
    """

    def __init__(self, grace: float | None = None) -> None:
        """`grace`: seconds, instead of GRACE_SECONDS."""
        self._grace = GRACE_SECONDS if grace is None else grace
        self._events: deque[int | Exception | None] = deque()
        # The main thread sleeps on a socket. Asleep on a lock, as that of a queue, it misses a signal that another
        # thread receives, or that arrives just before it falls asleep.
        self._awake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._following = False
        self._before: dict[int, Any] = {}
        self._waker_before = -1

    def __enter__(self) -> Forwarding:
        self._waker_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._forward)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._waker_before)
        self._waker.close()
        self._awake.close()

    @property
    def early(self) -> bool:
        """Whether a signal arrived before the run had started."""
        return bool(self._events)

    def follow(
        self, wait: Callable[[], object], send: Callable[[int], object], kill: Callable[[], object]
    ) -> tuple[int | None, float | None]:
        """Forward signals by `send` until the run has ended, for which `wait` blocks in a thread.

        Returns the first signal, and the seconds from it after which the run was killed, where it was. Raises what
        `wait` raises.
        """
        self._following = True
        Thread(target=self._wait, args=(wait,), daemon=True).start()
        signalled: int | None = None
        overdue: float | None = None
        began = deadline = 0.0
        while True:
            if not self._events:
                left = None if signalled is None else max(0.0, deadline - time.monotonic())
                if select.select([self._awake], [], [], left)[0]:
                    self._awake.recv(4096)
                    continue
                if overdue is not None:
                    return signalled, overdue  # a process stuck in a driver outlives even SIGKILL
                overdue = time.monotonic() - began
                deadline = time.monotonic() + self._grace
                kill()
                continue
            event = self._events.popleft()
            if event is None:
                return signalled, overdue
            if isinstance(event, Exception):
                raise event
            if signalled is None:
                signalled, began = event, time.monotonic()
                deadline = began + self._grace
            elif overdue is None:
                deadline = min(deadline, time.monotonic() + AT_ONCE_SECONDS)
            send(event)

    def _wait(self, wait: Callable[[], object]) -> None:
        try:
            wait()
        except Exception as error:  # for the main thread, which would wait forever
            self._events.append(error)
        else:
            self._events.append(None)
        with suppress(OSError):  # closed where a killed process was not waited for
            self._waker.send(b"\0")

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self.early and not self._following:
            raise KeyboardInterrupt
        self._events.append(number)
