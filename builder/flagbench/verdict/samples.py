"""Whether records are one sample, each run once and all of one machine, and of how many sessions they are."""

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
"""A run that began at most so long after another of the same machine is of its session."""
_CLOCK = timedelta(seconds=2)
"""Times in a record are whole seconds."""
_YEAR = 3.2e7
"""Seconds."""
_MEMORY_CHANGE = 0.01
"""The memory that a kernel reports of one machine changes by less."""


def check_distinct(records: Sequence[Record]) -> None:
    """Raise FlagbenchError (usage) where two records are of one physical run."""
    for a, b in combinations(records, 2):
        if why := same_run(a, b):
            raise FlagbenchError(
                f"the records {a.record_id} and {b.record_id} count as one run: {visible(why)}",
                remedy="give each run once: a repeated one would narrow the interval",
            )


def check_one_machine(records: Sequence[Record]) -> None:
    """Raise FlagbenchError (usage) where records differ in their machine, image or usable processors."""
    first = records[0]
    for other in records[1:]:
        for name, here, there in _machine(first, other):
            if here != there:
                raise FlagbenchError(
                    f"the records {first.record_id} and {other.record_id} differ in {name}: {visible(str(here))} and "
                    f"{visible(str(there))}",
                    remedy="verify them one at a time: a sample is of one machine, one image and the same processors",
                )


def same_run(a: Record, b: Record) -> str | None:
    """Why two records are of one run, None if nothing says so."""
    return f"both have the run_id {a.run_id}" if a.run_id == b.run_id else None


def same_time(a: Record, b: Record) -> str | None:
    """A device that two runs used at the same time by the dates of their records, None if there is none."""
    # A record is assembled when its run has ended.
    together = min(began(each.created_at, 0.0) for each in (a, b)) - max(start_of(a), start_of(b))
    return min(device_uuids(a) & device_uuids(b), default=None) if together > _CLOCK else None


def sessions(begun: Sequence[datetime]) -> list[list[int]]:
    """The places of runs of one machine by session: in each, a run began within two hours of the one before it."""
    found: list[list[int]] = []
    order = sorted(range(len(begun)), key=begun.__getitem__)
    for before, place in zip([None, *order], order, strict=False):
        if before is None or begun[place] - begun[before] > SESSION_GAP:
            found.append([])
        found[-1].append(place)
    return found


def session_count(records: Sequence[Record]) -> int:
    """Of how many sessions the runs of one machine are."""
    return len(sessions([start_of(record) for record in records]))


def session_share(records: Sequence[Record]) -> float:
    """The standard deviation of the mean of runs relative to that of a session, where only sessions differ."""
    found = sessions([start_of(record) for record in records])
    return math.hypot(*(len(session) / len(records) for session in found))


def sessions_of_sides(records: Sequence[Record], others: Sequence[Record]) -> list[tuple[list[int], list[int]]]:
    """The places of the runs of each session, on both sides; sides of different machines share no session."""
    here, there = [start_of(record) for record in records], [start_of(record) for record in others]
    found: list[tuple[list[int], list[int]]] = []
    if machine_digest(records[0]) != machine_digest(others[0]):
        found.extend((places, []) for places in sessions(here))
        found.extend(([], places) for places in sessions(there))
        return found
    for places in sessions([*here, *there]):
        mine = [place for place in places if place < len(here)]
        theirs = [place - len(here) for place in places if place >= len(here)]
        found.append((mine, theirs))
    return found


def began(created_at: str, seconds: float) -> datetime:
    """When a run began that ended then, and took so long; as far as that lies within a year."""
    # A record may say anything.
    end = datetime.strptime(created_at, "%Y-%m-%dT%H:%M:%SZ")
    return end - timedelta(seconds=max(-_YEAR, min(seconds, _YEAR)))


def start_of(record: Record) -> datetime:
    """When a run began, by the date of its record."""
    # By the clock as it was then: the clock may have been set during the run.
    return began(record.created_at, (record.duration or 0.0) + (record.system.clock_set_seconds or 0.0))


def _machine(a: Record, b: Record) -> Iterator[tuple[str, object, object]]:
    """What runs of one sample have in common, where both records have it.

    A container's host name tells no machines apart: each has its own.
    """
    mine, other = device_uuids(a), device_uuids(b)
    if mine and other:
        yield "the set of devices", sorted(mine), sorted(other)
    for name, x, y in (
        ("the processor", a.system.cpu.model, b.system.cpu.model),
        ("the number of logical processors", a.system.cpu.logical, b.system.cpu.logical),
        ("the number of usable processors (taskset, a cpuset)", a.system.cpu.usable, b.system.cpu.usable),
    ):
        if x is not None and y is not None:
            yield name, x, y
    contexts = a.system.image.context_digest, b.system.image.context_digest
    if None not in contexts:
        yield "the digest of what its image was built from", *contexts
    x, y = a.system.memory_bytes, b.system.memory_bytes
    if x and y and abs(x - y) > _MEMORY_CHANGE * max(x, y):
        yield "the memory in bytes", x, y
