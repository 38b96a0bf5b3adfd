"""Whether records are one sample: each physical run once, whatever its id, and all of one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.records.model import Record
from flagbench.terminal import visible
from flagbench_core.evidence.columns import TIMES, EvidenceError
from flagbench_core.evidence.section import read_section

Steps = Counter[tuple[int, ...]]
"""How often a step took the times of its parts, microseconds."""

_FEWEST_STEPS = 10
_FEWEST_DIFFERENT = 5
"""A clock that is coarse gives different runs a few equal times."""
_EQUAL = 5e-5
"""How far a time may be from the proportion of the others, relative; steps of two runs differ by more than 1e-4."""
_VARIED = 10 * _EQUAL
"""How much the times have to vary for that to mean anything: from the first tenth of them to the last."""
_CLOCK = timedelta(seconds=2)
"""Times in a record are whole seconds."""
_MOVED = timedelta(seconds=60)
"""By how much a clock may be set between two runs, if that is less than half of each; as in stores.series_check."""
_YEAR = 3.2e7
"""Seconds."""
_MEMORY = 0.01
"""The memory that a kernel reports of one machine changes by less."""


def check_distinct(records: Sequence[Record]) -> None:
    """Raise FlagbenchError (usage) where two records are of one physical run, or of one device at one time."""
    steps = map(_steps, records)
    for (a, own), (b, others) in combinations(zip(records, steps, strict=True), 2):
        if a.record_id == b.record_id:
            raise FlagbenchError(
                f"the record {a.record_id} is given more than once",
                remedy="give each run once: a repeated record would narrow the interval",
            )
        if why := same_run(a, b) or _same_steps(own, others):
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
    if a.run_id == b.run_id:
        return f"both have the run_id {a.run_id}"
    for x, y in zip(_step_times(a), _step_times(b), strict=False):
        if len(x) == len(y) >= _FEWEST_STEPS and (why := _copied(x, y)):
            return f"{why} of their {len(x)} step times are equal"
    together = min(_end(a), _end(b)) - max(_start(a), _start(b))
    if together <= max(_CLOCK, min(_MOVED, min(map(_lasted, (a, b))) / 2)):
        return None
    if shared := sorted(_uuids(a) & _uuids(b)):
        return f"they ran at the same time on the device {shared[0]}"
    if shared_processes := _processes(a) & _processes(b):
        host, pid = min(shared_processes)
        return f"both had the process {pid} on the host {host} at the same time"
    return None


def same_steps(a: Record, b: Record) -> str | None:
    """Why two runs are one, by the times of their steps in any order; None if nothing says so."""
    return _same_steps(_steps(a), _steps(b))


def _same_steps(a: Steps, b: Steps) -> str | None:
    equal = a & b
    found, least = equal.total(), min(a.total(), b.total())
    if len(equal) < _FEWEST_DIFFERENT or 2 * found <= least:
        return None
    return f"{found} of their {least} steps took the same times, in some order"


def _steps(record: Record) -> Steps:
    """The times of each step, or block of steps, of rank 0, by part; none without evidence that can be read."""
    try:
        section = read_section(record.raw["evidence"])
    except (EvidenceError, LookupError, TypeError, ValueError):
        return Counter()
    return Counter(
        step for span in section.spans for step in zip(*(span.columns[name][0] for name in TIMES), strict=True)
    )


def _copied(x: Sequence[Any], y: Sequence[Any]) -> str | None:
    """How many times of two runs are equal, or equal but for one factor; None if they are no copies."""
    equal = [value for value, other in zip(x, y, strict=True) if value == other]
    if 2 * len(equal) > len(x) and len(set(equal)) >= _FEWEST_DIFFERENT:
        return str(len(equal))
    ratios = sorted(value / other for value, other in zip(x, y, strict=True) if other)
    ordered, tenth = sorted(y), len(y) // 10
    varied = ordered[-1 - tenth] > ordered[tenth] * (1 + _VARIED) and len(set(y)) >= _FEWEST_DIFFERENT
    if not varied or 2 * len(ratios) <= len(x):
        return None
    factor = ratios[len(ratios) // 2]
    near = sum(abs(ratio - factor) <= _EQUAL * factor for ratio in ratios)
    return f"but for a factor of {factor:.6g}, {near}" if 2 * near > len(x) else None


def _step_times(record: Record) -> Iterator[Sequence[Any]]:
    """The times of consecutive steps, as far as a record has them; the same order in all records."""
    yield record.window.step_seconds if record.window is not None else ()
    evidence = record.raw.get("evidence")
    spans = evidence.get("spans") if isinstance(evidence, dict) else None
    for span in spans if isinstance(spans, list) else ():
        columns = span.get("columns") if isinstance(span, dict) else None
        times = columns.get("host") if isinstance(columns, dict) else None
        first = times[0] if isinstance(times, list) and times else None
        yield first if isinstance(first, list) else ()


def _end(record: Record) -> datetime:
    """A record is assembled when its run has ended."""
    return datetime.strptime(record.created_at, "%Y-%m-%dT%H:%M:%SZ")


def _start(record: Record) -> datetime:
    # By the clock as it was then: the clock may have been set during the run.
    moved = max(-_YEAR, min(record.system.clock_set_seconds or 0.0, _YEAR))
    return _end(record) - timedelta(seconds=moved) - _lasted(record)


def _lasted(record: Record) -> timedelta:
    # A record may say anything: no run has taken longer than a year.
    return timedelta(seconds=min(record.duration or 0.0, _YEAR))


def _uuids(record: Record) -> set[str]:
    devices = record.raw.get("system", {}).get("devices", ())
    found = {device.get("uuid") for device in devices if isinstance(device, dict)}
    found |= {rank.get("uuid") for rank in record.raw.get("ranks", ()) if isinstance(rank, dict)}
    return {uuid for uuid in found if isinstance(uuid, str) and uuid}


def _processes(record: Record) -> set[tuple[str, int]]:
    return {(rank.host, rank.pid) for rank in record.ranks if rank.host and rank.pid}


def _machine(a: Record, b: Record) -> Iterator[tuple[str, object, object]]:
    """What tells machines apart, where both records have it. A container's host name does not: each has its own."""
    mine, other = _uuids(a), _uuids(b)
    if mine and other:
        yield "the set of devices", sorted(mine), sorted(other)
    for name, x, y in (
        ("the processor", a.system.cpu.model, b.system.cpu.model),
        ("the number of logical processors", a.system.cpu.logical, b.system.cpu.logical),
    ):
        if x is not None and y is not None:
            yield name, x, y
    contexts = a.system.image.context_digest, b.system.image.context_digest
    if None not in contexts:
        yield "the digest of what its image was built from", *contexts
    x, y = a.system.memory_bytes, b.system.memory_bytes
    if x and y and abs(x - y) > _MEMORY * max(x, y):
        yield "the memory in bytes", x, y
