"""The section `evidence` of a record: spans of steps by rank, and what was measured once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flagbench_core.evidence.columns import (
    COLUMNS,
    FLOPS,
    PASSES,
    EvidenceError,
    add,
    block_sizes,
    decode,
    encode,
    pack,
    require_length,
    unpack,
)

TRAIN, INFER, MEASURE = KINDS = "train", "infer", "measure"
"""Kinds of cases. The window is of the phase of that name; a case that measures has a phase for each measurement."""
WARMUP, WINDOW = "warmup", "window"
"""The parts of a phase: steps that p_core leaves out, and those that it is computed from."""
MOST_BLOCKS = 100_000
"""Blocks of all ranks: bounds the time and memory of reading a column of equal numbers, which is short."""


class Collectives(NamedTuple):
    """How long each rank worked until its first collective, and waited in collectives for others, microseconds."""

    block: int  # steps per block: more than those of the columns in a long run
    first: list[list[int]]  # by rank: the sum of each block
    wait: list[list[int]]


class Span(NamedTuple):
    """Consecutive steps of all ranks. A block never crosses the border of a span."""

    phase: str  # train, val or infer, or the name of a measurement
    part: str  # WARMUP or WINDOW
    first: int
    steps: int
    columns: dict[str, list[list[int]]]  # of each name of COLUMNS, by rank: the number of each block
    flops: dict[str, list[int]]  # of each name of FLOPS, by rank: the sum over the span
    loss: list[list[float | None] | None]  # by rank: the sum of each block; empty if left out
    collectives: Collectives | None = None  # None if not measured in every step of every rank
    passes: Mapping[str, list[int]] = {}  # PASSES by rank, microseconds over the span; empty if not measured
    measured: Mapping[str, Any] | None = None  # the operation of a measurement: see roofs.py
    micro_batches: Sequence[
        Sequence[int]
    ] = ()  # of a short window, microseconds on the slowest rank's device, by step

    @property
    def end(self) -> int:
        """The end of its steps, exclusive."""
        return self.first + self.steps

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"the {self.part} of {self.phase}"


class Stretch:
    """Consecutive spans, taken as one."""

    def __init__(self, spans: Sequence[Span], block: int) -> None:
        self.spans = spans
        self.steps = sum(span.steps for span in spans)
        self.sizes = [size for span in spans for size in block_sizes(span.steps, block)]
        """The steps of each block."""
        self.world = len(spans[0].columns[COLUMNS[0]]) if spans else 0

    @property
    def first(self) -> int:
        """Its first step."""
        return self.spans[0].first

    def column(self, name: str, rank: int) -> list[int]:
        """The numbers of a rank's blocks."""
        return [value for span in self.spans for value in span.columns[name][rank]]

    def time(self, parts: Sequence[str], rank: int) -> list[int]:
        """The microseconds of a rank's blocks: the sum of several columns."""
        return add([self.column(part, rank) for part in parts])

    def amount(self, name: str) -> list[int]:
        """The work of all ranks, by block."""
        return add([self.column(name, rank) for rank in range(self.world)])

    def total(self, name: str) -> int:
        """The work of all ranks in all steps."""
        return sum(sum(values) for span in self.spans for values in span.columns[name])

    def flops(self, name: str) -> int:
        """The FLOPs of all ranks in all steps."""
        return sum(sum(span.flops[name]) for span in self.spans)

    def rank_time(self, parts: Sequence[str], rank: int) -> int:
        """A rank's microseconds in all steps."""
        return sum(sum(span.columns[part][rank]) for span in self.spans for part in parts)

    def slowest(self, parts: Sequence[str]) -> int:
        """The rank with the longest time; the first of equals.

        Not the sum of each step's maximum over ranks: different ranks are late in different steps, so that sum would
        be longer than the job's time.
        """
        return max(range(self.world), key=lambda rank: self.rank_time(parts, rank))


