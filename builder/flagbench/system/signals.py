"""Handles the signals that would stop this process, such as Ctrl-C or the SIGTERM of a scheduler.

`raising_interrupt` raises KeyboardInterrupt, for commands that may end at any time. `Delaying` lets a series of runs
store what it measured. `Forwarding` passes signals to the child process of a run, which then ends by itself.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, Any, NamedTuple

FORWARDED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU),
)
"""The signals that end a process by default and that users, schedulers and timers send."""
_STOPPING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""The signals by which a terminal, a user or a scheduler ends a program."""
GRACE_SECONDS = 10.0
"""Seconds from the first signal until the process is killed, as for `docker stop`."""
AT_ONCE_SECONDS = 4.0
"""Seconds from the second signal until the process is killed: enough to end every rank and to print the record."""
_TICK_SECONDS = 1.0
"""Longest sleep, seconds, while the process has its output open. A signal or output ends the sleep at once."""
_END_SECONDS = 0.02
"""Seconds between two looks at a process that has closed its output, and so is about to end."""
_READ_BYTES = 2**16
"""Most bytes read at once: the capacity of a pipe on Linux."""


@contextmanager
def raising_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGINT, SIGTERM and SIGHUP, unless the caller ignores them.

    Only the main thread may use it, because Python sets signal handlers in no other.
    """
    before: dict[int, Any] = {}
    for number in _STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


class Delaying:
    """Delays the first signal that would end this process, so that what was measured is stored before it ends.

    A second signal raises KeyboardInterrupt. A run that starts after the first signal gets it: see `Forwarding`.
    """

    def __init__(self) -> None:
        self.signalled: int | None = None
        """The number of the first signal; None if there was none."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Delaying:
        for number in _STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: note the first one, raise KeyboardInterrupt for the second."""
        if self.signalled is not None:
            raise KeyboardInterrupt
        self.signalled = number
        with suppress(RuntimeError):  # the signal interrupted the writing of another line to stderr
            sys.stderr.write(
                "flagbench: what was measured, if anything, is stored first; interrupt again to end at once\n"
            )


class Interruption(NamedTuple):
    """The signal and the kill by which a process was interrupted while it was followed."""

    signal: int | None
    """The number of the first signal; None if there was none."""
    killed_after: float | None
    """Seconds from the first signal until the process was killed; None if it ended by itself."""


class _Termination:
    """The first signal passed to a process, and the time at which the process is killed for not ending."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.killed_after: float | None = None
        self._signalled_at = 0.0
        self._deadline = 0.0

    def note_signal(self, number: int) -> None:
        """Set the deadline at the first signal, and shorten it at each later one until the process is killed."""
        now = time.monotonic()
        if self.signal is None:
            self.signal = number
            self._signalled_at = now
            self._deadline = now + GRACE_SECONDS
        elif self.killed_after is None:
            self._deadline = min(self._deadline, now + AT_ONCE_SECONDS)

    def note_kill(self) -> None:
        """Note that the process is killed now, and set a last deadline for its end."""
        now = time.monotonic()
        self.killed_after = now - self._signalled_at
        self._deadline = now + GRACE_SECONDS

    @property
    def is_due(self) -> bool:
        """Whether the deadline has passed."""
        return self.signal is not None and time.monotonic() >= self._deadline

    def limit_wait(self, seconds: float) -> float:
        """The seconds to wait: at most `seconds`, and not beyond the deadline if there is one."""
        if self.signal is None:
            return seconds
        return min(seconds, max(0.0, self._deadline - time.monotonic()))


class Forwarding:
    """Forwards signals to the run, which ends its ranks and still prints its record; this process waits for it.

    A signal that the caller ignores (SIGHUP under nohup) stays ignored. A signal that arrives before the run has
    started is kept for it; a second one then raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._signals: deque[int] = deque()
        # The main thread sleeps on a pipe, to which Python writes for every signal. So a signal that another thread
        # receives, or that arrives just before the main thread falls asleep, wakes it too.
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
            # The handler before may be a method of a Delaying, which has noted a signal for this run.
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
        watch: Callable[[], object] | None = None,
    ) -> Interruption:
        """Wait until the process has closed its output and ended; meanwhile forward every signal by `send`.

        The process is killed if it does not end in time after a signal. No thread is used: a run must not be lost
        because no more threads can be started.

        Args:
            process: the child process.
            read: its pipes, each with a function that is called with what is printed to it.
            send: sends the signal of that number to the process.
            kill: ends the process at once.
            watch: called about once a second.
        """
        self._following = True
        readers = {stream.fileno(): reader for stream, reader in read.items()}
        poller = select.poll()
        for descriptor in (self._awake, *readers):
            poller.register(descriptor, select.POLLIN)
        termination = _Termination()
        while readers or process.poll() is None:
            wait = _TICK_SECONDS if readers else _END_SECONDS
            if self._signals:
                wait = 0.0
            self._pass_on_output(poller, readers, termination.limit_wait(wait))
            if watch is not None:
                watch()
            while self._signals:
                number = self._signals.popleft()
                termination.note_signal(number)
                send(number)
            if termination.is_due:
                if termination.killed_after is not None:
                    break  # a process stuck in a driver outlives even SIGKILL
                termination.note_kill()
                kill()
        return Interruption(termination.signal, termination.killed_after)

    def _pass_on_output(
        self, poller: select.poll, readers: dict[int, Callable[[bytes], object]], seconds: float
    ) -> None:
        """Wait up to `seconds` for output or a signal, and call the readers of the pipes that have output.

        A pipe that was closed is removed from `poller` and `readers`.
        """
        milliseconds = 1000 * seconds
        for descriptor, _ in poller.poll(milliseconds):
            content = os.read(descriptor, _READ_BYTES)
            if descriptor == self._awake:
                continue  # the number of a signal, which its handler has noted
            if content:
                readers[descriptor](content)
            else:
                poller.unregister(descriptor)
                del readers[descriptor]

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: keep it for the process that is followed."""
        if self.early and not self._following:
            raise KeyboardInterrupt
        self._signals.append(number)
