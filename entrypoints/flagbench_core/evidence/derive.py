"""What a record says of its steps: metrics, window, work, FLOPs, timing and medians of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flagbench_core.evidence import pipeline, stats
from flagbench_core.evidence.columns import FLOPS, MICRO, block_sizes
from flagbench_core.evidence.metrics import (
    DEVICE,
    HOST,
    OWN,
    PUBLISHED,
    PUBLISHER,
    Window,
    entire,
    evaluated,
    final_loss,
    memory,
    metric,
    published_utilisation,
    rate,
    utilisation,
    window_of,
)
from flagbench_core.evidence.section import WARMUP, WINDOW, Section, Stretch

TRAIN, INFER = "train", "infer"
"""Kinds of cases, and the phases that the window is of."""
STEP_POINTS = 2000
CURVE_POINTS = 200
"""Points of the thinned loss curve."""
STEADY = 0.02
"""The largest drift of a steady window."""


class Facts(NamedTuple):
    """What the numbers of a record depend on besides its evidence: configuration, manifests, how the run went."""

    kind: str  # TRAIN or INFER
    unit: str  # samples or tokens
    replicas: int  # data-parallel replicas: the publisher multiplies one rank's work by them
    complete: bool  # the published run, from its first step to its end
    precision: str
    published: Mapping[str, Any] | None  # the publisher's formula of utilisation; None if it does not apply
    peak: float | None  # of a device, FLOP/s
    device_kind: str
    evaluations: Sequence[Mapping[str, Any]]
    losses: Sequence[float | None]  # the last losses of the job, at most LOSS_TAIL; empty if a case has none
    stages: int = 1  # of the pipeline
    counted: bool = True  # whether the case has a formula of FLOPs


class Derived(NamedTuple):
    """The parts of a record that follow from its evidence, as they stand there."""

    metrics: list[dict[str, Any]]
    window: dict[str, Any] | None
    work: dict[str, Any]
    timing: dict[str, float]
    flops: dict[str, Any] | None  # executed, recomputed, useful and measured_ceiling
    ranks: list[dict[str, float]]
    pipeline: dict[str, Any]  # bubbles of the job and of its stages; empty if not measured


def derive(section: Section, facts: Facts) -> Derived:
    """Everything that follows from the evidence of a run of at least one step."""
    steady = window_of(section.stretch(facts.kind, WINDOW))
    found = _infer_rates(section, facts) if facts.kind == INFER else _train_rates(section, facts, steady)
    metrics = [entry for entry in found if entry is not None]
    ceiling = min(section.ceilings, default=None)
    if steady and facts.counted:
        metrics += utilisation(steady, section.world, facts.peak, ceiling)
        metrics += published_utilisation(metrics, facts.published, section.world, facts.precision)
    if facts.complete and "e2e" in section.timing:
        metrics.append(metric("e2e_time", section.timing["e2e"] / MICRO, "s", n=1, note="excluding imports"))
    metrics += memory(section.memory, facts.device_kind)
    metrics += evaluated(facts.evaluations)
    if facts.kind == TRAIN:
        metrics += final_loss(facts.losses)
    everything = section.stretch()
    ranks = [of_rank(everything, rank) for rank in range(section.world)]
    bubbles = pipeline.bubbles(section.stretch(TRAIN, WINDOW), section.world, facts.stages)
    for rank, bubble in enumerate(bubbles):
        ranks[rank]["bubble"] = bubble
    measured = section.stretch(INFER) if facts.kind == INFER else everything
    return Derived(
        metrics=[entry for entry in metrics if math.isfinite(entry["value"])],
        window=window(steady) if steady else None,
        work=work(measured if measured.steps else everything, facts.unit),
        timing=timing(section),
        flops={**{name: steady.stretch.flops(name) for name in FLOPS}, "measured_ceiling": ceiling}
        if steady and facts.counted
        else None,
        ranks=ranks,
        pipeline=pipeline.facts(bubbles, facts.stages),
    )


def _train_rates(section: Section, facts: Facts, steady: Window | None) -> list[dict[str, Any] | None]:
    """p_core, p_train and their published counterparts, in the case's unit; per device too if the unit is tokens."""
    if steady is None:
        return []
    unit, world = facts.unit, section.world
    trained = section.durations.get(TRAIN) if facts.complete else None
    stretch = section.stretch() if trained else steady.stretch
    span = "all steps" if trained else "the window"
    n, amounts = stretch.steps, stretch.amount(unit)
    published = [value * facts.replicas for value in stretch.column(published_column(unit), 0)]
    rank = stretch.slowest(OWN)
    own, theirs = stretch.time(OWN, rank), stretch.time(PUBLISHED, 0)
    train = f"time of rank {rank}, the slowest rank, without evaluations and checkpoints; over {span}"
    host = f"{PUBLISHER}rank 0's host clock, batches counted as full: step, over {span}"
    wait = f"{PUBLISHER}rank 0's host clock, batches counted as full: data wait, copy to device and step, over {span}"
    found = [
        rate("p_core", unit, steady.stretch.amount(unit), steady.micro, steady.stretch.steps, _core(steady)),
        rate("p_core_host", unit, published, stretch.time(HOST, 0), n, host),
        rate("p_train", unit, amounts, own, n, train),
    ]
    if unit == "tokens":
        for name, tokens, micro, note in (
            ("tokens_per_second_per_device", amounts, own, train),
            ("tokens_per_second_per_device_host", published, theirs, wait),
        ):
            each = rate(
                name, unit, [value / world for value in tokens], micro, n, f"{note}; per device, {world} devices"
            )
            found.append(each and dict(each, scope="device"))
    else:
        found.append(rate("p_train_published_count", unit, published, theirs, n, wait))
    if trained:
        note = "training including evaluations, by the slowest rank"
        found.append(entire("p_whole", unit, sum(amounts), max(trained), note))
        if unit != "tokens":
            note = PUBLISHER + "rank 0's host clock, batches counted as full: training including evaluations"
            found.append(entire("p_whole_published_count", unit, sum(published), trained[0], note))
    return found


