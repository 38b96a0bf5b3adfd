"""The record's `evidence`, from the steps and facts that the ranks left in the spool."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple, Sequence

from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.request import Request
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import Step, repeat
from flagbench_core.evidence import roofs
from flagbench_core.evidence.columns import (
    FLOPS,
    PASSES,
    in_blocks,
    losses_in_blocks,
    microseconds,
    nine_digits,
    whole,
)
from flagbench_core.evidence.metrics import LOSS_TAIL
from flagbench_core.evidence.section import TRAIN, WARMUP, WINDOW, Collectives, Section, Span, Stretch
from flagbench_core.stats.within import MIN_STEPS

# The longest published run, DistilBERT on one device, has 21,050 steps; with 11 bytes each, they are a quarter of the
# 1 MB that a record may have.
MAX_LOSSES = 24_000
MAX_RANK_STEPS = 16_000
"""A record with up to this number of steps over all ranks has each step; a longer one has blocks of steps."""
MAX_COLLECTIVES = 1_000
"""Blocks of all ranks in which the times of collectives are kept: no verdict depends on them."""
TIMED_PHASES = ("init", "train", "eval", "eval_initial", "checkpoint", "val", "infer", "measure", "e2e")

LAP_FIELDS = ("lap", "seconds", "rates", "other_bits", "health", "counters")
"""The fields of a lap in a record."""

_COLUMNS: dict[str, Callable[[Step], int]] = {
    "host": lambda step: microseconds(step.host),
    "device": lambda step: microseconds(step.device),
    "data_wait": lambda step: microseconds(step.data_wait),
    "to_device": lambda step: microseconds(step.to_device),
    "after": lambda step: microseconds(step.after),
    "samples": lambda step: whole(step.samples),
    "samples_published": lambda step: whole(step.published_samples),
    "tokens": lambda step: whole(step.tokens),
    "tokens_useful": lambda step: whole(step.tokens_useful),
}


class Border(NamedTuple):
    """Steps `first` to `end` are this part of a phase."""

    phase: str
    part: str
    first: int
    end: int
    measured: dict[str, Any] | None = None


class Pass(NamedTuple):
    """One pass over the data, or one measurement: its steps, and its duration on each rank that has finished it."""

    name: str
    first: int
    steps: int
    seconds: dict[int, float]
    measured: dict[str, Any] | None = None  # the operation of a measurement

    @property
    def end(self) -> int:
        """The end of its steps, exclusive."""
        return self.first + self.steps


def passes(evidence: Evidence) -> list[Pass]:
    """The passes that every rank has finished, in order."""
    by_name: dict[str, Pass] = {}
    for fact in evidence.all("pass"):
        name = fact["name"]
        if name not in by_name:
            by_name[name] = Pass(name, fact["first_step"], fact["steps"], {}, fact.get("measured"))
        by_name[name].seconds[fact["rank"]] = fact["seconds"]
    return [ended_pass for ended_pass in by_name.values() if len(ended_pass.seconds) == len(evidence.steps)]


def ended(evidence: Evidence, count: int) -> Pass | None:
    """The pass during which the run ended, up to the `count` steps that every rank has taken; None if in none."""
    finished = {finished_pass.name for finished_pass in passes(evidence)}
    for fact in evidence.all("pass_begun"):
        if fact["name"] not in finished:
            first = fact["first_step"]
            if count <= first:
                return None
            return Pass(fact["name"], first, count - first, {})
    return None


def complete_steps(ranks: dict[int, list[Step]], world: int) -> int:
    """Number of steps that every rank has finished, with device times."""
    if len(ranks) < world:
        return 0
    return min((_timed(steps) for steps in ranks.values()), default=0)


def _timed(steps: list[Step]) -> int:
    """The number of steps before the first one whose device time is not available."""
    for index, step in enumerate(steps):
        if math.isnan(step.device):
            return index
    return len(steps)


def curve_of(ranks: dict[int, list[Step]], count: int, layout: Layout) -> list[float]:
    """The loss of each step, averaged over replicas; NaN if not computed."""
    with_loss = [steps[:count] for rank, steps in ranks.items() if layout.has_loss(rank)]
    return [sum(step.loss for step in replicas) / len(replicas) for replicas in zip(*with_loss)]


def blocks_for(count: int, world: int) -> int:
    """The steps of a block, so that a record holds at most about MAX_RANK_STEPS blocks."""
    return max(1, -(-count * world // MAX_RANK_STEPS))


def must_be_packed(world: int) -> bool:
    """Whether a record with this number of ranks has room for only one block of each rank."""
    return 2 * world > MAX_RANK_STEPS


def collective_blocks(count: int, world: int, block: int) -> int:
    """The steps of a block of the times of collectives, of about MAX_COLLECTIVES blocks in all."""
    return max(block, -(-count * world // MAX_COLLECTIVES))


def section_of(request: Request, evidence: Evidence, count: int, block: int) -> Section:
    """The evidence of the first `count` steps of all ranks, in blocks of steps."""
    world = request.layout.world
    timing = evidence.first("timing")
    curve = curve_of(evidence.steps, count, request.layout)
    with_losses = ranks_with_losses(request.kind, request.layout)
    coarse = collective_blocks(count, world, block)
    tail: list[Any] = []
    if request.kind == TRAIN and len(curve) > MAX_LOSSES:
        tail = tail_of(curve)
    spans = []
    for border in borders(request, evidence, count):
        span = span_of(border, evidence.steps, block, with_losses, coarse)
        spans.append(with_micro_batches(span, evidence))
    return Section(
        world=world,
        block=block,
        spans=spans,
        timing={name: microseconds(timing[name]) for name in TIMED_PHASES if name in timing},
        durations=durations(request, evidence),
        memory=memory_of(evidence, world),
        ceilings=ceilings_of(evidence, world),
        loss_tail=tail,
        roofs=tuple(roofs_of(evidence, world, block)),
    )


def ceilings_of(evidence: Evidence, world: int) -> list[float]:
    """FLOP/s of the matrix product of each rank; empty unless every rank has measured it."""
    ceilings = [fact["flops"] for fact in evidence.all("ceiling")]
    if len(ceilings) != world or not all(map(math.isfinite, ceilings)):
        return []
    return ceilings


def with_micro_batches(span: Span, evidence: Evidence) -> Span:
    """The span with the micro-batches of the rank that is slowest on its device, if it is a short window."""
    if span.part != WINDOW or span.steps >= MIN_STEPS:
        return span
    rank = Stretch([span], 1).slowest(("device",))
    by_step = {fact["step"]: fact["seconds"] for fact in evidence.all("micro_batches") if fact["rank"] == rank}
    rows = [by_step.get(step, []) for step in range(span.first, span.end)]
    lengths = {len(row) for row in rows}
    if lengths == {0} or len(lengths) > 1:
        return span
    return span._replace(micro_batches=[list(map(microseconds, row)) for row in rows])


def roofs_of(evidence: Evidence, world: int, block: int) -> list[Span]:
    """What every rank measured before the steps; as spans of their own, which count from 0."""
    spans: list[Span] = []
    first = 0
    for name in dict.fromkeys(fact["name"] for fact in evidence.all("roof")):
        facts = {fact["rank"]: fact for fact in evidence.all("roof") if fact["name"] == name}
        if len(facts) != world:
            continue
        steps = {}
        for rank, fact in facts.items():
            steps[rank] = [repeat(fact["operations"], *times) for times in fact["times"]]
        # Each rank's steps begin where those of the other measurements end.
        border = Border(name, WINDOW, 0, len(steps[0]), facts[0]["measured"])
        spans.append(span_of(border, steps, block)._replace(first=first))
        first = spans[-1].end
    return spans


def borders(request: Request, evidence: Evidence, count: int) -> list[Border]:
    """How the steps divide into phases and parts; parts without a step are left out."""
    warmup = (request.config or {})[request.kind]["warmup_steps"]
    parts = []
    for phase in _phases(request, evidence, count):
        end = min(phase.end, count)
        middle = min(phase.first + warmup, end)
        parts.append(Border(phase.name, WARMUP, phase.first, middle))
        parts.append(Border(phase.name, WINDOW, middle, end, phase.measured))
    return [border for border in parts if border.first < border.end]


def _phases(request: Request, evidence: Evidence, count: int) -> list[Pass]:
    """Training as one pass, or the passes that every rank has finished and the one during which the run ended."""
    if request.kind == TRAIN:
        return [Pass(TRAIN, 0, count, {})]
    phases = passes(evidence)
    last = ended(evidence, count)
    if last is not None:
        phases.append(last)
    return phases


def span_of(
    border: Border, ranks: dict[int, list[Step]], block: int, with_losses: Sequence[int] = (), coarse: int = 1
) -> Span:
    """The span of evidence between two borders.

    `with_losses`: the ranks whose losses it has. `coarse`: the steps of a block of the times of collectives.
    """
    by_rank = [ranks[rank][border.first : border.end] for rank in sorted(ranks)]
    columns = {}
    for name, read in _COLUMNS.items():
        columns[name] = [in_blocks(list(map(read, steps)), block) for steps in by_rank]
    flops = {name: [_flops_of(name, steps) for steps in by_rank] for name in FLOPS}
    return Span(
        border.phase,
        border.part,
        border.first,
        border.end - border.first,
        columns,
        flops,
        _losses(by_rank, block, with_losses),
        _collectives(by_rank, coarse),
        _passes(by_rank),
        border.measured,
    )


def _flops_of(name: str, steps: list[Step]) -> int:
    """The FLOPs of all steps: `executed`, `useful` or `recomputed`."""
    return sum(whole(getattr(step, "flops_" + name)) for step in steps)


def _collectives(by_rank: list[list[Step]], block: int) -> Collectives | None:
    """The times of collectives, None unless they were measured in every step of every rank."""
    first, wait = [], []
    for steps in by_rank:
        until_first = [step.first_collective for step in steps]
        waits = [step.collective_wait for step in steps]
        if not all(map(math.isfinite, until_first + waits)):
            return None
        first.append(in_blocks(list(map(microseconds, until_first)), block))
        wait.append(in_blocks(list(map(microseconds, waits)), block))
    return Collectives(block, first, wait)


def _passes(by_rank: list[list[Step]]) -> dict[str, list[int]]:
    """The times of the passes of a pipeline by rank, empty unless they were measured in every step of every rank."""
    columns = {}
    for name in PASSES:
        seconds = [math.fsum(getattr(step, name) for step in steps) for steps in by_rank]
        if not all(map(math.isfinite, seconds)):
            return {}
        columns[name] = list(map(microseconds, seconds))
    return columns


def ranks_with_losses(kind: str, layout: Layout) -> list[int]:
    """The ranks whose losses are evidence. None where the loss of one rank is the job's: `quality.losses` has it."""
    having = [rank for rank in range(layout.world) if layout.has_loss(rank)]
    if kind == TRAIN and len(having) == 1:
        return []
    return having


