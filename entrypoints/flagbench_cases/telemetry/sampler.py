"""The sampling loop of a separate process: writes a start line, then a line per sample until it is stopped."""

from __future__ import annotations

import ctypes
import math
import os
import signal
from typing import Any, Callable, ContextManager, Dict, Protocol

from flagbench_cases.telemetry.cpu import CpuProbe
from flagbench_cases.telemetry.monitors import Monitor, MonitorUnavailable, NoDevices

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_STOP = frozenset((signal.SIGTERM, signal.SIGINT))
"""The signals that ask this process to stop."""
_PARENT_SIGNAL = signal.SIGUSR1
"""The signal that the kernel sends when the thread of the parent that started this process ends.

It is no request to stop: the thread may be a worker of a parent that continues. Only a changed parent id means that
the parent has ended.
"""

Line = Dict[str, Any]


class Sink(Protocol):
    """The destination of lines."""

    def append(self, lines: list[Line]) -> bool:
        """Append complete lines; False if the destination is full."""


def run(
    monitor: Monitor,
    cpu: CpuProbe,
    open_sink: Callable[[], ContextManager[Sink]],
    *,
    interval: float,
    now: Callable[[], float],
    clock: Callable[[], float],
    wait: Callable[[float], bool],
    used_from: float = math.inf,
) -> None:
    """Sample until `wait` returns True or the sink is full.

    The sink is opened after the first sample. The parent waits for that before the run uses the devices, so that the
    start line has what else used them.

    Args:
        open_sink: opens the destination of the lines.
        interval: seconds from the start of one sample to the start of the next; a delayed sample shifts the following
            ones.
        now: returns Unix seconds.
        clock: returns monotonic seconds.
        wait: waits for a number of seconds, or less; returns True to stop.
        used_from: the time by `clock` from which the run uses the devices even without a first sample.
    """
    head: Line = {"kind": "start", "t": round(now(), 3), "interval_s": interval}
    try:
        try:
            monitor.open()
        except MonitorUnavailable as error:
            head.update(error.facts, unavailable=str(error))
            monitor.close()
            monitor = NoDevices()
        head.update(monitor.static())
        # Processes of the run itself are not other tenants, in case they already use the devices.
        head["run_pids"] = sorted(cpu.tree())
        started = clock()
        lines = [head]
        if started > used_from:
            lines.append(_forget_usage(head["devices"], now()))
        lines += _sample(monitor, cpu, now(), clock)
        with open_sink() as sink:
            while sink.append(lines) and not _stop_before(started + interval, clock, wait):
                started = clock()
                lines = _sample(monitor, cpu, now(), clock)
    finally:
        monitor.close()


def _forget_usage(devices: list[Line], t: float) -> Line:
    """Remove the memory and the processes on `devices`, which may be the run's by now; returns an error that says so.

    The error is a line of the file.
    """
    for device in devices:
        device.pop("mem_used_bytes", None)
        device.pop("processes", None)
    reason = "the monitor answered only after the ranks had started: what used the devices before them is not known"
    return {"kind": "error", "t": round(t, 3), "reason": reason}


def _sample(monitor: Monitor, cpu: CpuProbe, t: float, clock: Callable[[], float]) -> list[Line]:
    """The lines of one sample at the time `t`: its errors, then the sample itself.

    The sample has `took`, the seconds from `t` until every device was read.
    """
    t = round(t, 3)
    began = clock()
    reading = monitor.sample()
    took = round(clock() - began, 3)
    lines: list[Line] = [{"kind": "error", "t": t, **error} for error in reading.errors]
    lines.append({"kind": "sample", "t": t, "took": took, "cpu": cpu.sample(), "devices": reading.devices})
    return lines


def _stop_before(deadline: float, clock: Callable[[], float], wait: Callable[[float], bool]) -> bool:
    """Wait until `deadline`; returns True if a stop was requested before."""
    while True:
        left = deadline - clock()
        if wait(max(left, 0.0)):
            return True
        if clock() >= deadline:
            return False


class Lifetime:
    """Waits between samples and determines when to stop.

    The signals stay blocked and are consumed by the wait itself, so none is lost between a check and a wait, and none
    interrupts the writing of a line.
    """

    def __init__(
        self,
        getppid: Callable[[], int] = os.getppid,
        take: Callable[[Any, float], Any | None] = signal.sigtimedwait,
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
        if info is not None and info.si_signo in _STOP:
            return True
        return self._getppid() != self._parent
