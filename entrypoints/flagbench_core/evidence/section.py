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
    micro_batches: Sequence[Sequence[int]] = ()
    """Of a short window, microseconds on the slowest rank's device, by step."""

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
        self.sizes: list[int] = []
        """The steps of each block."""
        for span in spans:
            self.sizes += block_sizes(span.steps, block)
        self.world = len(spans[0].columns[COLUMNS[0]]) if spans else 0

    @property
    def first(self) -> int:
        """Its first step."""
        return self.spans[0].first

    def column(self, name: str, rank: int) -> list[int]:
        """The numbers of a rank's blocks."""
        numbers: list[int] = []
        for span in self.spans:
            numbers += span.columns[name][rank]
        return numbers

    def time(self, parts: Sequence[str], rank: int) -> list[int]:
        """The microseconds of a rank's blocks: the sum of several columns."""
        return add([self.column(part, rank) for part in parts])

    def amount(self, name: str) -> list[int]:
        """The work of all ranks, by block."""
        return add([self.column(name, rank) for rank in range(self.world)])

    def total(self, name: str) -> int:
        """The work of all ranks in all steps."""
        total = 0
        for span in self.spans:
            total += sum(map(sum, span.columns[name]))
        return total

    def flops(self, name: str) -> int:
        """The FLOPs of all ranks in all steps."""
        return sum(sum(span.flops[name]) for span in self.spans)

    def rank_time(self, parts: Sequence[str], rank: int) -> int:
        """A rank's microseconds in all steps."""
        total = 0
        for span in self.spans:
            total += sum(sum(span.columns[part][rank]) for part in parts)
        return total

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
        chosen = [span for span in self.spans if phase in (None, span.phase) and part in (None, span.part)]
        return Stretch(chosen, self.block)

    def to_json(self, packed: bool = False) -> dict[str, Any]:
        """The JSON of a record.

        `packed`: lists by rank are packed, ceilings are rounded to whole FLOP/s, and losses of single ranks are left
        out.
        """
        document: dict[str, Any] = {"version": 1, "block": self.block, "ranks": self.world}
        document["spans"] = [_span_to_json(span, self.block, packed) for span in self.spans]
        if self.roofs:
            document["roofs"] = [_span_to_json(span, self.block, packed) for span in self.roofs]
        for name in ("timing", "durations", "memory", "ceilings", "loss_tail"):
            if getattr(self, name):
                document[name] = getattr(self, name)
        if packed:
            if self.durations:
                document["durations"] = {name: pack(micro) for name, micro in self.durations.items()}
            if self.memory:
                document["memory"] = {name: _pack_memory(peaks) for name, peaks in self.memory.items()}
            if self.ceilings:
                document["ceilings"] = pack([round(ceiling) for ceiling in self.ceilings])
        return document


def _pack_memory(peaks: Sequence[int | None]) -> dict[str, Any]:
    """The bytes of each rank, packed; 0 for a rank without a number."""
    return pack([peak or 0 for peak in peaks])


def kind_of(config: Mapping[str, Any]) -> str:
    """The kind of case that a configuration is for: the section that it has, which says how long a run is."""
    for kind in KINDS:
        if kind in config:
            return kind
    return TRAIN


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
    blocks = world * sum(_blocks(raw_span, block) for raw_span in (*raw["spans"], *roofs))
    if blocks > MOST_BLOCKS:
        raise EvidenceError(f"it has {blocks} blocks of steps, and a record holds at most {MOST_BLOCKS}")
    spans: list[Span] = []
    names: set[str] = set()
    end = 0
    for raw_span in raw["spans"]:
        span = _read_span(raw_span, world, block)
        if span.first != end:
            raise EvidenceError(f"{span.name} begins at step {span.first}, and the steps before it end at {end}")
        if span.name in names:
            raise EvidenceError(f"{span.name} occurs twice")
        end = span.end
        names.add(span.name)
        spans.append(span)
    ceilings: list[float] = []
    if raw.get("ceilings"):
        ceilings = _list(raw["ceilings"], world, "ceilings")
    return Section(
        world=world,
        block=block,
        spans=spans,
        timing=dict(raw.get("timing", {})),
        durations={name: _list(micro, world, name) for name, micro in raw.get("durations", {}).items()},
        memory={name: _list(peaks, world, name) for name, peaks in raw.get("memory", {}).items()},
        ceilings=ceilings,
        loss_tail=list(raw.get("loss_tail", [])),
        roofs=tuple(_read_span(raw_span, world, block) for raw_span in roofs),
    )


def _list(values: Any, world: int, name: str) -> list[Any]:
    """A list by rank."""
    if isinstance(values, Mapping):
        return unpack(values, world, name)
    require_length(len(values), world, name)
    return list(values)