def _infer_rates(section: Section, facts: Facts) -> list[dict[str, Any] | None]:
    """p_infer_core and p_infer_core_host, p_infer_whole of a complete run; p_val_* of the pass before."""
    unit, found = facts.unit, []
    for phase in dict.fromkeys(span.phase for span in section.spans):
        steady = window_of(section.stretch(phase, WINDOW))
        if steady is None:
            continue
        stretch, n, note = steady.stretch, steady.stretch.steps, _core(steady)
        amounts, useful = stretch.amount(unit), stretch.amount("tokens_useful")
        published = [value * facts.replicas for value in stretch.column(published_column(unit), 0)]
        host = PUBLISHER + "rank 0's host clock, batches counted as full: step; excluding warm-up"
        found.append(rate(f"p_{phase}_core", unit, amounts, steady.micro, n, note))
        found.append(rate(f"p_{phase}_core_host", unit, published, stretch.time(HOST, 0), n, host))
        if unit == "tokens" and useful != amounts:
            note += "; padding is not counted"
            found.append(rate(f"p_{phase}_core_useful", unit, useful, steady.micro, n, note))
        if facts.complete and phase in section.durations:
            total, longest = section.stretch(phase).total(unit), max(section.durations[phase])
            note = "the whole pass including loading, by the slowest rank"
            found.append(entire(f"p_{phase}_whole", unit, total, longest, note))
    return found


def published_column(unit: str) -> str:
    """The column that the publisher counts: every batch of samples may be counted as full."""
    return "tokens" if unit == "tokens" else "samples_published"


def _core(steady: Window) -> str:
    return f"device time of the steps of rank {steady.rank}, the slowest rank; excluding warm-up"


def window(steady: Window) -> dict[str, Any]:
    """The record's `window`: the steps that p_core is computed from. Of blocks, the mean of each block's steps."""
    stretch = steady.stretch
    each = per_step(steady.micro, stretch.sizes)
    change = stats.drift(each)
    return {
        "first_step": stretch.first,
        "rank": steady.rank,
        "steps": stretch.steps,
        "samples": stretch.total("samples"),
        "seconds": steady.seconds,
        "host_seconds": stretch.rank_time(OWN, stretch.slowest(OWN)) / MICRO,
        "step_seconds": stats.thin(each, STEP_POINTS),
        "step_median": stats.median(each),
        "step_p5_p95": [stats.quantile(each, share) for share in (0.05, 0.95)],
        "drift": change,
        "steady": None if change is None else abs(change) <= STEADY,
    }


def per_step(micro: Sequence[int], sizes: Sequence[int]) -> list[float]:
    """The seconds of a step in each block, to the nanosecond."""
    return [round(value / size / MICRO, 9) for value, size in map(_pair, micro, sizes)]


def _pair(value: int, size: int) -> tuple[int, int]:
    return value, size


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
        "step_median": stats.median(per_step(stretch.time(DEVICE, rank), stretch.sizes)),
        "data_wait_total": stretch.rank_time(("data_wait",), rank) / MICRO,
    }
    measured = [(span.steps, span.collectives) for span in stretch.spans if span.collectives is not None]
    if len(measured) == len(stretch.spans):
        sizes = [size for steps, one in measured for size in block_sizes(steps, one.block)]
        for name, columns in (
            ("first_collective_median", [one.first[rank] for _, one in measured]),
            ("collective_wait_median", [one.wait[rank] for _, one in measured]),
        ):
            found[name] = stats.median(per_step([value for column in columns for value in column], sizes))
    return found
