"""Whether a record's evidence is possible in itself: what `recompute` computes from it is no better than it is.

A step counts no more than a batch, the steps of a training fill it, a loss is a cross-entropy, a run ended where its
stop rule ends it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import islice

from flagbench.verdict import rechecks
from flagbench.verdict.derivation import count, number, schedule
from flagbench.verdict.subject import Subject, differ, text
from flagbench_core.evidence import Section
from flagbench_core.evidence.columns import MICRO, block_sizes
from flagbench_core.evidence.derive import INFER, TRAIN
from flagbench_core.evidence.metrics import OWN
from flagbench_core.evidence.section import Span

MOST_CLAUSES = 3
"""Of each kind: a record may have any number of steps."""
MAX_RANK_STEPS = 16_000
MAX_LOSSES = 24_000
"""A record has up to so many steps of all ranks, and so many losses; as record/measured.py of the image side."""
MUCH = 500_000
"""Bytes. A record that would be no larger with shorter blocks has no reason for long ones: it may have 990,000."""
GAP = 0.02
GAP_SECONDS = 0.1
"""How much of a training may be in none of its steps and evaluations. Measured: less than 0.001, and 0.03 s."""
SAME_CLOCK = 0.02
"""How much less time than the host a processor's own clock may have seen. Measured: never less, 0.001 more."""
CONSTANT_STEPS = 100
"""A loss that is the same in so many steps is of a model that does not learn."""
ROUNDING = -1e-3
"""Losses are cross-entropies, which are negative by rounding only. Nats."""
NEAR_FLOPS = 1e-6
FASTER = 1.05
"""How much more than its peak a device may seem to reach in one step, by a clock of microseconds."""
NO_RECOMPUTE = (None, False, "none")
"""Of the condition `recompute`; a case without it recomputes nothing."""
NEAR = 0.01
"""Accuracies this near to the target may have been rounded, as published ones are."""


def problems(subject: Subject, section: Section) -> Iterator[str]:
    """Everything in the evidence that is not possible, one clause each, a few of each kind."""
    for rule in (
        _clocks,
        _durations,
        _amounts,
        _flops,
        _speeds,
        _parts,
        _blocks,
        _ceilings,
        _losses,
        _target,
        _evaluations,
    ):
        yield from islice(rule(subject, section), MOST_CLAUSES)


def _clocks(subject: Subject, section: Section) -> Iterator[str]:
    """Every step takes time by both clocks. Without one of them, what is computed from it would not be checked."""
    for span in section.spans:
        for name in ("host", "device"):
            for rank, blocks in enumerate(span.columns[name]):
                if 0 in blocks:
                    yield f"steps of rank {rank} in {span.name} took no time by the clock of the {name}"
    if subject.stack is None or subject.stack.device_kind != "cpu":
        return
    whole = section.stretch()
    for rank in range(section.world):
        device, host = (whole.rank_time((name,), rank) for name in ("device", "host"))
        if device < host * (1 - SAME_CLOCK):
            yield (
                f"the steps of rank {rank} took {host / MICRO:.3f} s, but {device / MICRO:.3f} s by the clock of its "
                "device, which is the same processor"
            )


def _durations(subject: Subject, section: Section) -> Iterator[str]:
    """The steps of a phase fit into its duration, and leave nothing of it but evaluations; a resumed run has also
    skipped the batches before its checkpoint."""
    if "e2e" not in section.timing:
        yield "its evidence has no timing.e2e"
    for phase in dict.fromkeys(span.phase for span in section.spans):
        if phase not in section.durations:
            yield f"its evidence has no duration of {phase}"
            continue
        lasted, stretch = section.durations[phase], section.stretch(phase)
        own = [stretch.rank_time(OWN, rank) for rank in range(section.world)]
        step = max(own) / stretch.steps
        for rank, (seconds, most) in enumerate(zip(own, lasted, strict=True)):
            if seconds > most * (1 + 1e-4) + step:
                yield (
                    f"the steps of {phase} of rank {rank} took {seconds / MICRO:.3f} s, but its {phase} only "
                    f"{most / MICRO:.3f} s"
                )
        said = section.timing.get(phase)
        if said != lasted[0]:
            there = None if said is None else said / MICRO
            yield differ(f"the duration of {phase} of rank 0", lasted[0] / MICRO, f"timing.{phase} is", there)
        parts = max(own) + (section.timing.get("eval", 0) if phase == TRAIN else 0)
        # A batch is skipped in less time than a step takes.
        skipped = rechecks.first_step(subject) * max(own) / stretch.steps
        if max(lasted) - parts > GAP * max(lasted) + GAP_SECONDS * MICRO + step + skipped:
            yield (
                f"its {phase} lasted {max(lasted) / MICRO:.3f} s, but its steps and evaluations only "
                f"{parts / MICRO:.3f} s: steps are missing"
            )


