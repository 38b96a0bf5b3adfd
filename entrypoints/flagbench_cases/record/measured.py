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
"""Up to so many steps of all ranks, a record has each of them; above, blocks of several."""
MAX_COLLECTIVES = 1_000
"""Blocks of all ranks in which the times of collectives are kept: no verdict depends on them."""
TIMED_PHASES = ("init", "train", "eval", "eval_initial", "checkpoint", "val", "infer", "measure", "e2e")

LAP_FIELDS = ("lap", "seconds", "rates", "other_bits", "health", "counters")
"""What a record says of a lap."""

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
    found: dict[str, Pass] = {}
    for fact in evidence.all("pass"):
        one = found.setdefault(
            fact["name"], Pass(fact["name"], fact["first_step"], fact["steps"], {}, fact.get("measured"))
        )
        one.seconds[fact["rank"]] = fact["seconds"]
    return [one for one in found.values() if len(one.seconds) == len(evidence.steps)]


def ended(evidence: Evidence, count: int) -> Pass | None:
    """The pass during which the run ended, up to the `count` steps that every rank has taken; None if in none."""
    finished = {one.name for one in passes(evidence)}
    begun = next((fact for fact in evidence.all("pass_begun") if fact["name"] not in finished), None)
    if begun is None or count <= begun["first_step"]:
        return None
    return Pass(begun["name"], begun["first_step"], count - begun["first_step"], {})


def complete_steps(ranks: dict[int, list[Step]], world: int) -> int:
    """Number of steps that every rank has finished, with device times."""
    if len(ranks) < world:
        return 0
    return min((_timed(steps) for steps in ranks.values()), default=0)


def _timed(steps: list[Step]) -> int:
    """The number of steps before the first one whose device time is not available."""
    return next((index for index, step in enumerate(steps) if math.isnan(step.device)), len(steps))


def curve_of(ranks: dict[int, list[Step]], count: int, layout: Layout) -> list[float]:
    """The loss of each step, averaged over replicas; NaN if not computed."""
    having = [steps[:count] for rank, steps in ranks.items() if layout.has_loss(rank)]
    return [sum(step.loss for step in row) / len(row) for row in zip(*having)]