def _span_to_json(span: Span, block: int, packed: bool) -> dict[str, Any]:
    sizes = block_sizes(span.steps, block)
    raw: dict[str, Any] = {"phase": span.phase, "part": span.part, "first_step": span.first, "steps": span.steps}
    raw["columns"] = {name: _column_to_json(column, sizes, packed) for name, column in span.columns.items()}
    raw["flops"] = {name: _by_rank(flops, flops, packed) for name, flops in span.flops.items()}
    if span.loss and not packed:
        raw["loss"] = span.loss
    if span.collectives is not None:
        blocks = block_sizes(span.steps, span.collectives.block)
        raw["collectives"] = {
            "block": span.collectives.block,
            "first": _column_to_json(span.collectives.first, blocks, packed),
            "wait": _column_to_json(span.collectives.wait, blocks, packed),
        }
    if span.passes:
        raw["passes"] = {name: _by_rank(micro, micro, packed) for name, micro in span.passes.items()}
    if span.measured is not None:
        raw["measured"] = dict(span.measured)
    if span.micro_batches:
        raw["micro_batches"] = span.micro_batches
    return raw


def _column_to_json(ranks: list[list[int]], sizes: Sequence[int], packed: bool) -> Any:
    """A column of every rank in its shortest form. Only numbers of single blocks can be packed."""
    columns = [encode(blocks, sizes) for blocks in ranks]
    return _by_rank(columns, [sum(blocks) for blocks in ranks], packed and len(sizes) == 1)


def _by_rank(ranks: list[Any], sums: list[int], packed: bool) -> Any:
    """One number if all ranks have the same, else the list by rank; `packed`: else the packed `sums` of the ranks."""
    first = ranks[0]
    if isinstance(first, int) and all(column == first for column in ranks):
        return first
    if packed:
        return pack(sums)
    return ranks


def _blocks(raw: Mapping[str, Any], block: int) -> int:
    """The blocks of a rank in a span."""
    smallest = min(block, (raw.get("collectives") or {}).get("block", block))
    return -(-int(raw["steps"]) // int(smallest))


def _read_span(raw: Mapping[str, Any], world: int, block: int) -> Span:
    steps = raw["steps"]
    name = f"the {raw['part']} of {raw['phase']}"
    sizes = block_sizes(steps, block)
    passes: dict[str, list[int]] = {}
    columns = {column: _column(raw["columns"], column, world, sizes, name) for column in COLUMNS}
    flops = {column: _of_ranks(raw["flops"], column, world, name) for column in FLOPS}
    collectives = None
    if raw.get("collectives"):
        collectives = _read_collectives(raw["collectives"], steps, world, name)
    if raw.get("passes"):
        passes = {column: _of_ranks(raw["passes"], column, world, name) for column in PASSES}
    return Span(
        phase=raw["phase"],
        part=raw["part"],
        first=raw["first_step"],
        steps=steps,
        columns=columns,
        flops=flops,
        loss=_read_loss(raw.get("loss", []), world, len(sizes), name),
        collectives=collectives,
        passes=passes,
        measured=raw.get("measured"),
        micro_batches=_read_micro_batches(raw.get("micro_batches", ()), steps, name),
    )


def _read_collectives(raw: Mapping[str, Any], steps: int, world: int, name: str) -> Collectives:
    sizes = block_sizes(steps, raw["block"])
    first = _column(raw, "first", world, sizes, f"collectives of {name}")
    wait = _column(raw, "wait", world, sizes, f"collectives of {name}")
    return Collectives(raw["block"], first, wait)


def _read_loss(raw: Sequence[Any], world: int, blocks: int, name: str) -> list[list[float | None] | None]:
    """The losses of each rank; empty if they are left out."""
    if raw:
        require_length(len(raw), world, f"loss in {name}")
    ranks: list[list[float | None] | None] = []
    for rank, losses in enumerate(raw):
        if losses is None:
            ranks.append(None)
            continue
        require_length(len(losses), blocks, f"loss of rank {rank} in {name}")
        ranks.append(list(losses))
    return ranks


def _read_micro_batches(raw: Sequence[Sequence[int]], steps: int, name: str) -> Sequence[Sequence[int]]:
    """The micro-batches of each step; empty if they are left out."""
    if raw:
        require_length(len(raw), steps, f"micro_batches of {name}")
    for micro_batches in raw:
        require_length(len(micro_batches), len(raw[0]), f"micro_batches of a step in {name}")
    return raw


def _column(raw: Mapping[str, Any], column: str, world: int, sizes: Sequence[int], where: str) -> list[list[int]]:
    """The numbers of a column, by rank and block."""
    if isinstance(raw.get(column), Mapping):
        if len(sizes) != 1:
            raise EvidenceError(f"{column} in {where} is packed, and has {len(sizes)} blocks")
        return [[number] for number in unpack(raw[column], world, f"{column} in {where}")]
    numbers = []
    for rank, encoded in enumerate(_of_ranks(raw, column, world, where)):
        numbers.append(decode(encoded, sizes, f"{column} of rank {rank} in {where}"))
    return numbers


def _of_ranks(raw: Mapping[str, Any], name: str, world: int, where: str) -> list[Any]:
    """A column of each rank; one number stands for all of them."""
    if name not in raw:
        raise EvidenceError(f"{where} has no column {name}")
    column = raw[name]
    if isinstance(column, int):
        return [column] * world
    if isinstance(column, Mapping):
        return unpack(column, world, f"{name} in {where}")
    require_length(len(column), world, f"{name} in {where}")
    return list(column)
