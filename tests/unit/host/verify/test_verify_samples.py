"""One sample: each physical run once, whatever its id, and all runs of one machine."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.record.model import Cpu, Image, Rank, Record, Window
from flagbench.verify import verify_baseline

from .conftest import CASE, edit, held

STEPS = tuple(0.13 + 1e-6 * (7 * step % 101) for step in range(120))


def timed(record_id: str, seconds: tuple[float, ...] = STEPS, **fields: Any) -> Record:
    """A record of another id, run id and day."""
    window = Window(first_step=20, steps=len(seconds), samples=1, seconds=sum(seconds), step_seconds=seconds)
    return edit(record_id=record_id, window=window, **fields)


def device(record: Record, uuid: str) -> Record:
    """The record with a device's uuid, which the model of a record may not know."""
    system = {"devices": [{"index": 0, "name": "a device", "uuid": uuid}]}
    return edit(record, raw={**record.raw, "system": system})


WORK = tuple(0.13 * (1 + step % 7 / 10) for step in range(120))
"""Steps that are long where their batch is: the same in all runs with one seed."""
OTHER = tuple(value + 1e-4 * (step % 7 + 1) for step, value in enumerate(STEPS))
SAME_TIME = {"created_at": "2026-03-01T12:00:00Z"}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (timed("fixture-one", run_id="run"), timed("fixture-two", OTHER, run_id="run")),
        (timed("fixture-one"), timed("fixture-two")),
        # One step of the copy was edited, and its rate with it.
        (timed("fixture-one"), timed("fixture-two", (0.14, *STEPS[1:]))),
        # All of them were, by a factor, or by no more than the clock resolves.
        (timed("fixture-one"), timed("fixture-two", tuple(1.25 * value for value in STEPS))),
        (timed("fixture-one"), timed("fixture-two", tuple(v + n % 3 * 1e-6 for n, v in enumerate(STEPS)))),
        (
            device(timed("fixture-one", **SAME_TIME), "GPU-1"),
            device(timed("fixture-two", OTHER, created_at="2026-03-01T12:01:00Z"), "GPU-1"),
        ),
        (
            timed("fixture-one", ranks=(Rank(0, 0, host="node-1", pid=4711),), **SAME_TIME),
            timed("fixture-two", OTHER, ranks=(Rank(0, 0, host="node-1", pid=4711),), **SAME_TIME),
        ),
    ],
    ids=["run id", "step times", "most step times", "a factor", "microseconds", "device", "process"],
)
def test_one_physical_run_counts_once(a: Record, b: Record) -> None:
    for verify in (lambda: held(a, b), lambda: verify_baseline([a], [b], CASE)):
        with pytest.raises(FlagbenchError) as caught:
            verify()
        assert caught.value.code is ExitCode.USAGE
        assert all(name in caught.value.message for name in ("fixture-one", "fixture-two"))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (timed("fixture-one"), timed("fixture-two", OTHER)),
        (timed("fixture-one", WORK), timed("fixture-two", tuple(v * (1 + n % 9 / 5e3) for n, v in enumerate(WORK)))),
        # A clock so coarse that all steps seem equal proves nothing.
        (timed("fixture-one", (0.13, 0.14) * 60), timed("fixture-two", (0.13, 0.14) * 60)),
        (device(timed("fixture-one"), "GPU-1"), device(timed("fixture-two", OTHER), "GPU-1")),
        # Two devices of one host, at the same time.
        (
            timed("fixture-one", ranks=(Rank(0, 0, host="node-1", pid=1),), **SAME_TIME),
            timed("fixture-two", OTHER, ranks=(Rank(0, 0, host="node-1", pid=2),), **SAME_TIME),
        ),
    ],
    ids=["step times", "the same work", "coarse clock", "device at another time", "processes"],
)
def test_different_runs_are_no_duplicates(a: Record, b: Record) -> None:
    assert len(held(a, b).records) == 2


@pytest.mark.parametrize(
    ("overlap", "clock_set", "one"),
    [
        (10, None, False),  # the clock was set between the runs
        (100, -100.0, False),  # and during the second one
        (100, None, True),
        (100, 5.0, True),
    ],
)
def test_a_clock_that_was_set_back_makes_no_two_runs_one(overlap: int, clock_set: float | None, one: bool) -> None:
    first = device(timed("fixture-one", **SAME_TIME), "GPU-1")
    assert first.duration is not None
    began = datetime(2026, 3, 1, 12) + timedelta(seconds=first.duration - overlap)
    second = timed("fixture-two", OTHER, created_at=f"{began:%Y-%m-%dT%H:%M:%SZ}")
    second = device(replace(second, system=replace(second.system, clock_set_seconds=clock_set)), "GPU-1")
    if one:
        with pytest.raises(FlagbenchError, match="GPU-1"):
            held(first, second)
    else:
        assert len(held(first, second).records) == 2


def test_a_clock_that_was_set_back_in_the_first_run_makes_it_no_other_one() -> None:
    first = timed("fixture-one", **SAME_TIME)
    assert first.duration is not None
    first = device(replace(first, system=replace(first.system, clock_set_seconds=-100.0)), "GPU-1")
    ended = datetime(2026, 3, 1, 12) + timedelta(seconds=first.duration or 0.0)
    second = device(timed("fixture-two", OTHER, created_at=f"{ended:%Y-%m-%dT%H:%M:%SZ}"), "GPU-1")
    assert len(held(first, second).records) == 2


def machine(record: Record, **fields: Any) -> Record:
    """The record of a machine with other parts."""
    return edit(record, system=replace(record.system, **fields))


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [
        (device(timed("fixture-one"), "GPU-1"), device(timed("fixture-two", OTHER), "GPU-2"), "GPU-2"),
        (
            machine(timed("fixture-one"), cpu=Cpu("Xeon", 32)),
            machine(timed("fixture-two", OTHER), cpu=Cpu("EPYC", 32)),
            "EPYC",
        ),
        (
            machine(timed("fixture-one"), memory_bytes=2**37),
            machine(timed("fixture-two", OTHER), memory_bytes=2**38),
            str(2**38),
        ),
        (
            machine(timed("fixture-one"), image=Image(f"sha256:{'0' * 64}")),
            machine(timed("fixture-two", OTHER), image=Image(f"sha256:{'1' * 64}")),
            "1" * 64,
        ),
    ],
    ids=["devices", "processor", "memory", "image"],
)
def test_runs_of_different_machines_are_not_one_sample(a: Record, b: Record, named: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        held(a, b)
    assert caught.value.code is ExitCode.USAGE
    assert named in caught.value.message
    assert verify_baseline([a], [b], CASE).records == ("fixture-one",)  # the two sides may be two machines


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("batch_size", 96),
        ("precision", "bf16"),
        ("devices", 16),
        ("workers", 0),
        ("torch", "2.6.0"),
        ("driver", "535"),
    ],
)
def test_runs_of_different_configurations_or_software_are_not_one_sample(condition: str, value: Any) -> None:
    other = timed("fixture-two", OTHER, conditions={condition: value})
    with pytest.raises(FlagbenchError) as caught:
        held(timed("fixture-one"), other)
    assert caught.value.code is ExitCode.USAGE
    assert f"{condition} is " in caught.value.message
    assert f"{value} in fixture-two" in caught.value.message
