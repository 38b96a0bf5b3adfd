"""The evidence of a record: spans of steps with the times and the work of every rank.

An image writes it with `RecordEvidence.to_json`; the image and the host read it with `read_evidence`, which refuses
evidence that contradicts itself. Everything else in this package computes with `RecordEvidence`, `Span` and
`StepRange`.
"""

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

WARMUP = "warmup"
"""The part of a phase with the first steps, which the metric p_core leaves out."""
WINDOW = "window"
"""The part of a phase with the steps that the metric p_core is computed from."""
MOST_BLOCKS = 100_000
"""The most blocks of all ranks together that are read.

A column of equal numbers is short in JSON whatever its length: the limit bounds the time and memory of reading it.
"""


class Collectives(NamedTuple):
    """The times of the ranks in collectives, microseconds, as sums over blocks of steps."""

    block: int
    """Steps per block. In a long run these blocks are longer than those of the columns."""
    first: list[list[int]]
    """By rank and block: how long the rank worked from the start of a step to its first collective."""
    wait: list[list[int]]
    """By rank and block: how long the rank waited in collectives for the other ranks."""


class Span(NamedTuple):
    """Consecutive steps of all ranks. A block never crosses the border of a span."""

    phase: str
    """`train`, `val`, `infer`, or the name of a measurement."""
    part: str
    """WARMUP or WINDOW."""
    first: int
    """The number of the first step."""
    steps: int
    """How many steps the span has."""
    columns: dict[str, list[list[int]]]
    """By name (see COLUMNS), rank and block: the sum over the steps of the block."""
    flops: dict[str, list[int]]
    """By name (see FLOPS) and rank: the sum over the span."""
    loss: list[list[float | None] | None]
    """By rank and block: the sum of the losses; empty if losses are left out."""
    collectives: Collectives | None = None
    """None if they were not measured in every step of every rank."""
    passes: Mapping[str, list[int]] = {}
    """By name (see PASSES) and rank: microseconds over the span; empty if not measured."""
    measured: Mapping[str, Any] | None = None
    """The operation of a measurement, as roofs.py reads it; None for the steps of a model."""
    micro_batches: Sequence[Sequence[int]] = ()
    """By step: microseconds of each micro-batch on the slowest rank's device.

    Empty except in a short window, and in a window of an inference whose engine marks its iterations.
    """

    @property
    def end(self) -> int:
        """The number of the first step after the span."""
        return self.first + self.steps

    @property
    def name(self) -> str:
        """The name of the span in messages of errors."""
        return f"the {self.part} of {self.phase}"


class StepRange:
    """The steps of consecutive spans, which are evaluated together."""

    def __init__(self, spans: Sequence[Span], block: int) -> None:
        self.spans = spans
        self.steps = sum(span.steps for span in spans)
        self.sizes: list[int] = []
        """The number of steps in each block."""
        for span in spans:
            self.sizes += block_sizes(span.steps, block)
        self.world = 0
        """The number of ranks."""
        if spans:
            self.world = len(spans[0].columns[COLUMNS[0]])

    @property
    def first(self) -> int:
        """The number of its first step."""
        return self.spans[0].first

    def column(self, name: str, rank: int) -> list[int]:
        """The number of each block in one column of a rank."""
        numbers: list[int] = []
        for span in self.spans:
            numbers += span.columns[name][rank]
        return numbers

    def time(self, parts: Sequence[str], rank: int) -> list[int]:
        """The microseconds of each block of a rank: the sum of the columns `parts`."""
        return add([self.column(part, rank) for part in parts])

    def amount(self, name: str) -> list[int]:
        """The work of all ranks in each block. `name`: a column of work, such as `tokens`."""
        return add([self.column(name, rank) for rank in range(self.world)])

    def total(self, name: str) -> int:
        """The work of all ranks in all steps. `name`: a column of work, such as `tokens`."""
        total = 0
        for span in self.spans:
            total += sum(map(sum, span.columns[name]))
        return total

    def flops(self, name: str) -> int:
        """The FLOPs of all ranks in all steps. `name`: one of FLOPS."""
        return sum(sum(span.flops[name]) for span in self.spans)

    def rank_time(self, parts: Sequence[str], rank: int) -> int:
        """A rank's microseconds in all steps: the sum of the columns `parts`."""
        total = 0
        for span in self.spans:
            total += sum(sum(span.columns[part][rank]) for part in parts)
        return total

    def slowest(self, parts: Sequence[str]) -> int:
        """The rank with the longest time in all steps; the first of equals.

        Its time is the job's. The sum of each step's maximum over ranks would be longer than the job took, since
        different ranks are late in different steps.
        """
        return max(range(self.world), key=lambda rank: self.rank_time(parts, rank))


