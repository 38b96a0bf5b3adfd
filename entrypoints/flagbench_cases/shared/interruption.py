"""Signals that ask this process to stop: noted from the first moment until the record is printed, never fatal.

It is imported before all else of this package, and imports next to nothing: until then a signal leaves no record.
"""

import os
import signal
import time
import types
from typing import Any, Dict, NoReturn, Optional

# Signals that do not end a process, that cannot be caught, or that report a fault of this process itself.
OTHERS = (
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT),
    *(signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
)
SIGNALS = tuple(sorted(set(signal.valid_signals()) - set(OTHERS)))
# Copies of one signal, as a caller and a terminal send them, arrive within this.
COPY_SECONDS = 0.1


class Interruption:
    """Truthy once a signal has come; a second one raises KeyboardInterrupt, to end everything at once.

    A signal that the caller ignores stays ignored, as SIGHUP under nohup.
    """

    def __init__(self) -> None:
        self.number: Optional[int] = None
        self._at = 0.0
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        # Who ignores these or holds those back, and starts this process, leaves it so: the end of a rank could not be
        # told, and no request to stop would come.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            # None is one that Python does not know, as faulthandler's.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: Optional[types.FrameType]) -> None:
        if self.number is None:
            self.number, self._at = number, time.monotonic()
        elif time.monotonic() - self._at > COPY_SECONDS:
            self._at = float("inf")  # raised only once, so that cleaning up is not interrupted
            raise KeyboardInterrupt

    def exit_within(self, seconds: float, code: int) -> None:
        """End this process with `code` after `seconds` of real time or at the next signal, even if it is blocked."""

        def leave(number: int, frame: Optional[types.FrameType]) -> NoReturn:
            os._exit(code)

        for number in self._before:
            signal.signal(number, leave)
        signal.signal(signal.SIGALRM, leave)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def __bool__(self) -> bool:
        return self.number is not None

    @property
    def reason(self) -> str:
        """What came, for the record."""
        if self.number is None:
            return "not interrupted"
        known = self.number in list(signal.Signals)
        return "interrupted by %s" % (signal.Signals(self.number).name if known else "signal %d" % self.number)
