"""The sampling loop on a clock of its own, and what ends it."""

from __future__ import annotations

import signal
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from flagbench_cases.telemetry.monitors import MonitorSample, MonitorUnavailable, NoDevices
from flagbench_cases.telemetry.sampler import Lifetime, run

pytestmark = pytest.mark.image


class Clock:
    """Time that passes only by waiting and by working; asks to stop at `end`."""

    def __init__(self, end: float, early: float = 1.0) -> None:
        self.time = 0.0
        self._end = end
        self._early = early

    def read(self) -> float:
        return self.time

    def wait(self, seconds: float) -> bool:
        # A wait may end early; a little is always waited, or a loop on it would never end.
        self.time += max(seconds * self._early, 1e-3) if seconds else 0.0
        return self.time >= self._end


class Cpu:
    """A node on which one sample takes `cost` seconds."""

    def __init__(self, clock: Clock, *cost: float) -> None:
        self.starts: list[float] = []
        self._clock = clock
        self._cost = list(cost)

    def tree(self) -> set[int]:
        return {7, 3}

    def sample(self) -> dict[str, Any]:
        self.starts.append(self._clock.time)
        self._clock.time += self._cost.pop(0) if self._cost else 0.0
        return {"load1": 1.0}


class Sink:
    """Keeps lines; has room for `room` appends."""

    def __init__(self, room: int = 1000) -> None:
        self.lines: list[dict[str, Any]] = []
        self.opened = False
        self._room = room

    def __call__(self) -> Sink:
        self.opened = True
        return self

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def append(self, lines: list[dict[str, Any]]) -> bool:
        self._room -= 1
        if self._room < 0:
            return False
        self.lines += lines
        return True

    def times(self) -> list[float]:
        return [line["t"] for line in self.lines if line["kind"] == "sample"]


class Device(NoDevices):
    """One device that is lost in its second reading, and notes whether the sink was open in its first."""

    def __init__(self, sink: Sink, fails: str | None = None) -> None:
        self._sink = sink
        self._fails = fails
        self.opened_at_first: bool | None = None
        self.closed = False

    def open(self) -> None:
        if self._fails:
            raise MonitorUnavailable(self._fails, driver_version="1.2")

    def static(self) -> dict[str, Any]:
        return {"devices": [{"index": 0, "mem_used_bytes": 5}]}

    def sample(self) -> MonitorSample:
        if self.opened_at_first is None:
            self.opened_at_first = self._sink.opened
            return MonitorSample([{"index": 0, "power_w": 50.0}], [])
        return MonitorSample([], [{"device": 0, "reason": "power_w: GPU is lost"}])

    def close(self) -> None:
        self.closed = True


def sample(clock: Clock, cpu: Cpu, sink: Sink, monitor: Any = None, interval: float = 1.0) -> None:
    run(
        monitor or NoDevices(),
        cpu,  # type: ignore[arg-type]
        sink,
        interval=interval,
        now=clock.read,
        clock=clock.read,
        wait=clock.wait,
    )


@pytest.mark.parametrize("early", [1.0, 0.5])
def test_never_more_than_one_sample_a_second(early: float) -> None:
    """Neither after samples that took too long, nor when waits end early."""
    clock = Clock(end=20.0, early=early)
    cpu = Cpu(clock, 0.2, 3.7, 0.0, 1.5, 0.9)
    sample(clock, cpu, Sink())
    gaps = [after - before for before, after in zip(cpu.starts, islice(cpu.starts, 1, None))]
    assert min(gaps) >= 1.0 - 1e-9
    assert len(gaps) > 10


def test_the_file_appears_only_after_the_first_sample() -> None:
    clock, sink = Clock(end=2.5), Sink()
    device = Device(sink)
    sample(clock, Cpu(clock), sink, device)
    assert device.opened_at_first is False
    assert device.closed
    assert sink.lines[0] == {
        "kind": "start",
        "t": 0.0,
        "interval_s": 1.0,
        "devices": [{"index": 0, "mem_used_bytes": 5}],
        "run_pids": [3, 7],
    }


def test_without_a_driver_the_processors_are_still_sampled() -> None:
    clock, sink = Clock(end=1.5), Sink()
    sample(clock, Cpu(clock), sink, Device(sink, fails="no driver"))
    assert sink.lines[0]["unavailable"] == "no driver"
    assert sink.lines[0]["driver_version"] == "1.2", "what is known all the same"
    assert [line["devices"] for line in sink.lines] == [[], [], []]
    assert sink.times() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("received", "parent", "stops"),
    [
        (None, 5, False),
        (signal.SIGTERM, 5, True),
        (signal.SIGINT, 5, True),
        (signal.SIGUSR1, 5, False),  # only the thread that started the sampler has ended
        (signal.SIGUSR1, 1, True),
        (None, 1, True),
    ],
)
def test_what_ends_a_sampler(received: int | None, parent: int, stops: bool) -> None:
    parents = iter([5, parent])
    info = None if received is None else SimpleNamespace(si_signo=received)
    lifetime = Lifetime(getppid=lambda: next(parents), take=lambda signals, seconds: info)
    assert lifetime.wait(1.0) is stops
