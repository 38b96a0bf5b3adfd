"""Signals that ask this process to stop: recorded from the start until the record is printed, never fatal.

It is imported before everything else in this package and imports very little, not even `__future__`, because a signal
received before that leaves no record.
"""

import os
import signal
import time
import types
from typing import Any, Dict, NoReturn, Optional

UNHANDLED = (
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT),
    *(signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
)
"""Signals that do not end a process, that cannot be caught, or that report a fault of this process itself."""
SIGNALS = tuple(sorted(set(signal.valid_signals()) - set(UNHANDLED)))
"""Signals that ask this process to stop."""
COPY_SECONDS = 0.1
"""If a caller and a terminal both send the same signal, the second one arrives within this time."""


class Interruption:
    """Records the first signal that asks this process to stop; a second one raises KeyboardInterrupt.

    A signal that the caller ignores stays ignored, such as SIGHUP under nohup.
    """

    def __init__(self) -> None:
        self.number: Optional[int] = None
        """The first signal that was received; None if there was none."""
        self._received_at = 0.0
        self._handlers_before: Dict[int, Any] = {}
        self.abandoned = False
        """Whether a thread may wait for a network for long: this process ends without waiting for it."""

    def __enter__(self) -> "Interruption":
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers_before[number] = signal.signal(number, self._note)
        # A caller that ignores SIGCHLD or blocks signals passes that on to this process, which then could not learn
        # the exit status of a rank, or would never receive a request to stop.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handlers_before)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers_before.items():
            if handler is None:  # not installed by Python, such as faulthandler's
                handler = signal.SIG_DFL
            signal.signal(number, handler)

    def _note(self, number: int, frame: Optional[types.FrameType]) -> None:
        """The handler of all signals. Raises KeyboardInterrupt for the second one."""
        if self.number is None:
            self.number = number
            self._received_at = time.monotonic()
        elif time.monotonic() - self._received_at > COPY_SECONDS:
            self._received_at = float("inf")  # raised only once, so that clean-up is not interrupted
            raise KeyboardInterrupt

    def abandon_threads(self) -> None:
        """Have this process end without waiting for its threads."""
        self.abandoned = True

    def exit_within(self, seconds: float, code: int) -> None:
        """Exit with `code` after `seconds` of real time or at the next signal, even if this process is blocked."""

        def leave(number: int, frame: Optional[types.FrameType]) -> NoReturn:
            os._exit(code)

        for number in self._handlers_before:
            signal.signal(number, leave)
        signal.signal(signal.SIGALRM, leave)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    @property
    def received(self) -> bool:
        """Whether a signal was received."""
        return self.number is not None

    @property
    def reason(self) -> str:
        """The received signal, for the record."""
        if self.number is None:
            return "not interrupted"
        if self.number in list(signal.Signals):
            return f"interrupted by {signal.Signals(self.number).name}"
        return f"interrupted by signal {self.number}"