def _amounts(subject: Subject, section: Section) -> Iterator[str]:
    """No rank counts more than a full batch in a step, or tokens other than those of its samples."""
    batch, length = subject.counted("samples_per_step"), subject.counted("tokens_per_sample")
    if batch is None or length is None:
        return
    most = max((entry.high for entry in subject.case.ranges.values()), default=1)
    for span in section.spans:
        for rank in range(section.world):
            for samples, published, tokens, useful, full in _work(span, rank, batch, section.block):
                if not samples <= published <= full:
                    yield f"rank {rank} counts {samples} samples, published {published}, and a full batch is {full}"
                if not samples * length <= tokens <= samples * length * most or useful > tokens:
                    what = f"{samples} samples of {length}"
                    yield f"rank {rank} counts {tokens} tokens, {useful} of them useful, for {what}"


def _work(span: Span, rank: int, batch: int, block: int) -> list[tuple[int, ...]]:
    """Samples, published samples, tokens and useful tokens of blocks, and the samples of as many full batches.

    Each once: in most steps they are the same.
    """
    names = ("samples", "samples_published", "tokens", "tokens_useful")
    columns = [span.columns[name][rank] for name in names]
    full = [batch * size for size in block_sizes(span.steps, block)]
    return sorted({*zip(*columns, full, strict=True)})


def _flops(subject: Subject, section: Section) -> Iterator[str]:
    """FLOPs are those of its tokens by the formula of the case; none are recomputed unless its condition says so."""
    per, length = subject.flops_of_unit, subject.counted("tokens_per_sample")
    for span in section.spans:
        executed, tokens = sum(span.flops["executed"]), sum(sum(of) for of in span.columns["tokens"])
        units = tokens if subject.case.unit == "tokens" else tokens / (length or 1)
        if per is not None and abs(executed - per * units) > NEAR_FLOPS * per * units + section.world * span.steps:
            yield differ(
                f"the FLOPs of its {span.part} of {span.phase}", f"{executed:.6g}", "its tokens take", per * units
            )
        if sum(span.flops["recomputed"]) and subject.record.conditions.get("recompute") in NO_RECOMPUTE:
            yield f"FLOPs were recomputed in {span.phase}, but the condition recompute is none"


def _speeds(subject: Subject, section: Section) -> Iterator[str]:
    """No step did more than the device's peak, by the case's formula. Stages of a pipeline have unequal shares."""
    per, length = subject.flops_of_unit, subject.counted("tokens_per_sample")
    peak = subject.device.peaks.get(str(subject.config.get("precision"))) if subject.device else None
    if per is None or peak is None or not subject.replicas or (count(subject.config, "layout.pp") or 1) > 1:
        return
    share = per * subject.replicas / subject.world / (1 if subject.case.unit == "tokens" else length or 1)
    for span in section.spans:
        for rank in range(section.world):
            for tokens, micro in zip(span.columns["tokens"][rank], span.columns["device"][rank], strict=True):
                speed = share * tokens / max(micro, 1) * MICRO
                if speed > FASTER * peak.flops:
                    what = f"a step of rank {rank} in {span.name} did {speed:.4g} FLOP/s"
                    yield f"{what}, above the peak of {peak.flops:.4g}"


def _parts(subject: Subject, section: Section) -> Iterator[str]:
    """What happened within steps, by the clock of the device, took no longer than they did."""
    for span in section.spans:
        of = span.collectives
        sums = {"the time before the first collective": of.first, "the wait in collectives": of.wait} if of else {}
        own = {name: [sum(blocks) for blocks in ranks] for name, ranks in sums.items()}
        own |= {f"the time of {name}": [*ranks] for name, ranks in span.passes.items()}
        for name, ranks in own.items():
            for rank, part in enumerate(ranks):
                whole = sum(span.columns["device"][rank])
                if part > whole * (1 + 1e-3) + span.steps:
                    yield f"{name} of rank {rank} in {span.name} is {part / MICRO:.6g} s of {whole / MICRO:.6g} s"


