"""Determines when a sampler ends: on SIGTERM or SIGINT, and when the process that started it ends."""

import ctypes
import os
import signal
from typing import Any, Callable, Optional

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_STOP = frozenset((signal.SIGTERM, signal.SIGINT))
# Not a request to stop: the kernel sends this signal when the parent's *thread* that started this process ends, which
# may be a worker thread of a parent that continues. Only a changed parent id means that the parent has ended.
_PARENT_SIGNAL = signal.SIGUSR1


class Lifetime:
    """Waits between samples and determines when to stop.

    The signals stay blocked and are consumed by the wait itself, so none is lost between a check and a wait, and none
    interrupts the writing of a line.
    """

    def __init__(
        self,
        getppid: Callable[[], int] = os.getppid,
        take: Callable[[Any, float], Optional[Any]] = signal.sigtimedwait,
    ) -> None:
        self._getppid = getppid
        self._take = take
        self._parent = getppid()

    def bind(self) -> None:
        """Block the signals and request one from the kernel when the parent dies.

        If the request is denied (a seccomp filter), the parent's id is still checked after every wait.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP | {_PARENT_SIGNAL})
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(_PARENT_SIGNAL), 0, 0, 0)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`, or until a signal arrives; returns whether to stop."""
        info = self._take(_STOP | {_PARENT_SIGNAL}, seconds)
        return (info is not None and info.si_signo in _STOP) or self._getppid() != self._parent
