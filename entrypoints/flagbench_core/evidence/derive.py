"""The parts of a record that describe its steps: metrics, window, work, FLOPs, timing and medians of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flagbench_core.evidence import pipeline, roofs
from flagbench_core.evidence.columns import FLOPS, MICRO, block_sizes
from flagbench_core.evidence.metrics import DEVICE, OWN, Facts, Run, Window, metrics, window_of
from flagbench_core.evidence.section import INFER, TRAIN, WARMUP, WINDOW, Section, Stretch
from flagbench_core.evidence.slow_devices import slow_overall
from flagbench_core.stats import summary

STEP_POINTS = 2000
CURVE_POINTS = 200
"""Points of the thinned loss curve."""
STEADY = 0.02
"""The largest drift of a steady window."""


class Derived(NamedTuple):
    """The parts of a record that follow from its evidence, as they stand there."""

    metrics: list[dict[str, Any]]
    window: dict[str, Any] | None
    work: dict[str, Any]
    timing: dict[str, float]
    flops: dict[str, Any] | None  # executed, recomputed, useful and measured_ceiling
    ranks: list[dict[str, float]]
    pipeline: dict[str, Any]  # bubbles of the job and of its stages; empty if not measured
    measurements: list[dict[str, Any]]  # of a case that measures, or before the steps
    slow_devices: list[dict[str, Any]]  # in all of them together


def derive(section: Section, facts: Facts) -> Derived:
    """Everything that follows from the evidence of a run of at least one step."""
    steady = window_of(section.stretch(facts.kind, WINDOW))
    run = Run(section, facts, steady, [])
    everything = section.stretch()
    ranks = [of_rank(everything, rank) for rank in range(section.world)]
    bubbles = pipeline.bubbles(section.stretch(TRAIN, WINDOW), section.world, facts.stages)
    for rank, bubble in enumerate(bubbles):
        ranks[rank]["bubble"] = bubble
    measurements = roofs.measurements(section)
    worked = everything
    if facts.kind == INFER and section.stretch(INFER).steps:  # without the validation before it
        worked = section.stretch(INFER)
    flops: dict[str, Any] | None = None
    if steady is not None and facts.counted:
        flops = {name: steady.stretch.flops(name) for name in FLOPS}
        flops["measured_ceiling"] = run.ceiling
    return Derived(
        metrics=metrics(run),
        window=None if steady is None else window(steady),
        work=work(worked, facts.unit),
        timing=timing(section),
        flops=flops,
        ranks=ranks,
        pipeline=pipeline.facts(bubbles, facts.stages),
        measurements=[roofs.listed(measurement) for measurement in measurements],
        slow_devices=slow_overall(measurements),
    )


def window(steady: Window) -> dict[str, Any]:
    """The record's `window`: the steps that p_core is computed from. Of blocks, the mean of each block's steps."""
    stretch = steady.stretch
    step_seconds = per_step(steady.micro, stretch.sizes)
    change = summary.drift(step_seconds)
    return {
        "first_step": stretch.first,
        "rank": steady.rank,
        "steps": stretch.steps,
        "samples": stretch.total("samples"),
        "seconds": steady.seconds,
        "host_seconds": stretch.rank_time(OWN, stretch.slowest(OWN)) / MICRO,
        "step_seconds": summary.thin(step_seconds, STEP_POINTS),
        "step_median": summary.median(step_seconds),
        "step_p5_p95": [summary.quantile(step_seconds, 0.05), summary.quantile(step_seconds, 0.95)],
        "drift": change,
        "steady": None if change is None else abs(change) <= STEADY,
    }


def per_step(micro: Sequence[int], sizes: Sequence[int]) -> list[float]:
    """The seconds of a step in each block, to the nanosecond."""
    return [round(time / size / MICRO, 9) for time, size in zip(micro, sizes)]


def work(stretch: Stretch, unit: str) -> dict[str, Any]:
    """The work of all ranks in the steps of a stretch."""
    return {
        "unit": unit,
        "steps": stretch.steps,
        "samples_executed": stretch.total("samples"),
        "samples_published_count": stretch.total("samples_published"),
        "tokens_executed": stretch.total("tokens"),
        "tokens_useful": stretch.total("tokens_useful"),
    }


def timing(section: Section) -> dict[str, float]:
    """Rank 0's seconds by phase."""
    seconds = {name: micro / MICRO for name, micro in section.timing.items()}
    everything = section.stretch()
    if any(span.phase == TRAIN for span in section.spans):
        seconds["warmup"] = section.stretch(TRAIN, WARMUP).rank_time(OWN, 0) / MICRO
    seconds["data_wait"] = everything.rank_time(("data_wait",), 0) / MICRO
    seconds["step"] = everything.rank_time(DEVICE, 0) / MICRO
    return seconds


def of_rank(stretch: Stretch, rank: int) -> dict[str, float]:
    """The record's medians and sums of a rank's steps, seconds."""
    seconds = {
        "step_median": summary.median(per_step(stretch.time(DEVICE, rank), stretch.sizes)),
        "data_wait_total": stretch.rank_time(("data_wait",), rank) / MICRO,
    }
    sizes: list[int] = []
    first: list[int] = []
    wait: list[int] = []
    for span in stretch.spans:
        if span.collectives is None:  # measured in every step, or not at all
            return seconds
        sizes += block_sizes(span.steps, span.collectives.block)
        first += span.collectives.first[rank]
        wait += span.collectives.wait[rank]
    seconds["first_collective_median"] = summary.median(per_step(first, sizes))
    seconds["collective_wait_median"] = summary.median(per_step(wait, sizes))
    return seconds
