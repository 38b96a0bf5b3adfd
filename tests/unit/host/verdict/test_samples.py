"""One sample: each physical run once, whatever its id, and all runs of one machine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from flagbench.errors import FlagbenchError
from flagbench.records.model import Cpu, Device, Image, Record
from flagbench.verdict import verify_baseline
from flagbench_core.exit_codes import ExitCode

from .conftest import CASE, edit, held

SAME_TIME = {"created_at": "2026-03-01T12:00:00Z"}


def one(**fields: Any) -> Record:
    """A record of its own id, run id and day."""
    return edit(record_id="fixture-one", **fields)


def other(**fields: Any) -> Record:
    return edit(record_id="fixture-two", **fields)


def device(record: Record, uuid: str = "GPU-1", **system: Any) -> Record:
    """The record with a device's uuid, and other facts of its machine."""
    return edit(record, system=replace(record.system, devices=(Device(0, "a device", uuid=uuid),), **system))


def refused(a: Record, b: Record, verify: Callable[[Record, Record], object] = held) -> str:
    with pytest.raises(FlagbenchError) as caught:
        verify(a, b)
    assert caught.value.code is ExitCode.USAGE
    return caught.value.message


@pytest.mark.parametrize(
    ("a", "b"),
    [(one(run_id="run"), other(run_id="run"))],
)
def test_one_physical_run_counts_once(a: Record, b: Record) -> None:
    for verify in (held, lambda a, b: verify_baseline([a], [b], CASE)):
        message = refused(a, b, verify)
        assert ("fixture-one" in message, "fixture-two" in message) == (True, True)


@pytest.mark.parametrize(
    ("a", "b"),
    [(one(), other()), (device(one()), device(other())), (one(**SAME_TIME), other(**SAME_TIME))],
    ids=["plain", "device at another time", "no device known"],
)
def test_different_runs_are_no_duplicates(a: Record, b: Record) -> None:
    assert len(held(a, b).records) == 2


@pytest.mark.parametrize(
    ("overlap", "first_set", "second_set", "same"),
    [
        (1, None, None, False),  # times are whole seconds
        (100, None, -100.0, False),  # during the second one
        (361, -361.0, None, False),  # during the first one
        (100, None, None, True),
        (100, None, 5.0, True),
    ],
)
def test_runs_that_overlap_are_told(
    overlap: int, first_set: float | None, second_set: float | None, same: bool
) -> None:
    first = device(one(**SAME_TIME), clock_set_seconds=first_set)
    assert first.duration == 361.0
    ended = datetime(2026, 3, 1, 12) + timedelta(seconds=first.duration - overlap)
    second = device(other(created_at=f"{ended:%Y-%m-%dT%H:%M:%SZ}"), clock_set_seconds=second_set)
    for result in (held(first, second), verify_baseline([first], [second], CASE)):
        assert ("runs-overlap" in {finding.rule for finding in result.findings}) is same


@pytest.mark.parametrize(
    ("here", "there", "named"),
    [
        ({"uuid": "GPU-1"}, {"uuid": "GPU-2"}, "GPU-2"),
        ({"cpu": Cpu("Xeon", 32)}, {"cpu": Cpu("EPYC", 32)}, "EPYC"),
        ({"cpu": Cpu("Xeon", 32, 32)}, {"cpu": Cpu("Xeon", 32, 7)}, "taskset"),
        ({"memory_bytes": 2**37}, {"memory_bytes": 2**38}, str(2**38)),
        ({"image": Image(f"sha256:{'0' * 64}")}, {"image": Image(f"sha256:{'1' * 64}")}, "1" * 64),
    ],
)
def test_runs_of_two_machines_are_not_one_sample(here: dict[str, Any], there: dict[str, Any], named: str) -> None:
    a, b = device(one(), **here), device(other(), **there)
    assert named in refused(a, b)
    assert verify_baseline([a], [b], CASE).records == ("fixture-one",)  # the two sides may be two machines


@pytest.mark.parametrize(
    ("first", "second", "is_sample"),
    [
        ("cpu-1", "cpu-1", True),
        ("cpu-1", "cpu-2", False),
        ("0123456789ab", "ba9876543210", True),
        ("cpu-1", None, True),
    ],
    ids=["one", "two", "containers", "unknown"],
)
def test_processors_are_told_apart_by_their_host(first: str, second: str | None, is_sample: bool) -> None:
    a = edit(one(), system=replace(one().system, host=first))
    b = edit(other(), system=replace(other().system, host=second))
    if is_sample:
        assert len(held(a, b).records) == 2
    else:
        assert "cpu-2" in refused(a, b)
