"""The energy of a window: by a counter, with the most by which it can be off, or by the power."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.telemetry.energy import Sample, Stretch, window_energy
from flagbench_cases.telemetry.summary import summarise

pytestmark = pytest.mark.image

GAP = 3.0


def counted(*joules: float | None, took: float = 0.0, watts: float | None = None) -> list[Sample]:
    """A reading every second, the first at 0."""
    return [Sample(t, t + took, None if j is None else 1000 * j, watts) for t, j in enumerate(joules)]


IDLE_THEN_BUSY = counted(0.0, 100.0, 200.0, 600.0, 1300.0, 2000.0, 2100.0)
"""100 W for two seconds, 700 W from some point in the third to the end of the fifth, then 100 W."""


def test_a_window_between_readings() -> None:
    """It begins with a reading, and ends with one: nothing is interpolated."""
    found = window_energy(IDLE_THEN_BUSY, [Stretch(20, (3.0, 5.0))], GAP)
    assert found == {"steps": 20, "seconds": 2.0, "joules": 1400.0, "source": "counter", "error_j": 0.0}


def test_the_ends_of_a_window_are_interpolated() -> None:
    found = window_energy(IDLE_THEN_BUSY, [Stretch(20, (2.25, 5.5))], GAP)
    assert found is not None
    assert found["joules"] == 2050.0 - 300.0
    # The counter rose by 400 J in the second in which it begins, and by 100 J in that in which it ends.
    assert found["error_j"] == 0.75 * 400 + 0.5 * 100


def test_the_error_bound_holds_whatever_a_device_did_between_readings() -> None:
    """A device that uses all of a second's energy at the one or the other end of that second."""
    times = (2.25, 5.5)
    found = window_energy(IDLE_THEN_BUSY, [Stretch(20, times)], GAP)
    assert found is not None
    for at_begin in (200.0, 600.0):
        for at_end in (2000.0, 2100.0):
            assert abs(at_end - at_begin - found["joules"]) <= found["error_j"]


def test_a_reading_that_takes_time_is_used_only_once_it_has_ended() -> None:
    """amd-smi answers after most of a second: within it the counter was read, nobody knows when."""
    readings = [Sample(2.0 * n, 2.0 * n + 0.75, 1000.0 * 500 * n, None) for n in range(5)]
    found = window_energy(readings, [Stretch(1, (2.5, 6.5))], GAP)
    assert found is not None
    assert (found["joules"], found["seconds"]) == (1000.0, 4.0)
    # Between the readings at 0 and 4 s, and between those at 4 and 8 s: half of 1000 J either way, and a little more.
    assert 1000.0 < found["error_j"] < 1200.0


def test_several_stretches_are_added() -> None:
    """A published run evaluates between its steps, which are what the window is of."""
    found = window_energy(IDLE_THEN_BUSY, [Stretch(5, (3.0, 4.0)), Stretch(2, (5.0, 6.0))], GAP)
    assert found == {"steps": 7, "seconds": 2.0, "joules": 800.0, "source": "counter", "error_j": 0.0}


@pytest.mark.parametrize(
    "samples",
    [
        counted(None, None, None, None, None, watts=400.0),
        counted(0.0, 100.0, 50.0, 150.0, 250.0, watts=400.0),  # reset: the driver was loaded again
        counted(7.0, 7.0, 7.0, 7.0, 7.0, watts=400.0),  # never moves
    ],
    ids=["none", "reset", "stuck"],
)
def test_without_a_counter_the_power_is_integrated(samples: list[Sample]) -> None:
    """And has no error bound: what happened between two samples is not known."""
    found = window_energy(samples, [Stretch(10, (0.5, 3.25))], GAP)
    assert found == {"steps": 10, "seconds": 2.75, "joules": 1100.0, "source": "power"}


@pytest.mark.parametrize("times", [(-1.0, 3.0), (3.0, 7.0)], ids=["before the first", "after the last"])
@pytest.mark.parametrize("watts", [None, 400.0])
def test_a_window_that_readings_do_not_enclose_has_no_energy(times: tuple[float, float], watts: float | None) -> None:
    samples = counted(0.0, 400.0, 800.0, 1200.0, 1600.0, watts=watts)
    assert window_energy(samples, [Stretch(10, times)], GAP) is None


def test_power_is_not_integrated_across_a_gap() -> None:
    samples = [Sample(t, t, None, 400.0) for t in (0.0, 1.0, 6.0, 7.0)]
    assert window_energy(samples, [Stretch(10, (0.5, 6.5))], GAP) is None


def test_no_steps_in_a_window_no_energy() -> None:
    assert window_energy(IDLE_THEN_BUSY, [], GAP) is None


SCRIPT = """
import sys
from flagbench_cases.telemetry.cpu import CpuProbe
from flagbench_cases.telemetry.jsonlines import JsonLinesWriter
from flagbench_cases.telemetry.monitors import create
from flagbench_cases.telemetry.sampler import run
import os

class Clock:
    seconds = 0.0
    def read(self):
        return self.seconds
    def wait(self, seconds):
        self.seconds += seconds
        return self.seconds > 6.0

clock = Clock()
sink = lambda: JsonLinesWriter(sys.argv[1])
run(create("nvml"), CpuProbe(os.getpid()), sink, interval=1.0, now=clock.read, clock=clock.read, wait=clock.wait)
"""
"""Seven samples, one a second by a clock of its own."""


@pytest.mark.parametrize(
    ("macros", "expected"),
    [
        # The stub's counter rises by 150 J a reading.
        ((), {"joules": 375.0, "source": "counter", "error_j": 75.0}),
        # Its power rises by 10 W a reading: from 115 to 140 W.
        (("NO_COUNTER",), {"joules": 318.75, "source": "power"}),
    ],
    ids=["counter", "power"],
)
def test_from_a_driver_to_the_record(nvml_stub: Callable, tmp_path: Path, macros: Any, expected: Any) -> None:
    samples = tmp_path / "telemetry.jsonl"
    subprocess.run([sys.executable, "-c", SCRIPT, str(samples)], env=nvml_stub(*macros), check=True)
    window = {0: [Stretch(20, (1.5, 4.0))]}
    summary = summarise(str(samples), (0.0, 5.0), window)
    assert summary is not None
    device, other = summary["devices"]
    assert device["window_energy"] == {"steps": 20, "seconds": 2.5, **expected}
    assert "window_energy" not in other, "its rank said nothing of its steps"
    assert device["energy_seconds"] == 5.0, "which is of the whole training"
