"""Builds the record's `evidence` from the steps and facts that the ranks left in the spool.

It is a `RecordEvidence`: spans of steps with columns of integers by rank (microseconds, samples, tokens, FLOPs).
flagbench_core derives every metric from it, here and again in `flagbench verify`. Long runs are summed up in blocks
of steps, so that a record stays below 1 MB.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from flagbench_cases.record.evidence import Evidence
from flagbench_cases.record.request import Request
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import Step, repeat
from flagbench_core.case_kinds import INFER, TRAIN
from flagbench_core.evidence import roofs
from flagbench_core.evidence.columns import (
    FLOPS,
    PASSES,
    microseconds,
    round_loss,
    sum_blocks,
    sum_loss_blocks,
    to_integer,
)
from flagbench_core.evidence.document import WARMUP, WINDOW, Collectives, RecordEvidence, Span, StepRange
from flagbench_core.evidence.generation import Generation
from flagbench_core.evidence.metrics import LOSS_TAIL
from flagbench_core.stats.within import MIN_STEPS

MAX_LOSSES = 24_000
"""Most losses in a record.

The longest published run, DistilBERT on one device, has 21,050 steps; with 11 bytes each, they are a quarter of the
1 MB that a record may have.
"""
MAX_RANK_STEPS = 16_000
"""A record with up to this number of steps over all ranks has each step; a longer one has blocks of steps."""
MAX_COLLECTIVES = 1_000
"""Most blocks, over all ranks, with times of collectives. There are few, since no verdict depends on them."""
TIMED_PHASES = ("init", "train", "eval", "eval_initial", "checkpoint", "val", "infer", "measure", "e2e")
"""The phases whose duration is in the record's `timing`."""
LAP_FIELDS = ("lap", "seconds", "rates", "other_bits", "health", "counters")
"""The fields of a lap in a record."""

_COLUMNS: dict[str, Callable[[Step], int]] = {
    "host": lambda step: microseconds(step.host),
    "device": lambda step: microseconds(step.device),
    "data_wait": lambda step: microseconds(step.data_wait),
    "to_device": lambda step: microseconds(step.to_device),
    "after": lambda step: microseconds(step.after),
    "samples": lambda step: to_integer(step.samples),
    "samples_published": lambda step: to_integer(step.published_samples),
    "tokens": lambda step: to_integer(step.tokens),
    "tokens_useful": lambda step: to_integer(step.tokens_useful),
}
"""The columns of a span, each with the function that reads its value from a step."""


class Border(NamedTuple):
    """The steps of one part of a phase."""

    phase: str
    part: str
    """WARMUP, or WINDOW for the measured steps."""
    first: int
    end: int
    """The step after the last one."""
    measured: dict[str, Any] | None = None
    """The operation, if the phase is a measurement of one."""


class Pass(NamedTuple):
    """One pass over the data, or one measurement."""

    name: str
    first: int
    """The number of its first step."""
    steps: int
    seconds: dict[int, float]
    """Its duration on each rank that has finished it."""
    measured: dict[str, Any] | None = None
    """The operation, if it is a measurement of one."""

    @property
    def end(self) -> int:
        """The number of the step after its last one."""
        return self.first + self.steps


def find_finished_passes(evidence: Evidence) -> list[Pass]:
    """Return the passes that every rank has finished, in order."""
    passes: dict[str, Pass] = {}
    for fact in evidence.all("pass"):
        name = fact["name"]
        if name not in passes:
            passes[name] = Pass(name, fact["first_step"], fact["steps"], {}, fact.get("measured"))
        passes[name].seconds[fact["rank"]] = fact["seconds"]
    ranks = len(evidence.steps)
    return [begun_pass for begun_pass in passes.values() if len(begun_pass.seconds) == ranks]


def find_unfinished_pass(evidence: Evidence, count: int) -> Pass | None:
    """Return the pass during which the run ended, up to the `count` steps that every rank has taken.

    Returns None if no pass was begun, or if it has no step.
    """
    finished = {finished_pass.name for finished_pass in find_finished_passes(evidence)}
    for fact in evidence.all("pass_begun"):
        if fact["name"] not in finished:
            first = fact["first_step"]
            if count <= first:
                return None
            return Pass(fact["name"], first, count - first, {})
    return None