def _losses(by_rank: list[list[Step]], block: int, with_losses: Sequence[int]) -> list[Any]:
    """The losses of those ranks, and None for each of the others; nothing if no loss is finite."""
    having = set(with_losses)
    columns: list[Any] = []
    has_finite = False
    for rank, steps in enumerate(by_rank):
        if rank not in having:
            columns.append(None)
            continue
        losses_of_rank = losses_in_blocks([step.loss for step in steps], block)
        columns.append(losses_of_rank)
        if any(loss is not None for loss in losses_of_rank):
            has_finite = True
    if not has_finite:
        return []
    return columns


def durations(request: Request, evidence: Evidence) -> dict[str, list[int]]:
    """The duration of each phase that every rank has finished, by rank; of training without checkpoints."""
    if request.kind == TRAIN:
        seconds = {fact["rank"]: fact["train"] for fact in evidence.all("timing")}
        if len(seconds) < request.layout.world:
            return {}
        return {TRAIN: _by_rank(seconds)}
    return {phase.name: _by_rank(phase.seconds) for phase in passes(evidence)}


def _by_rank(seconds: dict[int, float]) -> list[int]:
    """Microseconds in the order of ranks."""
    return [microseconds(seconds[rank]) for rank in sorted(seconds)]


def memory_of(evidence: Evidence, world: int) -> dict[str, list[Any]]:
    """Peaks of memory by rank, bytes; None for a rank without one. Empty if no rank has one."""
    columns: dict[str, list[Any]] = {}
    for name in ("peak", "allocator_peak"):
        peaks = {fact["rank"]: fact.get(name) or None for fact in evidence.all("memory")}
        by_rank = [peaks.get(rank) for rank in range(world)]
        if any(by_rank):
            columns[name] = by_rank
    return columns


def results(evidence: Evidence) -> list[dict[str, Any]]:
    """The record's `results`: of fixed operations, compared bit by bit within and between devices."""
    models = {fact["rank"]: (fact["device"]["name"], fact["driver"]) for fact in evidence.all("rank")}
    facts = {fact["rank"]: dict(fact, alike=models.get(fact["rank"])) for fact in evidence.all("results")}
    return roofs.compare_results(facts)


def laps(evidence: Evidence) -> list[dict[str, Any]]:
    """The record's `laps`: those that a soak finished. Rank 0 wrote them for all ranks."""
    return [{name: fact[name] for name in LAP_FIELDS} for fact in evidence.all("lap")]


def losses(curve: list[float], first_step: int) -> dict[str, Any]:
    """The record's `quality.losses`: the loss of each of the first MAX_LOSSES steps.

    `first_step`: the number of the first step in the published run, from 0; later if the run was resumed.
    """
    return {
        "first_step": first_step,
        "steps": len(curve),
        "values": [nine_digits(loss) for loss in curve[:MAX_LOSSES]],
    }


def tail_of(curve: list[float]) -> list[Any]:
    """The last losses of a run, as the record has them."""
    return [nine_digits(loss) for loss in curve[-LOSS_TAIL:]]
