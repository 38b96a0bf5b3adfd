"""Whether records are one sample, each run once and all of one machine, and the sessions of their runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import combinations

from flagbench.console.terminal import visible
from flagbench.errors import FlagbenchError
from flagbench.records.digest import device_uuids, machine_digest
from flagbench.records.model import Record

SESSION_GAP = timedelta(hours=2)
"""The longest time between the starts of two runs of one machine that belong to the same session."""
_CLOCK = timedelta(seconds=2)
"""Times in a record are whole seconds."""
_YEAR = 3.2e7
"""Seconds."""
_MEMORY_CHANGE = 0.01
"""The memory that a kernel reports of one machine changes by less."""


def check_distinct(records: Sequence[Record]) -> None:
    """Raise FlagbenchError (usage) where two records are of one physical run."""
    for a, b in combinations(records, 2):
        reason = same_run(a, b)
        if reason is not None:
            raise FlagbenchError(
                f"the records {a.record_id} and {b.record_id} count as one run: {visible(reason)}",
                remedy="give each run once: a repeated one would narrow the interval",
            )


def check_one_machine(records: Sequence[Record]) -> None:
    """Raise FlagbenchError (usage) where records differ in their machine, image or usable processors."""
    first = records[0]
    for record in records[1:]:
        for name, expected, actual in _compare_machines(first, record):
            if expected != actual:
                raise FlagbenchError(
                    f"the records {first.record_id} and {record.record_id} differ in {name}: "
                    f"{visible(str(expected))} and {visible(str(actual))}",
                    remedy="verify them one at a time: a sample is of one machine, one image and the same processors",
                )


def same_run(a: Record, b: Record) -> str | None:
    """Why two records are of one run, None if nothing says so."""
    if a.run_id != b.run_id:
        return None
    return f"both have the run_id {a.run_id}"


def same_time(a: Record, b: Record) -> str | None:
    """A device that two runs used at the same time, by the dates of their records; None if there is none."""
    # A record is assembled when its run has ended.
    end = min(began(a.created_at, 0.0), began(b.created_at, 0.0))
    if end - max(start_of(a), start_of(b)) <= _CLOCK:
        return None
    return min(device_uuids(a) & device_uuids(b), default=None)


def sessions(begun: Sequence[datetime]) -> list[list[int]]:
    """The places of runs of one machine by session: in each, a run began within two hours of the one before it."""
    places_by_session: list[list[int]] = []
    before: datetime | None = None
    for place in sorted(range(len(begun)), key=begun.__getitem__):
        if before is None or begun[place] - before > SESSION_GAP:
            places_by_session.append([])
        places_by_session[-1].append(place)
        before = begun[place]
    return places_by_session


def session_count(records: Sequence[Record]) -> int:
    """The number of sessions of runs of one machine."""
    return len(sessions([start_of(record) for record in records]))


def session_share(records: Sequence[Record]) -> float:
    """The standard deviation of the mean of runs relative to that of a session, where only sessions differ."""
    places_by_session = sessions([start_of(record) for record in records])
    return math.hypot(*(len(places) / len(records) for places in places_by_session))


def sessions_of_sides(records: Sequence[Record], others: Sequence[Record]) -> list[tuple[list[int], list[int]]]:
    """The places of the runs of each session, on both sides; sides of different machines share no session."""
    begun = [start_of(record) for record in records]
    others_begun = [start_of(record) for record in others]
    places_of_sides: list[tuple[list[int], list[int]]] = []
    if machine_digest(records[0]) != machine_digest(others[0]):
        for places in sessions(begun):
            places_of_sides.append((places, []))
        for places in sessions(others_begun):
            places_of_sides.append(([], places))
        return places_of_sides
    for places in sessions([*begun, *others_begun]):
        places_of_records = [place for place in places if place < len(begun)]
        places_of_others = [place - len(begun) for place in places if place >= len(begun)]
        places_of_sides.append((places_of_records, places_of_others))
    return places_of_sides


def began(created_at: str, seconds: float) -> datetime:
    """The start of a run that ended at `created_at` and took `seconds`, of which at most a year counts."""
    # A record may say anything.
    end = datetime.strptime(created_at, "%Y-%m-%dT%H:%M:%SZ")
    return end - timedelta(seconds=max(-_YEAR, min(seconds, _YEAR)))


def start_of(record: Record) -> datetime:
    """When a run began, by the date of its record."""
    # By the clock as it was then: the clock may have been set during the run.
    return began(record.created_at, (record.duration or 0.0) + (record.system.clock_set_seconds or 0.0))


def _compare_machines(a: Record, b: Record) -> Iterator[tuple[str, object, object]]:
    """What runs of one sample have in common, where both records have it.

    A container's host name tells no machines apart: each has its own.
    """
    uuids_a, uuids_b = device_uuids(a), device_uuids(b)
    if uuids_a and uuids_b:
        yield "the set of devices", sorted(uuids_a), sorted(uuids_b)
    for name, part_a, part_b in (
        ("the processor", a.system.cpu.model, b.system.cpu.model),
        ("the number of logical processors", a.system.cpu.logical, b.system.cpu.logical),
        ("the number of usable processors (taskset, a cpuset)", a.system.cpu.usable, b.system.cpu.usable),
    ):
        if part_a is not None and part_b is not None:
            yield name, part_a, part_b
    context_a, context_b = a.system.image.context_digest, b.system.image.context_digest
    if context_a is not None and context_b is not None:
        yield "the digest of what its image was built from", context_a, context_b
    memory_a, memory_b = a.system.memory_bytes, b.system.memory_bytes
    if memory_a and memory_b and abs(memory_a - memory_b) > _MEMORY_CHANGE * max(memory_a, memory_b):
        yield "the memory in bytes", memory_a, memory_b