def count_complete_steps(ranks: dict[int, list[Step]], world: int) -> int:
    """Return the number of steps that every rank has finished, with device times."""
    if len(ranks) < world:
        return 0
    return min((_timed_steps(steps) for steps in ranks.values()), default=0)


def _timed_steps(steps: list[Step]) -> int:
    """Return the number of steps before the first one whose device time is not available."""
    for index, step in enumerate(steps):
        if math.isnan(step.device):
            return index
    return len(steps)


def average_losses(ranks: dict[int, list[Step]], count: int, layout: Layout) -> list[float]:
    """Return the loss of each of `count` steps, averaged over replicas; NaN if it was not computed."""
    with_loss = [steps[:count] for rank, steps in ranks.items() if layout.has_loss(rank)]
    curve = []
    for replicas in zip(*with_loss):  # the same step on each rank that has a loss
        curve.append(sum(step.loss for step in replicas) / len(replicas))
    return curve


def choose_block(count: int, world: int) -> int:
    """Return a number of steps for each block with which a record has at most about MAX_RANK_STEPS blocks."""
    return max(1, -(-count * world // MAX_RANK_STEPS))  # rounded up


def must_be_packed(world: int) -> bool:
    """Return whether a record with this number of ranks has room for only one block of each rank."""
    return 2 * world > MAX_RANK_STEPS


def choose_collective_block(count: int, world: int, block: int) -> int:
    """Return a number of steps for each block of collectives, with which there are about MAX_COLLECTIVES blocks."""
    return max(block, -(-count * world // MAX_COLLECTIVES))


def build_record_evidence(request: Request, evidence: Evidence, count: int, block: int) -> RecordEvidence:
    """Build the evidence of the first `count` steps of all ranks, in blocks of `block` steps."""
    world = request.layout.world
    timing = evidence.first("timing")
    curve = average_losses(evidence.steps, count, request.layout)
    with_losses = find_ranks_with_losses(request.kind, request.layout)
    collective_block = choose_collective_block(count, world, block)
    tail: list[Any] = []
    if request.kind == TRAIN and len(curve) > MAX_LOSSES:  # the end of training is not in quality.losses
        tail = round_last_losses(curve)
    spans = []
    for border in divide_steps(request, evidence, count):
        span = build_span(border, evidence.steps, block, with_losses, collective_block)
        spans.append(add_micro_batches(span, evidence, request.kind))
    return RecordEvidence(
        world=world,
        block=block,
        spans=spans,
        timing={name: microseconds(timing[name]) for name in TIMED_PHASES if name in timing},
        durations=collect_durations(request, evidence),
        memory=collect_memory_peaks(evidence, world),
        ceilings=collect_ceilings(evidence, world),
        loss_tail=tail,
        roofs=tuple(build_roofs(evidence, world, block)),
    )


def collect_ceilings(evidence: Evidence, world: int) -> list[float]:
    """Return the FLOP/s of the matmul that each rank measured after the run; empty unless every rank has one."""
    ceilings = [fact["flops"] for fact in evidence.all("ceiling")]
    if len(ceilings) != world or not all(map(math.isfinite, ceilings)):
        return []
    return ceilings


def explain_absent_iterations(
    evidence: Evidence, generation: Generation, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return the metrics of an engine's iterations that are not among `metrics`, each with the reason."""
    present = {metric["name"] for metric in metrics}
    absent = [name for name in ("ttft", "tpot", "decode_bandwidth") if name not in present]
    counts = [len(fact["seconds"]) for fact in evidence.all("micro_batches")]
    if not absent or not counts:
        return {}
    if {*counts} != {generation.output}:
        iterations = str(max(counts))
        if min(counts) < max(counts):
            iterations = f"{min(counts)} to {max(counts)}"
        reason = (
            f"a batch took {iterations} iterations for {generation.output} tokens: prompts were read in parts, or "
            "waited for max_num_batched_tokens, max_num_seqs or the cache"
        )
    elif generation.output == 1:
        reason = "only one token was generated for each prompt"
    else:
        reason = f"the window has more than {MAX_RANK_STEPS} iterations; use fewer --steps"
    return dict.fromkeys(absent, reason)


def add_micro_batches(span: Span, evidence: Evidence, kind: str) -> Span:
    """Return the span with the times of micro-batches, if it is a window that needs them.

    A training needs them for its interval, if its window has too few steps for one. An inference has metrics of them;
    it keeps at most MAX_RANK_STEPS. `kind` is the kind of case.

    The times are those of the rank that is slowest on its device. Unless all its steps have the same number of
    micro-batches, the span is returned unchanged.
    """
    if span.part != WINDOW or (kind != INFER and span.steps >= MIN_STEPS):
        return span
    slowest_rank = StepRange([span], 1).slowest(("device",))
    seconds_of: dict[int, list[float]] = {}
    for fact in evidence.all("micro_batches"):
        if fact["rank"] == slowest_rank:
            seconds_of[fact["step"]] = fact["seconds"]
    rows = [seconds_of.get(step, []) for step in range(span.first, span.end)]
    lengths = {len(row) for row in rows}
    if lengths == {0} or len(lengths) > 1:
        return span
    if kind == INFER and sum(map(len, rows)) > MAX_RANK_STEPS:
        return span
    return span._replace(micro_batches=[list(map(microseconds, row)) for row in rows])


def build_roofs(evidence: Evidence, world: int, block: int) -> list[Span]:
    """Return the roofs, rates of a device without a model, that every rank measured before its steps.

    Each roof is a span. Their steps are counted from 0, separately from those of the run.
    """
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
        spans.append(build_span(border, steps, block)._replace(first=first))
        first = spans[-1].end
    return spans


def divide_steps(request: Request, evidence: Evidence, count: int) -> list[Border]:
    """Divide the steps into phases, and each phase into warm-up and window. Empty parts are left out."""
    warmup = (request.config or {})[request.kind]["warmup_steps"]
    parts = []
    for phase in _phases(request, evidence, count):
        end = min(phase.end, count)
        middle = min(phase.first + warmup, end)
        parts.append(Border(phase.name, WARMUP, phase.first, middle))
        parts.append(Border(phase.name, WINDOW, middle, end, phase.measured))
    return [border for border in parts if border.first < border.end]


def _phases(request: Request, evidence: Evidence, count: int) -> list[Pass]:
    """Return training as one pass, or the passes that every rank has finished and the one in which the run ended."""
    if request.kind == TRAIN:
        return [Pass(TRAIN, 0, count, {})]
    phases = find_finished_passes(evidence)
    last = find_unfinished_pass(evidence, count)
    if last is not None:
        phases.append(last)
    return phases


def build_span(
    border: Border,
    ranks: dict[int, list[Step]],
    block: int,
    with_losses: Sequence[int] = (),
    collective_block: int = 1,
) -> Span:
    """Build the evidence of the steps within a border.

    `block`: the number of steps in a block; `collective_block`: the same for the times of collectives.
    `with_losses`: the ranks whose losses are included.
    """
    by_rank = [ranks[rank][border.first : border.end] for rank in sorted(ranks)]
    columns = {}
    for name, read in _COLUMNS.items():
        columns[name] = [sum_blocks(list(map(read, steps)), block) for steps in by_rank]
    flops = {name: [_flops_of(name, steps) for steps in by_rank] for name in FLOPS}
    return Span(
        border.phase,
        border.part,
        border.first,
        border.end - border.first,
        columns,
        flops,
        _losses(by_rank, block, with_losses),
        _collectives(by_rank, collective_block),
        _pipeline_passes(by_rank),
        border.measured,
    )


def _flops_of(name: str, steps: list[Step]) -> int:
    """Return the sum of the FLOPs of all steps; `name` is `executed`, `useful` or `recomputed`."""
    return sum(to_integer(getattr(step, "flops_" + name)) for step in steps)


def _collectives(by_rank: list[list[Step]], block: int) -> Collectives | None:
    """Return the times of collectives, or None unless they were measured in every step of every rank."""
    first_columns = []
    wait_columns = []
    for steps in by_rank:
        until_first = [step.first_collective for step in steps]
        waits = [step.collective_wait for step in steps]
        if not all(map(math.isfinite, until_first + waits)):
            return None
        first_columns.append(sum_blocks(list(map(microseconds, until_first)), block))
        wait_columns.append(sum_blocks(list(map(microseconds, waits)), block))
    return Collectives(block, first_columns, wait_columns)


def _pipeline_passes(by_rank: list[list[Step]]) -> dict[str, list[int]]:
    """Return the times of the forward and backward passes of a pipeline's stages, summed over steps, by rank.

    The columns are empty unless the times were measured in every step of every rank.
    """
    columns = {}
    for name in PASSES:
        seconds = [math.fsum(getattr(step, name) for step in steps) for steps in by_rank]
        if not all(map(math.isfinite, seconds)):
            return {}
        columns[name] = list(map(microseconds, seconds))
    return columns


def find_ranks_with_losses(kind: str, layout: Layout) -> list[int]:
    """Return the ranks whose losses are evidence.

    The list is empty if the job's loss is that of a single rank: then `quality.losses` has it.
    """
    having = [rank for rank in range(layout.world) if layout.has_loss(rank)]
    if kind == TRAIN and len(having) == 1:
        return []
    return having


def _losses(by_rank: list[list[Step]], block: int, with_losses: Sequence[int]) -> list[Any]:
    """Return a column for each rank: its losses, or None if it is not in `with_losses`.

    The list is empty if no loss is finite.
    """
    columns: list[Any] = []
    has_finite = False
    ranks_to_include = set(with_losses)
    for rank, steps in enumerate(by_rank):
        if rank not in ranks_to_include:
            columns.append(None)
            continue
        losses_of_rank = sum_loss_blocks([step.loss for step in steps], block)
        columns.append(losses_of_rank)
        if any(loss is not None for loss in losses_of_rank):
            has_finite = True
    if not has_finite:
        return []
    return columns


def collect_durations(request: Request, evidence: Evidence) -> dict[str, list[int]]:
    """Return the microseconds of each phase that every rank has finished, by rank.

    The duration of training does not include the time in which checkpoints are written.
    """
    if request.kind == TRAIN:
        seconds = {fact["rank"]: fact["train"] for fact in evidence.all("timing")}
        if len(seconds) < request.layout.world:
            return {}
        return {TRAIN: _microseconds_by_rank(seconds)}
    return {phase.name: _microseconds_by_rank(phase.seconds) for phase in find_finished_passes(evidence)}


def _microseconds_by_rank(seconds: dict[int, float]) -> list[int]:
    """Return the times of ranks in the order of ranks, in microseconds."""
    return [microseconds(seconds[rank]) for rank in sorted(seconds)]


def collect_memory_peaks(evidence: Evidence, world: int) -> dict[str, list[Any]]:
    """Return the peaks of device memory by rank, bytes, with None for a rank that has not reported one.

    A column is left out if no rank has reported its peak.
    """
    columns: dict[str, list[Any]] = {}
    for name in ("peak", "allocator_peak"):
        peaks = {fact["rank"]: fact.get(name) or None for fact in evidence.all("memory")}
        by_rank = [peaks.get(rank) for rank in range(world)]
        if any(by_rank):
            columns[name] = by_rank
    return columns


def compare_results(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the record's `results`: the results of fixed operations, compared bit by bit.

    Those of one device are compared with each other, and with those of other devices that have the same model and
    driver.
    """
    models = {fact["rank"]: (fact["device"]["name"], fact["driver"]) for fact in evidence.all("rank")}
    facts = {fact["rank"]: dict(fact, alike=models.get(fact["rank"])) for fact in evidence.all("results")}
    return roofs.compare_results(facts)


def collect_laps(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the record's `laps`: the finished repetitions of a soak. Rank 0 wrote them for all ranks."""
    return [{name: fact[name] for name in LAP_FIELDS} for fact in evidence.all("lap")]


def describe_losses(curve: list[float], first_step: int) -> dict[str, Any]:
    """Return the record's `quality.losses`: the loss of each of the first MAX_LOSSES steps.

    `first_step`: the number of the first step, counted from the start of training; above 0 if the run was resumed.
    """
    return {
        "first_step": first_step,
        "steps": len(curve),
        "values": [round_loss(loss) for loss in curve[:MAX_LOSSES]],
    }


def round_last_losses(curve: list[float]) -> list[Any]:
    """Return the last LOSS_TAIL losses of a run, rounded as in a record."""
    return [round_loss(loss) for loss in curve[-LOSS_TAIL:]]
