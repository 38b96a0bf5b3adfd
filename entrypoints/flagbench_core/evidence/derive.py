"""Computes the parts of a record that describe its steps: metrics, window, work, FLOPs, timing, medians of ranks.

p_core, the metric that names the measured window below, is the samples per second of the steps after the warm-up.

An image writes the result of `derive` into its record; `flagbench verify` derives it again from the record's evidence
and compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flagbench_core.case_kinds import INFER, TRAIN
from flagbench_core.evidence import pipeline, roofs
from flagbench_core.evidence.columns import FLOPS, MICRO, block_sizes
from flagbench_core.evidence.document import WARMUP, WINDOW, RecordEvidence, StepRange
from flagbench_core.evidence.metrics import DEVICE, OWN, Facts, Window, compute_metrics, window_of
from flagbench_core.evidence.slow_devices import find_slow_devices
from flagbench_core.stats import summary

STEP_POINTS = 2000
"""The most step times that a record lists; a longer window is thinned to this many."""
CURVE_POINTS = 200
"""The most points of the loss curve that a record lists; a longer curve is thinned to this many."""
STEADY = 0.02
"""The largest drift of a steady window: the relative difference of the medians of its halves."""


class Derived(NamedTuple):
    """The parts of a record that follow from its evidence, each in the form in which the record has it."""

    metrics: list[dict[str, Any]]
    window: dict[str, Any] | None
    """The steps that p_core is computed from; None if the run ended in its warm-up."""
    work: dict[str, Any]
    timing: dict[str, float]
    """Rank 0's seconds in each phase."""
    flops: dict[str, Any] | None
    """The executed, recomputed and useful FLOPs of the window, and measured_ceiling; None if they are not counted."""
    ranks: list[dict[str, float]]
    """Medians and sums of each rank's step times, and its pipeline bubble."""
    pipeline: dict[str, Any]
    """The bubbles of the job and of its stages; empty if they were not measured."""
    measurements: list[dict[str, Any]]
    """The roofs: measurements without a model, by the case `roofs` or before the steps of a model."""
    slow_devices: list[dict[str, Any]]
    """The devices that are slow in all measurements together."""


def derive(evidence: RecordEvidence, facts: Facts) -> Derived:
    """Everything that follows from the evidence of a run of at least one step."""
    measured_window = window_of(evidence.step_range(facts.kind, WINDOW))
    everything = evidence.step_range()
    ranks = [describe_rank(everything, rank) for rank in range(evidence.world)]
    bubbles = pipeline.measure_bubbles(evidence.step_range(TRAIN, WINDOW), evidence.world, facts.stages)
    for rank, bubble in enumerate(bubbles):
        ranks[rank]["bubble"] = bubble
    measured = roofs.measured_operations(evidence)
    work_steps = everything
    if facts.kind == INFER and evidence.step_range(INFER).steps:  # the validation before an inference is not its work
        work_steps = evidence.step_range(INFER)
    window: dict[str, Any] | None = None
    flops: dict[str, Any] | None = None
    if measured_window is not None:
        window = describe_window(measured_window)
    if measured_window is not None and facts.counted:
        flops = {name: measured_window.step_range.flops(name) for name in FLOPS}
        flops["measured_ceiling"] = min(evidence.ceilings, default=None)
    return Derived(
        metrics=compute_metrics(evidence, facts),
        window=window,
        work=describe_work(work_steps, facts.unit),
        timing=describe_timing(evidence),
        flops=flops,
        ranks=ranks,
        pipeline=pipeline.summarise(bubbles, facts.stages),
        measurements=[operation.to_json() for operation in measured],
        slow_devices=find_slow_devices([operation.devices for operation in measured]),
    )


def describe_window(window: Window) -> dict[str, Any]:
    """The record's `window`: the steps that p_core is computed from.

    The times of single steps are not known if the evidence has longer blocks. Each block then counts as one step with
    the mean time of its steps.
    """
    step_range = window.step_range
    step_seconds = mean_step_seconds(window.micro, step_range.sizes)
    change = summary.drift(step_seconds)
    is_steady: bool | None = None
    if change is not None:
        is_steady = abs(change) <= STEADY
    return {
        "first_step": step_range.first,
        "rank": window.rank,
        "steps": step_range.steps,
        "samples": step_range.total("samples"),
        "seconds": window.seconds,
        "host_seconds": step_range.rank_time(OWN, step_range.slowest(OWN)) / MICRO,
        "step_seconds": summary.thin(step_seconds, STEP_POINTS),
        "step_median": summary.median(step_seconds),
        "step_p5_p95": [summary.quantile(step_seconds, 0.05), summary.quantile(step_seconds, 0.95)],
        "drift": change,
        "steady": is_steady,
    }


def mean_step_seconds(micro: Sequence[int], sizes: Sequence[int]) -> list[float]:
    """The mean seconds of a step in each block, rounded to nanoseconds.

    Args:
        micro: the time of each block, microseconds.
        sizes: the number of steps of each block.
    """
    return [round(time / size / MICRO, 9) for time, size in zip(micro, sizes)]


def describe_work(step_range: StepRange, unit: str) -> dict[str, Any]:
    """The record's `work`: that of all ranks in a range of steps. `unit`: the case's name for a sample."""
    return {
        "unit": unit,
        "steps": step_range.steps,
        "samples_executed": step_range.total("samples"),
        "samples_published_count": step_range.total("samples_published"),
        "tokens_executed": step_range.total("tokens"),
        "tokens_useful": step_range.total("tokens_useful"),
    }


def describe_timing(evidence: RecordEvidence) -> dict[str, float]:
    """The record's `timing`: rank 0's seconds in each phase, and those of the parts of its steps."""
    seconds = {name: micro / MICRO for name, micro in evidence.timing.items()}
    everything = evidence.step_range()
    if any(span.phase == TRAIN for span in evidence.spans):
        seconds["warmup"] = evidence.step_range(TRAIN, WARMUP).rank_time(OWN, 0) / MICRO
    seconds["data_wait"] = everything.rank_time(("data_wait",), 0) / MICRO
    seconds["step"] = everything.rank_time(DEVICE, 0) / MICRO
    return seconds


def describe_rank(step_range: StepRange, rank: int) -> dict[str, float]:
    """One entry of the record's `ranks`: medians and sums of the step times of a rank, seconds."""
    return {
        "step_median": summary.median(mean_step_seconds(step_range.time(DEVICE, rank), step_range.sizes)),
        "data_wait_total": step_range.rank_time(("data_wait",), rank) / MICRO,
        **_collective_medians(step_range, rank),
    }


def _collective_medians(step_range: StepRange, rank: int) -> dict[str, float]:
    """Medians of the times of a rank's collectives, seconds; empty if they were not measured."""
    sizes: list[int] = []
    first: list[int] = []
    wait: list[int] = []
    for span in step_range.spans:
        if span.collectives is None:  # collectives are measured in every step or in none
            return {}
        sizes += block_sizes(span.steps, span.collectives.block)
        first += span.collectives.first[rank]
        wait += span.collectives.wait[rank]
    return {
        "first_collective_median": summary.median(mean_step_seconds(first, sizes)),
        "collective_wait_median": summary.median(mean_step_seconds(wait, sizes)),
    }
