"""One sample: each physical run once, whatever its id, and all runs of one machine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from flagbench.errors import FlagbenchError
from flagbench.records.model import Cpu, Image, Rank, Record, Window
from flagbench.verdict import verify_baseline
from flagbench_core.exit_codes import ExitCode

from .conftest import CASE, edit, held

STEPS = tuple(0.13 + 1e-6 * (7 * step % 101) for step in range(120))
OTHER = tuple(value + 1e-4 * (step % 7 + 1) for step, value in enumerate(STEPS))
WORK = tuple(0.13 * (1 + step % 7 / 10) for step in range(120))
"""Steps that are long where their batch is: the same in all runs with one seed."""
SAME_TIME = {"created_at": "2026-03-01T12:00:00Z"}


def timed(seconds: tuple[float, ...] = STEPS, record_id: str = "fixture-one", **fields: Any) -> Record:
    """A record of another id, run id and day."""
    window = Window(first_step=20, steps=len(seconds), samples=1, seconds=sum(seconds), step_seconds=seconds)
    return edit(record_id=record_id, window=window, **fields)


def other(seconds: tuple[float, ...] = OTHER, **fields: Any) -> Record:
    return timed(seconds, "fixture-two", **fields)


def device(record: Record, uuid: str = "GPU-1", **system: Any) -> Record:
    """The record with a device's uuid, which the model of a record may not know, and other facts of its machine."""
    devices = {"devices": [{"index": 0, "name": "a device", "uuid": uuid}]}
    return edit(record, raw={**record.raw, "system": devices}, system=replace(record.system, **system))


def process(pid: int) -> dict[str, Any]:
    return {"ranks": (Rank(0, 0, host="node-1", pid=pid),), **SAME_TIME}


def refused(a: Record, b: Record, verify: Callable[[Record, Record], object] = held) -> str:
    with pytest.raises(FlagbenchError) as caught:
        verify(a, b)
    assert caught.value.code is ExitCode.USAGE
    return caught.value.message


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (timed(run_id="run"), other(run_id="run")),
        (timed(), other(STEPS)),
        # One step of the copy was edited; all were, by a factor; or by no more than the clock resolves.
        (timed(), other((0.14, *STEPS[1:]))),
        (timed(), other(tuple(1.25 * value for value in STEPS))),
        (timed(), other(tuple(value + step % 3 * 1e-6 for step, value in enumerate(STEPS)))),
        (device(timed(**SAME_TIME)), device(other(created_at="2026-03-01T12:01:00Z"))),
        (timed(**process(4711)), other(**process(4711))),
    ],
    ids=["run id", "step times", "most step times", "a factor", "microseconds", "device", "process"],
)
def test_one_physical_run_counts_once(a: Record, b: Record) -> None:
    for verify in (held, lambda a, b: verify_baseline([a], [b], CASE)):
        message = refused(a, b, verify)
        assert ("fixture-one" in message, "fixture-two" in message) == (True, True)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (timed(), other()),
        (timed(WORK), other(tuple(value * (1 + step % 9 / 5e3) for step, value in enumerate(WORK)))),
        # A clock so coarse that all steps seem equal proves nothing.
        (timed((0.13, 0.14) * 60), other((0.13, 0.14) * 60)),
        (device(timed()), device(other())),
        # Two devices of one host, at the same time.
        (timed(**process(1)), other(**process(2))),
    ],
    ids=["step times", "the same work", "coarse clock", "device at another time", "processes"],
)
def test_different_runs_are_no_duplicates(a: Record, b: Record) -> None:
    assert len(held(a, b).records) == 2


@pytest.mark.parametrize(
    ("overlap", "first_set", "second_set", "one"),
    [
        (10, None, None, False),  # the clock was set between the runs
        (100, None, -100.0, False),  # during the second one
        (361, -361.0, None, False),  # during the first one
        (100, None, None, True),
        (100, None, 5.0, True),
    ],
)
def test_a_clock_that_was_set_makes_no_two_runs_one(
    overlap: int, first_set: float | None, second_set: float | None, one: bool
) -> None:
    first = device(timed(**SAME_TIME), clock_set_seconds=first_set)
    assert first.duration == 361.0
    ended = datetime(2026, 3, 1, 12) + timedelta(seconds=first.duration - overlap)
    second = device(other(created_at=f"{ended:%Y-%m-%dT%H:%M:%SZ}"), clock_set_seconds=second_set)
    if one:
        assert "GPU-1" in refused(first, second)
    else:
        assert len(held(first, second).records) == 2


@pytest.mark.parametrize(
    ("here", "there", "named"),
    [
        ({"uuid": "GPU-1"}, {"uuid": "GPU-2"}, "GPU-2"),
        ({"cpu": Cpu("Xeon", 32)}, {"cpu": Cpu("EPYC", 32)}, "EPYC"),
        ({"memory_bytes": 2**37}, {"memory_bytes": 2**38}, str(2**38)),
        ({"image": Image(f"sha256:{'0' * 64}")}, {"image": Image(f"sha256:{'1' * 64}")}, "1" * 64),
    ],
)
def test_runs_of_two_machines_are_not_one_sample(here: dict[str, Any], there: dict[str, Any], named: str) -> None:
    a, b = device(timed(), **here), device(other(), **there)
    assert named in refused(a, b)
    assert verify_baseline([a], [b], CASE).records == ("fixture-one",)  # the two sides may be two machines