class RecordEvidence(NamedTuple):
    """Everything that a record's numbers follow from. Times are in microseconds, memory is in bytes."""

    world: int
    """The number of ranks."""
    block: int
    """The number of steps in a block."""
    spans: list[Span]
    """All steps, in order and without gaps."""
    timing: dict[str, int]
    """The duration of each phase of rank 0: init, train, eval, e2e and others."""
    durations: dict[str, list[int]]
    """By phase and rank: how long each phase of steps took, if it ended."""
    memory: dict[str, list[int | None]]
    """`peak` and `allocator_peak` of each rank."""
    ceilings: list[float]
    """The rate of the matmul that each rank measured, FLOP/s; empty if a rank did not measure it."""
    loss_tail: list[float | None]
    """The last losses, if the loss curve in the record's `quality` does not reach them."""
    roofs: tuple[Span, ...] = ()
    """Measurements before the steps of a model, which are not among `spans`."""

    @property
    def steps(self) -> int:
        """The number of steps in all spans."""
        return sum(span.steps for span in self.spans)

    def step_range(self, phase: str | None = None, part: str | None = None) -> StepRange:
        """The spans of one phase, of one part, of both, or all spans."""
        chosen = []
        for span in self.spans:
            if phase in (None, span.phase) and part in (None, span.part):
                chosen.append(span)
        return StepRange(chosen, self.block)

    def to_json(self, packed: bool = False) -> dict[str, Any]:
        """The evidence as a record has it.

        `packed`: the form for a job of many ranks, in which lists by rank are packed, ceilings are rounded to whole
        FLOP/s, and losses of single ranks are left out.
        """
        document: dict[str, Any] = {"version": 1, "block": self.block, "ranks": self.world}
        document["spans"] = [_span_to_json(span, self.block, packed) for span in self.spans]
        if self.roofs:
            document["roofs"] = [_span_to_json(span, self.block, packed) for span in self.roofs]
        for name in ("timing", "durations", "memory", "ceilings", "loss_tail"):
            if getattr(self, name):
                document[name] = getattr(self, name)
        if packed:
            self._pack_lists(document)
        return document

    def _pack_lists(self, document: dict[str, Any]) -> None:
        """Replace the lists by rank that are not in spans with their packed form."""
        if self.durations:
            document["durations"] = {name: pack(micro) for name, micro in self.durations.items()}
        if self.memory:
            document["memory"] = {name: _pack_memory(peaks) for name, peaks in self.memory.items()}
        if self.ceilings:
            document["ceilings"] = pack([round(ceiling) for ceiling in self.ceilings])


def _pack_memory(peaks: Sequence[int | None]) -> dict[str, Any]:
    """The bytes of each rank, packed; 0 for a rank without a number."""
    return pack([peak or 0 for peak in peaks])


