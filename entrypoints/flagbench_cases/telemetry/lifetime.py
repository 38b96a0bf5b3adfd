"""When a sampler ends: on SIGTERM or SIGINT, and with the process that started it."""

import ctypes
import os
import signal
from typing import Any, Callable, Optional

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_STOP = frozenset((signal.SIGTERM, signal.SIGINT))
# Not a stop by itself: the kernel sends it when the parent's *thread* that started us ends, which may be a
# worker thread of a parent that lives on. Only a changed parent id is the parent's death.
_PARENT_SIGNAL = signal.SIGUSR1


class Lifetime:
    """Waits between samples and says when to stop.

    The signals stay blocked and are taken out of the queue by the wait itself, so none can arrive between a
    check and a wait, and none can interrupt the writing of a line.
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
        """Block the signals and ask the kernel for one when the parent dies.

        Where the request is refused (a seccomp filter), the parent's id is still looked at after every wait.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP | {_PARENT_SIGNAL})
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(_PARENT_SIGNAL), 0, 0, 0)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`, less when a signal comes; True when it is time to stop."""
        info = self._take(_STOP | {_PARENT_SIGNAL}, seconds)
        return (info is not None and info.si_signo in _STOP) or self._getppid() != self._parent
