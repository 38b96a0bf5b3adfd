"""The sampling loop: a start line, then one line a sample, never more often than the interval."""

from typing import Any, Callable, ContextManager, Dict, List, Protocol

from flagbench_cases.telemetry.cpu import CpuProbe
from flagbench_cases.telemetry.monitor import Monitor, MonitorUnavailable, NoDevices

MIN_INTERVAL_S = 1.0

Line = Dict[str, Any]


class Sink(Protocol):
    """Where lines go."""

    def append(self, lines: List[Line]) -> bool:
        """Take whole lines; False when there is no room for them."""


def run(
    monitor: Monitor,
    cpu: CpuProbe,
    open_sink: Callable[[], ContextManager[Sink]],
    *,
    interval: float,
    now: Callable[[], float],
    clock: Callable[[], float],
    wait: Callable[[float], bool],
) -> None:
    """Sample until `wait` says stop or the sink is full.

    `interval` is in seconds, from the start of one sample to the start of the next: a late sample is not
    caught up. `now` gives unix seconds, `clock` monotonic seconds; `wait(seconds)` may return early, and is
    True to stop. The sink is opened, which tells the parent that the devices may be used, only after the
    first sample.
    """
    if not interval >= MIN_INTERVAL_S:
        raise ValueError("the interval is %r s; choose at least %.1f s" % (interval, MIN_INTERVAL_S))
    head: Line = {"kind": "start", "t": round(now(), 3), "interval_s": interval}
    try:
        try:
            monitor.open()
        except MonitorUnavailable as error:
            head.update(error.known, unavailable=str(error))
            monitor.close()
            monitor = NoDevices()
        head.update(monitor.static())
        # Processes of the run itself are no other tenants, should it already hold its devices.
        head["run_pids"] = sorted(cpu.tree())
        started = clock()
        lines = [head, *_sample(monitor, cpu, now())]
        with open_sink() as sink:
            while sink.append(lines) and not _stop_before(started + interval, clock, wait):
                started = clock()
                lines = _sample(monitor, cpu, now())
    finally:
        monitor.close()


def _sample(monitor: Monitor, cpu: CpuProbe, t: float) -> List[Line]:
    t = round(t, 3)
    reading = monitor.sample()
    errors: List[Line] = [{"kind": "error", "t": t, **error} for error in reading.errors]
    return [*errors, {"kind": "sample", "t": t, "cpu": cpu.sample(), "devices": reading.devices}]


def _stop_before(deadline: float, clock: Callable[[], float], wait: Callable[[float], bool]) -> bool:
    """Wait until `deadline`; True when a stop comes first, or came while the sample was taken."""
    while True:
        left = deadline - clock()
        if wait(max(left, 0.0)):
            return True
        if clock() >= deadline:
            return False