class Section(NamedTuple):
    """Everything that a record's numbers follow from. Times in microseconds, memory in bytes."""

    world: int
    block: int  # steps per block
    spans: list[Span]
    timing: dict[str, int]  # rank 0's phases: init, train, eval, e2e ...
    durations: dict[str, list[int]]  # of each phase that ended, by rank
    memory: dict[str, list[int | None]]  # peak and allocator_peak by rank
    ceilings: list[float]  # FLOP/s of the matrix product that each rank measured; empty if not all did
    loss_tail: list[float | None]  # the last losses, where `quality.losses` does not reach them
    roofs: tuple[Span, ...] = ()  # measured before the steps, which they are not among

    @property
    def steps(self) -> int:
        """The steps of all spans."""
        return sum(span.steps for span in self.spans)

    def stretch(self, phase: str | None = None, part: str | None = None) -> Stretch:
        """The spans of a phase, of a part, or all."""
        chosen = [s for s in self.spans if phase in (None, s.phase) and part in (None, s.part)]
        return Stretch(chosen, self.block)

    def to_json(self, packed: bool = False) -> dict[str, Any]:
        """As it stands in a record.

        `packed`: lists by rank are packed, ceilings are rounded to whole FLOP/s, and losses of single ranks are left
        out.
        """
        found: dict[str, Any] = {"version": 1, "block": self.block, "ranks": self.world}
        found["spans"] = [_span_to_json(span, self.block, packed) for span in self.spans]
        if self.roofs:
            found["roofs"] = [_span_to_json(span, self.block, packed) for span in self.roofs]
        for name in ("timing", "durations", "memory", "ceilings", "loss_tail"):
            value = getattr(self, name)
            if value:
                found[name] = value
        if packed:
            for name in {"durations", "memory"} & found.keys():  # a rank without memory has 0
                found[name] = {each: pack([value or 0 for value in of]) for each, of in found[name].items()}
            if self.ceilings:
                found["ceilings"] = pack([round(ceiling) for ceiling in self.ceilings])
        return found


def kind_of(config: Mapping[str, Any]) -> str:
    """The kind of case that a configuration is of: the section that it has, which says how long a run is."""
    return next((kind for kind in KINDS if kind in config), TRAIN)


