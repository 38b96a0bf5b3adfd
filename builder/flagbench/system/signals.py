"""Signals that stop this process: forwarded to the run or build it waits for, or raised as an interrupt."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

FORWARDED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU),
)
GRACE_SECONDS = 10.0
"""Seconds from the first signal until the run is killed, as for `docker stop`."""
AT_ONCE_SECONDS = 4.0
"""The same after the second signal: enough to end every process and to print the record."""
_TICK_SECONDS = 1.0
_END_SECONDS = 0.02
"""Seconds between two looks at a process that has closed its output, and so is about to end."""


@contextmanager
def raising_interrupt() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, unless the caller ignores them.

    For the main thread.
    """
    stopping = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    numbers = [number for number in stopping if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Delaying:
    """Delays the first signal that would end this process, so that what was measured is stored before it ends.

    A second one raises KeyboardInterrupt. A run that starts after the first one is sent it: see Forwarding.
    """

    def __init__(self) -> None:
        self.signalled: int | None = None
        """The first signal."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Delaying:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signalled is not None:
            raise KeyboardInterrupt
        self.signalled = number
        with suppress(RuntimeError):  # it interrupted the writing of another line
            sys.stderr.write(
                "flagbench: what was measured, if anything, is stored first; interrupt again to end at once\n"
            )


class Forwarding:
    """Forwards signals to the run, which ends its ranks and still prints its record; this process waits for it.

    A signal that the caller ignores (SIGHUP under nohup) stays ignored. One that arrives before the run has started
    is kept for it; a second one then raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._signals: deque[int] = deque()
        # The main thread sleeps on a pipe: a signal that another thread receives, or that arrives just before it
        # falls asleep, wakes it too.
        self._awake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._following = False
        self._before: dict[int, Any] = {}
        self._waker_before = -1

    def __enter__(self) -> Forwarding:
        self._waker_before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in FORWARDED:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._forward)
            delaying = getattr(before, "__self__", None)
            if isinstance(delaying, Delaying) and delaying.signalled == number:
                self._signals.append(number)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._waker_before)
        os.close(self._waker)
        os.close(self._awake)

    @property
    def early(self) -> bool:
        """Whether a signal arrived before the run had started."""
        return bool(self._signals)

    def follow(
        self,
        process: subprocess.Popen[bytes],
        read: Mapping[IO[bytes], Callable[[bytes], object]],
        send: Callable[[int], object],
        kill: Callable[[], object],
    ) -> tuple[int | None, float | None]:
        """Forward signals by `send` until the process has closed its output and ended.

        Returns the first signal, and the seconds from it after which the run was killed, where it was. No thread is
        used: a run must not be lost because no more can be started.

        Args:
            read: called with what is printed to each pipe of the process.
        """
        self._following = True
        readers = {stream.fileno(): reader for stream, reader in read.items()}
        waiting = select.poll()
        for descriptor in (self._awake, *readers):
            waiting.register(descriptor, select.POLLIN)
        signalled: int | None = None
        overdue: float | None = None
        began = deadline = 0.0
        while readers or process.poll() is None:
            wait = _TICK_SECONDS
            if not readers:
                wait = _END_SECONDS
            if self._signals:
                wait = 0.0
            elif signalled is not None:
                wait = min(wait, max(0.0, deadline - time.monotonic()))
            self._pass_on_output(waiting, readers, wait)
            while self._signals:
                number = self._signals.popleft()
                if signalled is None:
                    signalled, began = number, time.monotonic()
                    deadline = began + GRACE_SECONDS
                elif overdue is None:
                    deadline = min(deadline, time.monotonic() + AT_ONCE_SECONDS)
                send(number)
            if signalled is not None and time.monotonic() >= deadline:
                if overdue is not None:
                    break  # a process stuck in a driver outlives even SIGKILL
                overdue = time.monotonic() - began
                deadline = time.monotonic() + GRACE_SECONDS
                kill()
        return signalled, overdue

    def _pass_on_output(
        self, waiting: select.poll, readers: dict[int, Callable[[bytes], object]], seconds: float
    ) -> None:
        """Wait so long for output or a signal, and give the output to its reader; closed pipes are left out."""
        for descriptor, _ in waiting.poll(1000 * seconds):
            content = os.read(descriptor, 2**16)
            if descriptor == self._awake:
                continue  # the number of a signal, which its handler has noted
            if content:
                readers[descriptor](content)
            else:
                waiting.unregister(descriptor)
                del readers[descriptor]

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self.early and not self._following:
            raise KeyboardInterrupt
        self._signals.append(number)
