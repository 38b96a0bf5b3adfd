"""Whether records are one sample: each run once, and all of one machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import combinations

from flagbench.errors import FlagbenchError
from flagbench.records.model import Record
from flagbench.terminal import visible

_CLOCK = timedelta(seconds=2)
"""Times in a record are whole seconds."""
_YEAR = 3.2e7
"""Seconds."""
_MEMORY = 0.01
"""The memory that a kernel reports of one machine changes by less."""


def check_distinct(records: Sequence[Record]) -> None:
    """Raise FlagbenchError (usage) where two records are of one physical run."""
    for a, b in combinations(records, 2):
        if a.record_id == b.record_id:
            raise FlagbenchError(
                f"the record {a.record_id} is given more than once",
                remedy="give each run once: a repeated record would narrow the interval",
            )
        if why := same_run(a, b):
            raise FlagbenchError(
                f"the records {a.record_id} and {b.record_id} count as one run: {visible(why)}",
                remedy="give one of the two",
            )


def check_one_machine(records: Sequence[Record]) -> None:
    """Raise FlagbenchError (usage) where records are of different machines, as far as they tell."""
    first = records[0]
    for other in records[1:]:
        for name, here, there in _machine(first, other):
            if here != there:
                raise FlagbenchError(
                    f"the records {first.record_id} and {other.record_id} are of different machines: {name} is "
                    f"{visible(str(here))} and {visible(str(there))}",
                    remedy="verify them one at a time: runs of different machines are not one sample",
                )


def same_run(a: Record, b: Record) -> str | None:
    """Why two records with different ids are of one run, None if nothing says so."""
    return f"both have the run_id {a.run_id}" if a.run_id == b.run_id else None


def same_time(a: Record, b: Record) -> str | None:
    """A device that two runs used at the same time by the dates of their records, None if there is none."""
    together = min(_end(a), _end(b)) - max(start_of(a), start_of(b))
    return min(_uuids(a) & _uuids(b), default=None) if together > _CLOCK else None


def _end(record: Record) -> datetime:
    """A record is assembled when its run has ended."""
    return datetime.strptime(record.created_at, "%Y-%m-%dT%H:%M:%SZ")


def start_of(record: Record) -> datetime:
    """When a run began, by the date of its record."""
    # By the clock as it was then: the clock may have been set during the run.
    moved = max(-_YEAR, min(record.system.clock_set_seconds or 0.0, _YEAR))
    return _end(record) - timedelta(seconds=moved) - _lasted(record)


def _lasted(record: Record) -> timedelta:
    # A record may say anything: no run has taken longer than a year.
    return timedelta(seconds=min(record.duration or 0.0, _YEAR))


def _uuids(record: Record) -> set[str]:
    uuids = [*(device.uuid for device in record.system.devices), *(rank.uuid for rank in record.ranks)]
    return {uuid for uuid in uuids if uuid}


def _machine(a: Record, b: Record) -> Iterator[tuple[str, object, object]]:
    """What tells machines apart, where both records have it. A container's host name does not: each has its own."""
    mine, other = _uuids(a), _uuids(b)
    if mine and other:
        yield "the set of devices", sorted(mine), sorted(other)
    for name, x, y in (
        ("the processor", a.system.cpu.model, b.system.cpu.model),
        ("the number of logical processors", a.system.cpu.logical, b.system.cpu.logical),
        ("the number of usable processors", a.system.cpu.usable, b.system.cpu.usable),
    ):
        if x is not None and y is not None:
            yield name, x, y
    contexts = a.system.image.context_digest, b.system.image.context_digest
    if None not in contexts:
        yield "the digest of what its image was built from", *contexts
    x, y = a.system.memory_bytes, b.system.memory_bytes
    if x and y and abs(x - y) > _MEMORY * max(x, y):
        yield "the memory in bytes", x, y
