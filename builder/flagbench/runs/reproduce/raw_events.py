"""Whether a record's evidence is what its raw events give: the steps and facts that each rank of a node left.

The format of the files, `rank-00003.steps` and `rank-00003.facts`, is that of shared/spool.py of the image side.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flagbench.records.model import Record
from flagbench_core.evidence import EvidenceError, Section
from flagbench_core.evidence.columns import (
    COLUMNS,
    FLOPS,
    PASSES,
    TIMES,
    in_blocks,
    losses_in_blocks,
    microseconds,
    whole,
)
from flagbench_core.evidence.section import TRAIN, Span, read_section

_HEADER, _HEADER_SIZE = struct.Struct("<8sQQ"), 64
"""Magic, capacity and number of steps, in front of them."""
_SLOT = struct.Struct("<17d")
_FIELDS = (
    *("data_wait", "to_device", "host", "device", "first", "wait", "after", "loss"),
    *("samples", "samples_published", "tokens", "tokens_useful", *FLOPS, *PASSES),
)
"""The values of a step, by the name of their column."""
_REPEAT = ("device", "host", "after")
"""The times of a repeat in a fact."""
_MOST_FACTS = 2**26
"""Bytes of a rank's facts that are read."""
Steps = Sequence[Sequence[float]]


def has_steps(record: Record) -> bool:
    """Whether a record's evidence is of all steps that were taken, so that raw events can be compared with it.

    That of a run that did not end well is of the steps that all ranks had finished.
    """
    return record.evidence is not None and record.status.state == "ok"


def compared(files: Mapping[str, Path], record: Record, node: int) -> tuple[set[int], list[str]]:
    """The ranks whose raw events are in the bundle of a node, and where the record's evidence is not theirs.

    At most one clause for each rank. `files`: those of the bundle, by name.
    """
    if not has_steps(record):
        return set(), []
    try:
        section = read_section(record.raw["evidence"])
    except (EvidenceError, OverflowError):
        section = None  # the verdict says so
    own = [rank.rank for rank in record.ranks if rank.node == node and (section is None or rank.rank < section.world)]
    ranks = own if any(f"rank-{rank:05d}.steps" in files for rank in own) else []
    found: list[str] = []
    if section is None:
        return set(ranks), found
    for rank in ranks:
        steps, facts = (
            _content(files.get(f"rank-{rank:05d}.{kind}"), most)
            for kind, most in (("steps", _HEADER_SIZE + section.steps * _SLOT.size), ("facts", _MOST_FACTS))
        )
        try:
            wrong = [*_steps(section, rank, steps), *_facts(section, rank, facts)]
        except (OverflowError, ValueError):  # sums of infinite or huge numbers, which no run has
            wrong = [f"the raw events of rank {rank} have numbers that nothing can be computed from"]
        found += [f"record {record.record_id}: {clause}" for clause in wrong[:1]]
    return set(ranks), found


def _content(path: Path | None, most: int) -> bytes:
    """A file of the bundle, up to a byte more than `most`; empty if it is not there."""
    if path is None:
        return b""
    with path.open("rb") as file:
        return file.read(most + 1)


def _steps(section: Section, rank: int, content: bytes) -> Iterator[str]:
    taken = _HEADER.unpack_from(content)[2] if len(content) >= _HEADER_SIZE else 0
    if taken != section.steps or len(content) != _HEADER_SIZE + taken * _SLOT.size:
        yield f"its evidence has {section.steps} steps of rank {rank}, and its raw events {taken}"
        return
    steps = [*_SLOT.iter_unpack(content[_HEADER_SIZE:])]
    for span in section.spans:
        yield from _of_span(section, span, rank, steps[span.first : span.end])


def _of_span(section: Section, span: Span, rank: int, steps: Steps) -> Iterator[str]:
    for index, name in enumerate(_FIELDS):
        values = [step[index] for step in steps]
        pair: tuple[Any, Any] = None, None
        if name in FLOPS:
            pair = span.flops[name][rank], sum(map(whole, values))
        elif name == "loss" and span.loss and span.loss[rank] is not None:
            pair = span.loss[rank], losses_in_blocks(values, section.block)
        elif name in ("first", "wait") and span.collectives is not None:
            numbers = in_blocks([*map(microseconds, values)], span.collectives.block)
            pair = getattr(span.collectives, name)[rank], numbers
        elif name in span.passes:
            pair = span.passes[name][rank], microseconds(math.fsum(values))
        elif name in COLUMNS:
            numbers = [*map(microseconds if name in TIMES else whole, values)]
            pair = span.columns[name][rank], in_blocks(numbers, section.block)
        if pair[0] != pair[1]:
            yield f"{name} of rank {rank} in {span.name} is not that of its raw events"


def _facts(section: Section, rank: int, content: bytes) -> Iterator[str]:
    """What was measured once: durations of phases, memory, the matrix product."""
    facts = [fact for fact in map(_fact, content.splitlines()) if fact.get("rank") == rank]
    kinds = {str(fact.get("kind")): fact for fact in facts}
    timing, memory, ceiling = (kinds.get(name, {}) for name in ("timing", "memory", "ceiling"))
    passes = {str(fact.get("name")): fact.get("seconds") for fact in facts if fact.get("kind") == "pass"}
    pairs: list[tuple[str, Any, Any]] = [
        (f"the duration of {phase}", lasted[rank], _micro(timing.get(phase) if phase == TRAIN else passes.get(phase)))
        for phase, lasted in section.durations.items()
    ]
    pairs += [(f"memory {name}", of[rank] or None, memory.get(name) or None) for name, of in section.memory.items()]
    if section.ceilings:
        measured, flops = section.ceilings[rank], ceiling.get("flops")
        if isinstance(measured, int) and isinstance(flops, float):  # of thousands of ranks
            flops = round(flops)
        pairs.append(("the matrix product", measured, flops))
    roofs = {str(fact.get("name")): fact for fact in facts if fact.get("kind") == "roof"}
    for span in section.roofs:
        there = _repeats(roofs.get(span.phase, {}))
        pairs += [(f"{k} of {span.phase}", span.columns[k][rank], in_blocks(there[k], section.block)) for k in there]
    if rank == 0:
        pairs += [(f"timing.{name}", value, _micro(timing.get(name))) for name, value in section.timing.items()]
    for name, here, there in pairs:
        if here != there:
            yield f"{name} of rank {rank} is {here}, and its raw events have {there}"


def _repeats(fact: Mapping[str, Any]) -> dict[str, list[int]]:
    """The columns of what a rank measured before the steps."""
    times, count = fact.get("times"), fact.get("operations")
    rows = [row for row in times if isinstance(row, list)] if isinstance(times, list) else []
    found = {name: [_micro(row[at]) or 0 for row in rows if at < len(row)] for at, name in enumerate(_REPEAT)}
    return {**found, "samples": [count if isinstance(count, int) else 0] * len(rows)}


def _fact(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _micro(seconds: Any) -> int | None:
    return microseconds(seconds) if isinstance(seconds, int | float) else None