def digest_of(raw: Mapping[str, Any]) -> str:
    """`sha256:` and the digest of a record's evidence as canonical JSON: sorted keys, no spaces.

    It shows edits that the numbers of the record may not show: most of these are sums and maxima, which do not change
    with every entry.
    """
    text = json.dumps(raw, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def read_evidence(raw: Mapping[str, Any]) -> RecordEvidence:
    """The evidence from the JSON of a record, in which every field has the type that the schema says.

    Raises EvidenceError if it contradicts itself: ranks missing, columns of different lengths, spans with a gap.
    """
    if raw["version"] != 1:
        raise EvidenceError(f"its version is {raw['version']}, and this flagbench reads 1")
    world = raw["ranks"]
    block = raw["block"]
    raw_roofs = raw.get("roofs", [])
    # Before any column is read: a record of a few bytes can say that it has a billion steps.
    blocks_of_rank = sum(_count_blocks(raw_span, block) for raw_span in (*raw["spans"], *raw_roofs))
    blocks = world * blocks_of_rank
    if blocks > MOST_BLOCKS:
        raise EvidenceError(f"it has {blocks} blocks of steps, and a record holds at most {MOST_BLOCKS}")
    spans = [_read_span(raw_span, world, block) for raw_span in raw["spans"]]
    _check_order(spans)
    ceilings: list[float] = []
    if raw.get("ceilings"):
        ceilings = _read_list(raw["ceilings"], world, "ceilings")
    return RecordEvidence(
        world=world,
        block=block,
        spans=spans,
        timing=dict(raw.get("timing", {})),
        durations={name: _read_list(micro, world, name) for name, micro in raw.get("durations", {}).items()},
        memory={name: _read_list(peaks, world, name) for name, peaks in raw.get("memory", {}).items()},
        ceilings=ceilings,
        loss_tail=list(raw.get("loss_tail", [])),
        roofs=tuple(_read_span(raw_span, world, block) for raw_span in raw_roofs),
    )


def _check_order(spans: Sequence[Span]) -> None:
    """Raise EvidenceError unless each span begins where the one before it ends, and all have different names."""
    names: set[str] = set()
    end = 0
    for span in spans:
        if span.first != end:
            raise EvidenceError(f"{span.name} begins at step {span.first}, and the steps before it end at {end}")
        if span.name in names:
            raise EvidenceError(f"{span.name} occurs twice")
        end = span.end
        names.add(span.name)


def _read_list(values: Any, world: int, name: str) -> list[Any]:
    """A list with an entry for each rank, from its packed form or from a plain list. Raises EvidenceError."""
    if isinstance(values, Mapping):
        return unpack(values, world, name)
    require_length(len(values), world, name)
    return list(values)


def _span_to_json(span: Span, block: int, packed: bool) -> dict[str, Any]:
    """A span as a record has it; `packed` as in `RecordEvidence.to_json`."""
    sizes = block_sizes(span.steps, block)
    raw: dict[str, Any] = {"phase": span.phase, "part": span.part, "first_step": span.first, "steps": span.steps}
    raw["columns"] = {name: _column_to_json(column, sizes, packed) for name, column in span.columns.items()}
    raw["flops"] = {name: _shorten_by_rank(flops, flops, packed) for name, flops in span.flops.items()}
    if span.loss and not packed:
        raw["loss"] = span.loss
    if span.collectives is not None:
        collective_sizes = block_sizes(span.steps, span.collectives.block)
        raw["collectives"] = {
            "block": span.collectives.block,
            "first": _column_to_json(span.collectives.first, collective_sizes, packed),
            "wait": _column_to_json(span.collectives.wait, collective_sizes, packed),
        }
    if span.passes:
        raw["passes"] = {name: _shorten_by_rank(micro, micro, packed) for name, micro in span.passes.items()}
    if span.measured is not None:
        raw["measured"] = dict(span.measured)
    if span.micro_batches:
        raw["micro_batches"] = span.micro_batches
    return raw


def _column_to_json(ranks: list[list[int]], sizes: Sequence[int], packed: bool) -> Any:
    """The column of every rank in its shortest form; `sizes` has the steps of each block.

    Only a column with a single block for each rank can be packed.
    """
    columns = [encode(blocks, sizes) for blocks in ranks]
    sums = [sum(blocks) for blocks in ranks]
    return _shorten_by_rank(columns, sums, packed and len(sizes) == 1)


def _shorten_by_rank(ranks: list[Any], sums: list[int], packed: bool) -> Any:
    """The shortest form of an entry for each rank: one number if all ranks have the same, else the list.

    `packed`: instead of the list, the packed form of `sums`, which has a number for each rank.
    """
    first = ranks[0]
    if isinstance(first, int) and all(column == first for column in ranks):
        return first
    if packed:
        return pack(sums)
    return ranks


def _count_blocks(raw: Mapping[str, Any], block: int) -> int:
    """How many blocks a rank has in a span: in its columns or in its collectives, whichever has more."""
    smallest = block
    if raw.get("collectives"):
        smallest = min(block, raw["collectives"]["block"])
    full, rest = divmod(int(raw["steps"]), int(smallest))
    return full + bool(rest)  # the last block may be shorter


def _read_span(raw: Mapping[str, Any], world: int, block: int) -> Span:
    """A span from its JSON, whose keys are those of `_span_to_json`. Raises EvidenceError."""
    steps = raw["steps"]
    name = f"the {raw['part']} of {raw['phase']}"
    sizes = block_sizes(steps, block)
    columns = {column: _read_column(raw["columns"], column, world, sizes, name) for column in COLUMNS}
    flops = {column: _read_by_rank(raw["flops"], column, world, name) for column in FLOPS}
    collectives = None
    if raw.get("collectives"):
        collectives = _read_collectives(raw["collectives"], steps, world, name)
    passes: dict[str, list[int]] = {}
    if raw.get("passes"):
        passes = {column: _read_by_rank(raw["passes"], column, world, name) for column in PASSES}
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
    """The collectives of the span `name`, which has `steps` steps."""
    sizes = block_sizes(steps, raw["block"])
    first = _read_column(raw, "first", world, sizes, f"collectives of {name}")
    wait = _read_column(raw, "wait", world, sizes, f"collectives of {name}")
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


def _read_column(
    raw: Mapping[str, Any], column: str, world: int, sizes: Sequence[int], where: str
) -> list[list[int]]:
    """The numbers of a column, by rank and block. `where` names the part of the evidence in messages of errors."""
    if isinstance(raw.get(column), Mapping):
        if len(sizes) != 1:
            raise EvidenceError(f"{column} in {where} is packed, and has {len(sizes)} blocks")
        return [[number] for number in unpack(raw[column], world, f"{column} in {where}")]
    numbers = []
    for rank, encoded in enumerate(_read_by_rank(raw, column, world, where)):
        numbers.append(decode(encoded, sizes, f"{column} of rank {rank} in {where}"))
    return numbers


def _read_by_rank(raw: Mapping[str, Any], name: str, world: int, where: str) -> list[Any]:
    """The entry of each rank, from any form of `_shorten_by_rank`: one number stands for all ranks."""
    if name not in raw:
        raise EvidenceError(f"{where} has no column {name}")
    column = raw[name]
    if isinstance(column, int):
        return [column] * world
    if isinstance(column, Mapping):
        return unpack(column, world, f"{name} in {where}")
    require_length(len(column), world, f"{name} in {where}")
    return list(column)