def blocks_for(count: int, world: int) -> int:
    """The steps of a block, so that a record holds at most about MAX_RANK_STEPS blocks."""
    return max(1, -(-count * world // MAX_RANK_STEPS))


def must_be_packed(world: int) -> bool:
    """Whether so many ranks leave room for a single block of each, as when every block has all steps."""
    return 2 * world > MAX_RANK_STEPS


def collective_blocks(count: int, world: int, block: int) -> int:
    """The steps of a block of the times of collectives, of about MAX_COLLECTIVES blocks in all."""
    return max(block, -(-count * world // MAX_COLLECTIVES))


def section_of(request: Request, evidence: Evidence, count: int, block: int) -> Section:
    """The evidence of the first `count` steps of all ranks, in blocks of steps."""
    world = request.layout.world
    timing, ceilings = evidence.first("timing"), [fact["flops"] for fact in evidence.all("ceiling")]
    curve = curve_of(evidence.steps, count, request.layout)
    with_losses = ranks_with_losses(request.kind, request.layout)
    coarse = collective_blocks(count, world, block)
    tail = curve[-LOSS_TAIL:] if request.kind == TRAIN and len(curve) > MAX_LOSSES else []
    return Section(
        world=world,
        block=block,
        spans=[
            with_micro_batches(span_of(border, evidence.steps, block, with_losses, coarse), evidence)
            for border in borders(request, evidence, count)
        ],
        timing={name: microseconds(timing[name]) for name in TIMED_PHASES if name in timing},
        durations=durations(request, evidence),
        memory=memory_of(evidence, world),
        ceilings=ceilings if len(ceilings) == world and all(map(math.isfinite, ceilings)) else [],
        loss_tail=[nine_digits(loss) for loss in tail],
        roofs=tuple(roofs_of(evidence, world, block)),
    )


def with_micro_batches(span: Span, evidence: Evidence) -> Span:
    """The span with the micro-batches of the rank that is slowest on its device, if it is a short window."""
    if span.part != WINDOW or span.steps >= MIN_STEPS:
        return span
    rank = Stretch([span], 1).slowest(("device",))
    of_rank = {fact["step"]: fact["seconds"] for fact in evidence.all("micro_batches") if fact["rank"] == rank}
    found = [of_rank.get(step, []) for step in range(span.first, span.end)]
    if not found[0] or any(len(each) != len(found[0]) for each in found):
        return span
    return span._replace(micro_batches=[list(map(microseconds, each)) for each in found])


def roofs_of(evidence: Evidence, world: int, block: int) -> list[Span]:
    """What every rank measured before the steps; as spans of their own, which count from 0."""
    found: list[Span] = []
    for name in dict.fromkeys(fact["name"] for fact in evidence.all("roof")):
        facts = {fact["rank"]: fact for fact in evidence.all("roof") if fact["name"] == name}
        own = {rank: [repeat(fact["operations"], *each) for each in fact["times"]] for rank, fact in facts.items()}
        if len(own) == world:
            first = found[-1].end if found else 0
            # Each rank's steps begin where those of the other measurements end.
            border = Border(name, WINDOW, 0, len(own[0]), facts[0]["measured"])
            found.append(span_of(border, own, block)._replace(first=first))
    return found


def borders(request: Request, evidence: Evidence, count: int) -> list[Border]:
    """How the steps divide into phases and parts; parts without a step are left out."""
    section = (request.config or {})[request.kind]
    warmup, found = section["warmup_steps"], []
    if request.kind != TRAIN:
        last = ended(evidence, count)
        done = [*passes(evidence), *([last] if last else [])]
    else:
        done = [Pass(TRAIN, 0, count, {})]
    for one in done:
        end = min(one.end, count)
        middle = min(one.first + warmup, end)
        found += [Border(one.name, WARMUP, one.first, middle), Border(one.name, WINDOW, middle, end, one.measured)]
    return [border for border in found if border.first < border.end]


def span_of(
    border: Border, ranks: dict[int, list[Step]], block: int, with_losses: Sequence[int] = (), coarse: int = 1
) -> Span:
    """The span of evidence between two borders.

    `with_losses`: the ranks whose losses it has. `coarse`: the steps of a block of the times of collectives.
    """
    own = [ranks[rank][border.first : border.end] for rank in sorted(ranks)]
    columns = {
        name: [in_blocks([read(step) for step in steps], block) for steps in own] for name, read in _COLUMNS.items()
    }
    flops = {name: [sum(whole(getattr(step, "flops_" + name)) for step in steps) for steps in own] for name in FLOPS}
    return Span(
        border.phase,
        border.part,
        border.first,
        border.end - border.first,
        columns,
        flops,
        _losses(own, block, with_losses),
        _collectives(own, coarse),
        _passes(own),
        border.measured,
    )


def _collectives(own: list[list[Step]], block: int) -> Collectives | None:
    """The times of collectives, None unless they were measured in every step of every rank."""
    both = (
        [[step.first_collective for step in steps] for steps in own],
        [[step.collective_wait for step in steps] for steps in own],
    )
    if not all(math.isfinite(value) for ranks in both for of in ranks for value in of):
        return None
    first, wait = ([in_blocks([microseconds(value) for value in of], block) for of in ranks] for ranks in both)
    return Collectives(block, first, wait)


def _passes(own: list[list[Step]]) -> dict[str, list[int]]:
    """The times of the passes of a pipeline by rank, empty unless they were measured in every step of every rank."""
    found = {name: [math.fsum(getattr(step, name) for step in steps) for steps in own] for name in PASSES}
    if not all(math.isfinite(value) for of in found.values() for value in of):
        return {}
    return {name: list(map(microseconds, of)) for name, of in found.items()}


def ranks_with_losses(kind: str, layout: Layout) -> list[int]:
    """The ranks whose losses are evidence. None where the loss of one rank is the job's: `quality.losses` has it."""
    having = [rank for rank in range(layout.world) if layout.has_loss(rank)]
    return [] if kind == TRAIN and len(having) == 1 else having


def _losses(own: list[list[Step]], block: int, with_losses: Sequence[int]) -> list[Any]:
    """The losses of those ranks, and None for each of the others; nothing if no loss is finite."""
    having = set(with_losses)
    found = [
        losses_in_blocks([step.loss for step in steps], block) if rank in having else None
        for rank, steps in enumerate(own)
    ]
    return found if any(loss is not None for losses in found if losses for loss in losses) else []


def durations(request: Request, evidence: Evidence) -> dict[str, list[int]]:
    """The duration of each phase that every rank has finished, by rank; of training without checkpoints."""
    if request.kind != TRAIN:
        return {
            one.name: [microseconds(one.seconds[rank]) for rank in sorted(one.seconds)] for one in passes(evidence)
        }
    seconds = {fact["rank"]: fact["train"] for fact in evidence.all("timing")}
    if len(seconds) < request.layout.world:
        return {}
    return {TRAIN: [microseconds(seconds[rank]) for rank in sorted(seconds)]}


def memory_of(evidence: Evidence, world: int) -> dict[str, list[Any]]:
    """Peaks of memory by rank, bytes; None for a rank without one. Empty if no rank has one."""
    found: dict[str, list[Any]] = {}
    for name in ("peak", "allocator_peak"):
        peaks = {fact["rank"]: fact.get(name) or None for fact in evidence.all("memory")}
        by_rank = [peaks.get(rank) for rank in range(world)]
        if any(by_rank):
            found[name] = by_rank
    return found


def results(evidence: Evidence) -> list[dict[str, Any]]:
    """The record's `results`: of fixed operations, compared bit by bit within and between devices."""
    drivers = {fact["rank"]: (fact["device"]["name"], fact["driver"]) for fact in evidence.all("rank")}
    found = {fact["rank"]: dict(fact, alike=drivers.get(fact["rank"])) for fact in evidence.all("results")}
    return roofs.compare_results(found)


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
