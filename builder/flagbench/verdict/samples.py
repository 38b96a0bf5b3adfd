"""Check that records form one sample (each run once, all on one machine), and group their runs into sessions.

A session is a group of runs of one machine, each begun within two hours of the one before it. Temperature, neighbours
and a driver's state are drawn once for a session, so its runs differ less than those of several sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import combinations
from typing import NamedTuple

from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.records.digest import device_uuids, machine_digest, machine_host
from flagbench.records.model import Record
from flagbench.system.clock import parse_utc

SESSION_GAP = timedelta(hours=2)
"""The longest time between the starts of two runs of one machine that belong to the same session."""
_ROUNDED_TIMES = timedelta(seconds=2)
"""Two runs overlap only if it is by more than this: the times in a record are whole seconds."""
_YEAR_SECONDS = 3.2e7
"""The longest duration that is subtracted from a date, a year: a larger one could give a date before year 1."""
_MEMORY_CHANGE = 0.01
"""The largest relative difference in the memory that kernels report for one machine."""


class SessionPlaces(NamedTuple):
    """The runs of one session, as indices into the records of each side."""

    records: list[int]
    baseline: list[int]


class _ComparedPart(NamedTuple):
    """A part of the machine or image that two records both have."""

    name: str
    a: object
    b: object


def check_distinct(records: Sequence[Record]) -> None:
    """Raise FlagbenchError (USAGE) where two records are of one physical run."""
    for a, b in combinations(records, 2):
        reason = explain_same_run(a, b)
        if reason is not None:
            raise FlagbenchError(
                f"the records {a.record_id} and {b.record_id} count as one run: {visible(reason)}",
                remedy="give each run once: a repeated one would narrow the interval",
            )


def check_one_machine(records: Sequence[Record]) -> None:
    """Raise FlagbenchError (USAGE) where records differ in their machine, image or usable processors."""
    first = records[0]
    for record in records[1:]:
        for part in _compare_machines(first, record):
            if part.a != part.b:
                raise FlagbenchError(
                    f"the records {first.record_id} and {record.record_id} differ in {part.name}: "
                    f"{visible(str(part.a))} and {visible(str(part.b))}",
                    remedy="verify them one at a time: a sample is of one machine, one image and the same processors",
                )


def explain_same_run(a: Record, b: Record) -> str | None:
    """Return why two records are of one physical run; None if nothing in them says so."""
    if a.run_id != b.run_id:
        return None
    return f"both have the run_id {a.run_id}"


def find_shared_device(a: Record, b: Record) -> str | None:
    """Return the UUID of a device that two runs used at the same time, by the dates of their records; else None."""
    # A record is assembled when its run has ended.
    end = min(start_time(a.created_at, 0.0), start_time(b.created_at, 0.0))
    if end - max(start_of(a), start_of(b)) <= _ROUNDED_TIMES:
        return None
    return min(device_uuids(a) & device_uuids(b), default=None)


def group_into_sessions(starts: Sequence[datetime]) -> list[list[int]]:
    """Return the sessions of runs of one machine, each as the indices of its runs in `starts`, the earliest first."""
    sessions: list[list[int]] = []
    previous: datetime | None = None
    for place in sorted(range(len(starts)), key=starts.__getitem__):
        if previous is None or starts[place] - previous > SESSION_GAP:
            sessions.append([])
        sessions[-1].append(place)
        previous = starts[place]
    return sessions


def count_sessions(records: Sequence[Record]) -> int:
    """Return the number of sessions in which runs of one machine were made."""
    return len(group_into_sessions([start_of(record) for record in records]))


def session_share(records: Sequence[Record]) -> float:
    """Return how much of a session's deviation is left in the mean of the runs: 1 for one session, less for several.

    It is the standard deviation of that mean, relative to that of a session, if runs of one session do not differ.
    """
    sessions = group_into_sessions([start_of(record) for record in records])
    shares = [len(places) / len(records) for places in sessions]
    return math.hypot(*shares)


def group_sides_into_sessions(records: Sequence[Record], baseline: Sequence[Record]) -> list[SessionPlaces]:
    """Return the sessions of the runs of both sides; sides of different machines have no session in common."""
    starts = [start_of(record) for record in records]
    baseline_starts = [start_of(record) for record in baseline]
    sessions: list[SessionPlaces] = []
    if machine_digest(records[0]) != machine_digest(baseline[0]):
        for places in group_into_sessions(starts):
            sessions.append(SessionPlaces(places, []))
        for places in group_into_sessions(baseline_starts):
            sessions.append(SessionPlaces([], places))
        return sessions
    for places in group_into_sessions([*starts, *baseline_starts]):
        places_of_records = [place for place in places if place < len(starts)]
        places_of_baseline = [place - len(starts) for place in places if place >= len(starts)]
        sessions.append(SessionPlaces(places_of_records, places_of_baseline))
    return sessions


def start_time(created_at: str, seconds: float) -> datetime:
    """Return the start of a run that ended at `created_at` and took `seconds`, of which at most a year counts."""
    end = parse_utc(created_at)
    # A record may have any number of seconds.
    return end - timedelta(seconds=max(-_YEAR_SECONDS, min(seconds, _YEAR_SECONDS)))


def start_of(record: Record) -> datetime:
    """Return when a run began, by the clock that its machine had at that time."""
    seconds = record.duration or 0.0
    # The date of the record is by a clock that may have been set during the run.
    seconds += record.system.clock_set_seconds or 0.0
    return start_time(record.created_at, seconds)


def _compare_machines(a: Record, b: Record) -> Iterator[_ComparedPart]:
    """Yield the parts that are equal in all runs of one sample, as far as both records have them."""
    uuids_a = device_uuids(a)
    uuids_b = device_uuids(b)
    host_a = machine_host(a)
    host_b = machine_host(b)
    if uuids_a and uuids_b:
        yield _ComparedPart("the set of devices", sorted(uuids_a), sorted(uuids_b))
    elif host_a is not None and host_b is not None:
        yield _ComparedPart("the host", host_a, host_b)
    for name, part_a, part_b in (
        ("the processor", a.system.cpu.model, b.system.cpu.model),
        ("the number of logical processors", a.system.cpu.logical, b.system.cpu.logical),
        ("the number of usable processors (taskset, a cpuset)", a.system.cpu.usable, b.system.cpu.usable),
    ):
        if part_a is not None and part_b is not None:
            yield _ComparedPart(name, part_a, part_b)
    context_a = a.system.image.context_digest
    context_b = b.system.image.context_digest
    if context_a is not None and context_b is not None:
        yield _ComparedPart("the digest of what its image was built from", context_a, context_b)
    memory_a = a.system.memory_bytes
    memory_b = b.system.memory_bytes
    if not memory_a or not memory_b:
        return
    if abs(memory_a - memory_b) > _MEMORY_CHANGE * max(memory_a, memory_b):
        yield _ComparedPart("the memory in bytes", memory_a, memory_b)