def digest_of(raw: Mapping[str, Any]) -> str:
    """`sha256:` and the digest of a record's evidence as canonical JSON: sorted keys, no spaces.

    Most numbers that follow from evidence are sums and maxima, which not every edit of an entry changes.
    """
    text = json.dumps(raw, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def read_section(raw: Mapping[str, Any]) -> Section:
    """The section of a record whose types are as its schema says.

    Raises EvidenceError if it contradicts itself: ranks missing, columns of different lengths, spans with a gap.
    """
    if raw["version"] != 1:
        raise EvidenceError(f"its version is {raw['version']}, and this flagbench reads 1")
    world, block = raw["ranks"], raw["block"]
    roofs = raw.get("roofs", [])
    blocks = world * sum(_blocks(entry, block) for entry in (*raw["spans"], *roofs))
    if blocks > MOST_BLOCKS:
        raise EvidenceError(f"it has {blocks} blocks of steps, and a record holds at most {MOST_BLOCKS}")
    spans: list[Span] = []
    for entry in raw["spans"]:
        span = _read_span(entry, world, block)
        end = spans[-1].end if spans else 0
        if span.first != end:
            raise EvidenceError(f"{span.name} begins at step {span.first}, and the steps before it end at {end}")
        if any((span.phase, span.part) == (other.phase, other.part) for other in spans):
            raise EvidenceError(f"{span.name} is there twice")
        spans.append(span)
    ceilings = raw.get("ceilings")
    return Section(
        world,
        block,
        spans,
        dict(raw.get("timing", {})),
        {name: _list(values, world, name) for name, values in raw.get("durations", {}).items()},
        {name: _list(values, world, name) for name, values in raw.get("memory", {}).items()},
        _list(ceilings, world, "ceilings") if ceilings else [],
        list(raw.get("loss_tail", [])),
        tuple(_read_span(entry, world, block) for entry in roofs),
    )


def _list(values: Any, world: int, name: str) -> list[Any]:
    """A list by rank."""
    if isinstance(values, Mapping):
        return unpack(values, world, name)
    require_length(len(values), world, name)
    return list(values)


def _span_to_json(span: Span, block: int, packed: bool) -> dict[str, Any]:
    sizes = block_sizes(span.steps, block)

    def column(of_ranks: list[list[int]], sizes: Sequence[int]) -> Any:
        sums = [sum(each) for each in of_ranks]
        return _by_rank([encode(each, sizes) for each in of_ranks], sums, packed and len(sizes) == 1)

    found: dict[str, Any] = {"phase": span.phase, "part": span.part, "first_step": span.first, "steps": span.steps}
    found["columns"] = {name: column(of, sizes) for name, of in span.columns.items()}
    found["flops"] = {name: _by_rank(of, of, packed) for name, of in span.flops.items()}
    if span.loss and not packed:
        found["loss"] = span.loss
    if span.collectives is not None:
        coarse, first, wait = span.collectives
        blocks = block_sizes(span.steps, coarse)
        found["collectives"] = {"block": coarse, "first": column(first, blocks), "wait": column(wait, blocks)}
    if span.passes:
        found["passes"] = {name: _by_rank(of, of, packed) for name, of in span.passes.items()}
    if span.measured is not None:
        found["measured"] = dict(span.measured)
    if span.micro_batches:
        found["micro_batches"] = span.micro_batches
    return found


def _by_rank(of_ranks: list[Any], sums: list[int], packed: bool) -> Any:
    """One number for all ranks, where they have the same; else that of each. A packed one has the `sums` of each."""
    first = of_ranks[0]
    if isinstance(first, int) and all(each == first for each in of_ranks):
        return first
    return pack(sums) if packed else of_ranks


def _blocks(raw: Mapping[str, Any], block: int) -> int:
    """The blocks of a rank in a span."""
    smallest = min(block, (raw.get("collectives") or {}).get("block", block))
    return -(-int(raw["steps"]) // int(smallest))


def _read_span(raw: Mapping[str, Any], world: int, block: int) -> Span:
    phase, part, steps = raw["phase"], raw["part"], raw["steps"]
    name, sizes = f"the {part} of {phase}", block_sizes(steps, block)
    columns = {column: _column(raw["columns"], column, world, sizes, name) for column in COLUMNS}
    flops = {each: _of_ranks(raw["flops"], each, world, name) for each in FLOPS}
    collectives = None
    if raw.get("collectives"):
        of = raw["collectives"]
        blocks = block_sizes(steps, of["block"])
        first, wait = (_column(of, each, world, blocks, f"collectives of {name}") for each in ("first", "wait"))
        collectives = Collectives(of["block"], first, wait)
    passes = {each: _of_ranks(raw["passes"], each, world, name) for each in PASSES} if raw.get("passes") else {}
    loss = [None if of is None else list(of) for of in raw.get("loss", [])]
    if loss:
        require_length(len(loss), world, f"loss in {name}")
    for rank, of in enumerate(loss):
        if of is not None:
            require_length(len(of), len(sizes), f"loss of rank {rank} in {name}")
    micro = raw.get("micro_batches", ())
    if micro:
        require_length(len(micro), steps, f"micro_batches of {name}")
    for of_step in micro:
        require_length(len(of_step), len(micro[0]), f"micro_batches of a step in {name}")
    once = (collectives, passes, raw.get("measured"), micro)
    return Span(phase, part, raw["first_step"], steps, columns, flops, loss, *once)


def _column(raw: Mapping[str, Any], column: str, world: int, sizes: Sequence[int], where: str) -> list[list[int]]:
    """The numbers of a column, by rank and block."""
    if isinstance(raw.get(column), Mapping):
        if len(sizes) != 1:
            raise EvidenceError(f"{column} in {where} is packed, and has {len(sizes)} blocks")
        return [[value] for value in unpack(raw[column], world, f"{column} in {where}")]
    of_ranks = _of_ranks(raw, column, world, where)
    return [decode(each, sizes, f"{column} of rank {rank} in {where}") for rank, each in enumerate(of_ranks)]


def _of_ranks(raw: Mapping[str, Any], name: str, world: int, where: str) -> list[Any]:
    """A column of each rank; one number stands for all of them."""
    if name not in raw:
        raise EvidenceError(f"{where} has no column {name}")
    value = raw[name]
    if isinstance(value, int):
        return [value] * world
    if isinstance(value, Mapping):
        return unpack(value, world, f"{name} in {where}")
    require_length(len(value), world, f"{name} in {where}")
    return list(value)
