"""The evidence in a record as typed data: the integers of each step and rank from which its numbers are computed.

An image measures the evidence and computes the metrics of the record from it; `flagbench verify` computes them again.
The classes here define the JSON of the record's field `evidence`, and their docstrings are the descriptions in its
JSON Schema. flagbench_core.evidence reads and writes the same JSON, and computes with it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from flagbench.records.scalars import Amount, Count, Number, PositiveCount


class RunLengths(Struct, frozen=True):
    """A column in which consecutive blocks have equal numbers, as run lengths."""

    runs: tuple[tuple[PositiveCount, Count], ...]
    """Pairs of a number of consecutive blocks and the number that each of these blocks has."""


class Packed(Struct, frozen=True):
    """A list with one number for each rank of a large job, packed into base64."""

    least: Count
    """The smallest number of the list, which is added to each packed number."""
    bytes: Annotated[int, Meta(ge=1, le=16)]
    """The size of each packed number in bytes."""
    data: str
    """The packed numbers in the order of ranks: unsigned, big-endian, in base64."""


Column = Count | tuple[Count, ...] | RunLengths
"""The column of one rank: one number for every step, a number per block, or runs of blocks with equal numbers."""


class Collectives(Struct, frozen=True):
    """The times that ranks spend before and in collective operations, as sums over blocks of steps.

    Each of the two times is one number that all ranks have in every step, a column for each rank, or a packed list.
    """

    block: PositiveCount
    """The number of steps in a block, which may be larger than in the other columns."""
    first: Count | tuple[Column, ...] | Packed
    """Microseconds from the start of a step to the rank's first collective."""
    wait: Count | tuple[Column, ...] | Packed
    """Microseconds that the rank waits for other ranks in collectives."""


class Span(Struct, frozen=True):
    """The evidence of consecutive steps of all ranks. Times are in microseconds.

    A column is one number that all ranks have in every step, a column for each rank, or a packed list.
    """

    phase: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
    """The phase of the run, `train`, `val` or `infer`; for a measurement without a model, its name."""
    part: Literal["warmup", "window"]
    """The part of the phase: `warmup`, or `window` for the steps that the speed metrics p_core, p_val_core and
    p_infer_core are computed from."""
    first_step: Count
    """The number of the first step, counted from 0 at the start of this run."""
    steps: PositiveCount
    """The number of steps in the span."""
    columns: dict[str, Count | tuple[Column, ...] | Packed]
    """The columns by name. Times in microseconds: `data_wait` waits for the batch, `to_device` copies it to the
    device, `host` is the step by the host's clock, `device` the step by the device's clock, `after` the time from the
    end of the step until the next one may begin. Amounts of work: `samples` in the batch, `samples_published` as the
    publisher counts them, `tokens` with padding, `tokens_useful` without padding."""
    flops: dict[str, Count | tuple[Count, ...] | Packed]
    """FLOPs summed over the span, by kind (`executed`, `useful`, `recomputed`): one number that all ranks have, or a
    number for each rank."""
    loss: tuple[tuple[Number | None, ...] | None, ...] = ()
    """The sum of the losses in each block, for each rank; null for a rank without losses. The list is empty in a
    large job, and in training if only one rank has losses, because `quality.losses` then contains them."""
    collectives: Collectives | None = None
    """The times in collectives; null unless they were measured in every step of every rank."""
    passes: dict[str, Count | tuple[Count, ...] | Packed] = {}
    """The times of a pipeline of stages, in microseconds summed over the span: `computing` is the time in forward and
    backward passes, `pipeline` the time from the start of the first pass of a step to the end of its last. Each is
    one number that all ranks have, or a number for each rank. Empty unless measured in every step of every rank."""
    micro_batches: tuple[tuple[Count, ...], ...] = ()
    """The device time of each micro-batch of each step, in microseconds, on the rank that is slowest on its device.
    Present only in a window of fewer than 100 steps, if measured."""
    measured: dict[str, Any] | None = None
    """The operation, with its sizes, if the steps are repeats of a measurement without a model. The column `samples`
    is then the number of operations in a repeat. Null for the steps of a model."""


class Evidence(Struct, frozen=True):
    """The integers from which the numbers of the record follow. Times are in microseconds, memory is in bytes."""

    version: PositiveCount
    """The version of this format."""
    block: PositiveCount
    """The number of steps in a block. The value of a block is the sum over its steps. The last block of a span may be
    shorter."""
    ranks: PositiveCount
    """The number of ranks."""
    spans: tuple[Span, ...]
    """The spans of all steps that every rank finished, in order and without gaps."""
    roofs: tuple[Span, ...] = ()
    """The measurements without a model that were requested before the steps, each with its operation in
    `measured`."""
    timing: dict[str, Count] = {}
    """The duration of each phase on rank 0, in microseconds."""
    durations: dict[str, tuple[Count, ...] | Packed] = {}
    """The duration of each finished phase on each rank, in microseconds. The phases are `train`, without the time in
    which checkpoints are written, or the passes of an inference, or the measurements."""
    memory: dict[str, tuple[Count | None, ...] | Packed] = {}
    """The peak memory of each rank in bytes: `peak` is the memory in use on its device (on a processor, the resident
    memory of the rank), `allocator_peak` the largest sum of live tensors. A rank that did not report it has null, or
    0 in a packed list."""
    ceilings: tuple[Amount, ...] | Packed = ()
    """The rate of the large matmul that each rank measured after its run, in FLOP/s."""
    loss_tail: tuple[Number | None, ...] = ()
    """The last 50 losses of a run that is too long for `quality.losses`, which then contains only the first ones."""
