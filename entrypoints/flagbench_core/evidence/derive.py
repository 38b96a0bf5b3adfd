"""What a record says of its steps: metrics, window, work, FLOPs, timing and medians of ranks."""

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
    found = roofs.measurements(section)
    measured = section.stretch(INFER) if facts.kind == INFER else everything
    flops = None
    if steady and facts.counted:
        flops = {**{name: steady.stretch.flops(name) for name in FLOPS}, "measured_ceiling": run.ceiling}
    return Derived(
        metrics=metrics(run),
        window=window(steady) if steady else None,
        work=work(measured if measured.steps else everything, facts.unit),
        timing=timing(section),
        flops=flops,
        ranks=ranks,
        pipeline=pipeline.facts(bubbles, facts.stages),
        measurements=[roofs.listed(each) for each in found],
        slow_devices=slow_overall(found),
    )


def window(steady: Window) -> dict[str, Any]:
    """The record's `window`: the steps that p_core is computed from. Of blocks, the mean of each block's steps."""
    stretch = steady.stretch
    each = per_step(steady.micro, stretch.sizes)
    change = summary.drift(each)
    return {
        "first_step": stretch.first,
        "rank": steady.rank,
        "steps": stretch.steps,
        "samples": stretch.total("samples"),
        "seconds": steady.seconds,
        "host_seconds": stretch.rank_time(OWN, stretch.slowest(OWN)) / MICRO,
        "step_seconds": summary.thin(each, STEP_POINTS),
        "step_median": summary.median(each),
        "step_p5_p95": [summary.quantile(each, share) for share in (0.05, 0.95)],
        "drift": change,
        "steady": None if change is None else abs(change) <= STEADY,
    }


def per_step(micro: Sequence[int], sizes: Sequence[int]) -> list[float]:
    """The seconds of a step in each block, to the nanosecond."""
    return [round(value / size / MICRO, 9) for value, size in zip(micro, sizes)]


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
    found = {name: micro / MICRO for name, micro in section.timing.items()}
    everything, warmup = section.stretch(), section.stretch(TRAIN, WARMUP)
    if any(span.phase == TRAIN for span in section.spans):
        found["warmup"] = warmup.rank_time(OWN, 0) / MICRO
    found["data_wait"] = everything.rank_time(("data_wait",), 0) / MICRO
    found["step"] = everything.rank_time(DEVICE, 0) / MICRO
    return found


def of_rank(stretch: Stretch, rank: int) -> dict[str, float]:
    """What the record's entry of a rank says of its steps, seconds."""
    found = {
        "step_median": summary.median(per_step(stretch.time(DEVICE, rank), stretch.sizes)),
        "data_wait_total": stretch.rank_time(("data_wait",), rank) / MICRO,
    }
    measured = [(span.steps, span.collectives) for span in stretch.spans if span.collectives is not None]
    if len(measured) == len(stretch.spans):
        sizes = [size for steps, one in measured for size in block_sizes(steps, one.block)]
        for name, columns in (
            ("first_collective_median", [one.first[rank] for _, one in measured]),
            ("collective_wait_median", [one.wait[rank] for _, one in measured]),
        ):
            found[name] = summary.median(per_step([value for column in columns for value in column], sizes))
    return found