def _blocks(subject: Subject, section: Section) -> Iterator[str]:
    """Blocks of several steps hide what happened in a step: they are for long runs and large records."""
    block, least = section.block, max(1, -(-section.steps * section.world // MAX_RANK_STEPS))
    if block <= least or (subject.packed and 2 * section.world > MAX_RANK_STEPS):
        return
    # Evidence is packed where it is too large as numbers.
    kept = [subject.record.raw["evidence"], (subject.record.raw.get("quality") or {}).get("losses")]
    size = len(json.dumps(section.to_json() if subject.packed else kept))
    if size * block < MUCH * (block - 1):
        yield f"its evidence is in blocks of {block} steps, and blocks of {least} would be small enough"


def _ceilings(subject: Subject, section: Section) -> Iterator[str]:
    """No rank measured more than its device's peak."""
    known, most = subject.device, max(section.ceilings, default=0.0)
    peak = known.peaks.get(str(subject.config.get("precision"))) if known else None
    if peak is not None and most > peak.flops * (1 + 1e-9):
        yield f"a rank measured {most:.4g} FLOP/s in a matrix product, above the peak of {peak.flops:.4g}"


def _losses(subject: Subject, section: Section) -> Iterator[str]:
    """The loss of each step of a training, which changes, and is a cross-entropy."""
    if INFER in subject.config:
        return
    quality, values, began = subject.record.quality, rechecks.losses_of(subject), rechecks.first_step(subject)
    if len(values) != min(section.steps, MAX_LOSSES):
        yield f"quality.losses has {len(values)} losses of {section.steps} steps"
    if quality is not None and quality.losses is not None and quality.losses.first_step != began:
        yield differ("quality.losses.first_step", quality.losses.first_step, "the run began with step", began)
    finite = rechecks.finite_losses(values)
    if finite and min(finite) < ROUNDING:
        yield f"a loss is {min(finite):.6g}, which no cross-entropy is"
    if len(finite) >= CONSTANT_STEPS and min(finite) == max(finite):
        yield f"the loss of all {len(finite)} steps is {finite[0]:.6g}"


def _target(subject: Subject, section: Section) -> Iterator[str]:
    """A run to a target accuracy ended when it was reached, or at the limit."""
    quality, plan = subject.record.quality, schedule(subject.config)
    target = number(plan, "target_acc")
    if quality is None or quality.resumed or target is None or plan.get("window_steps") is not None:
        return
    last = rechecks.evaluated(subject)[-1:]
    found = max((e.get(name) or 0.0 for e in last for name in ("accuracy", "published_accuracy")), default=0.0)
    if quality.converged is None:
        yield f"quality.converged is null, but the run has the target {target:g}"
    elif found and abs(found - target) > NEAR and quality.converged != (found >= target):
        yield (
            f"quality.converged is {text(quality.converged)}, but the last evaluation has {found:.6g} and the target "
            f"is {target:g}"
        )
    full = (subject.counted("samples_per_step") or 0) * (subject.replicas or 0)
    examples = count(subject.record.raw, "quality.data.train_examples") or 0
    epochs = count(plan, "max_epochs") or 0
    # Of an epoch, and of the limit, the last batch may be full or not be taken.
    limits = (count(plan, "max_samples") or 0, epochs * (examples - full))
    least = min((limit for limit in limits if limit > 0), default=0) - full
    trained = section.stretch().total("samples_published")
    if quality.converged is False and trained < least:
        yield f"it did not reach its target, but ended after {trained:,} samples, and its limit is {least:,} or more"
    if examples and epochs and trained > epochs * (examples + full):
        yield f"it trained on {trained:,} samples, which are more than {epochs} epochs of {examples:,} examples"


def _evaluations(subject: Subject, section: Section) -> Iterator[str]:
    """Evaluations fit into the times and steps of training, and none of a known set counted more than it has."""
    yield from _evaluated_when(subject, section)
    record, examples = subject.record, number(subject.record.raw, "quality.data.eval_examples")
    for entry in record.quality.evaluations if record.quality else ():
        seconds = number(entry, "seconds")
        if seconds is not None and not 0 <= seconds <= (record.duration or math.inf):
            yield f"an evaluation took {seconds:.6g} s, and the run {text(record.duration)} s"
        if entry.get("accuracy") is not None and examples is not None and entry["counted"] > examples:
            yield f"an evaluation counted {entry['counted']:,} examples, and its set has {examples:,}"


def _evaluated_when(subject: Subject, section: Section) -> Iterator[str]:
    """All evaluations of a training together took as long as it says, and followed its steps in order."""
    entries = subject.record.quality.evaluations if subject.record.quality else ()
    if INFER in subject.config:
        return
    for name, before in (("eval", False), ("eval_initial", True)):
        took = math.fsum(number(e, "seconds") or 0.0 for e in entries if (e["epoch"] < 0) is before)
        spent = section.timing.get(name, 0) / MICRO
        # Where a case evaluates nothing, looking for that takes some microseconds after each of some steps.
        unused = 1e-3 * section.timing.get(TRAIN, 0) / MICRO + 1e-3
        if not -unused <= took - spent <= spent * 1e-3 + 1e-6:
            yield f"its evaluations took {took:.6g} s, but timing.{name} is {spent:.6g} s"
    last, end = 0.0, rechecks.first_step(subject) + section.steps
    for entry in entries:
        step = number(entry, "steps") or 0.0
        if not last <= step <= end:
            yield f"an evaluation followed step {step:g}, but one before it {last:g}, and training ended with {end}"
            return
        last = step
