"""The evidence in a record: what its numbers follow from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from flagbench.records.scalars import Amount, Count, Number, PositiveCount


class RunLengths(Struct, frozen=True):
    """A column as runs of equal numbers: (blocks, number of each)."""

    runs: tuple[tuple[PositiveCount, Count], ...]


class Packed(Struct, frozen=True):
    """Numbers in base64, of `bytes` bytes each, to which `least` is added: a list by rank of a large job."""

    least: Count
    bytes: Annotated[int, Meta(ge=1, le=16)]
    data: str


Column = Count | tuple[Count, ...] | RunLengths
"""One number for every step, a number per block, or runs of blocks with equal numbers."""


class Collectives(Struct, frozen=True):
    """Microseconds until each rank's first collective, and of waiting in collectives: sums of blocks, as columns."""

    block: PositiveCount
    first: Count | tuple[Column, ...] | Packed
    wait: Count | tuple[Column, ...] | Packed


class Span(Struct, frozen=True):
    """The evidence of consecutive steps: times in microseconds, amounts of work, FLOPs.

    A column is a number that all ranks have in every step, or a column of each rank.
    """

    phase: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
    """train, val or infer; of a case that measures, the name of the measurement."""
    part: Literal["warmup", "window"]
    """window: the steps of p_core, p_val_core or p_infer_core."""
    first_step: Count
    steps: PositiveCount
    columns: dict[str, Count | tuple[Column, ...] | Packed]
    """Microseconds: host, device, data_wait, to_device, after; samples, samples_published, tokens, tokens_useful."""
    flops: dict[str, Count | tuple[Count, ...] | Packed]
    """Summed over the span: a number that all ranks have, or that of each."""
    loss: tuple[tuple[Number | None, ...] | None, ...] = ()
    """By rank; None for one without losses. Left out where `quality.losses` is that of the only rank that has one."""
    collectives: Collectives | None = None
    """Left out unless measured in every step of every rank; so are `passes`."""
    passes: dict[str, Count | tuple[Count, ...] | Packed] = {}
    """Of a pipeline, summed over the span: `computing` and `pipeline`, a number that all ranks have, or each."""
    micro_batches: tuple[tuple[Count, ...], ...] = ()
    """Of a window of fewer than 100 steps, by step, on the device of its slowest rank. Left out unless measured."""
    measured: dict[str, Any] | None = None
    """The operation whose repeats these steps are; `samples` counts the operations of a repeat."""


class Evidence(Struct, frozen=True):
    """What the record's numbers follow from (`flagbench_core.evidence`): times in microseconds, memory in bytes."""

    version: PositiveCount
    block: PositiveCount
    """Steps per block; the last block of a span may be shorter. The number of a block is the sum of its steps."""
    ranks: PositiveCount
    spans: tuple[Span, ...]
    """All steps that every rank finished, without gaps."""
    roofs: tuple[Span, ...] = ()
    """What was measured before the steps, if asked, each with the operation in `measured`."""
    timing: dict[str, Count] = {}
    """Phases of rank 0."""
    durations: dict[str, tuple[Count, ...] | Packed] = {}
    """Of training without checkpoints, and of each pass, by rank."""
    memory: dict[str, tuple[Count | None, ...] | Packed] = {}
    """peak and allocator_peak by rank."""
    ceilings: tuple[Amount, ...] | Packed = ()
    """FLOP/s of the matrix product measured on each rank."""
    loss_tail: tuple[Number | None, ...] = ()
    """The last 50 losses, where `quality.losses` does not reach them."""
