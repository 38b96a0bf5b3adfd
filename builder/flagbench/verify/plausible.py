"""Whether a record's evidence is possible in itself: what `recompute` computes from it is no better than it is.

A step counts no more than a batch, the steps of a training fill it, a loss is a cross-entropy, a run ended where its
stop rule ends it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import islice

from flagbench.evidence import Section
from flagbench.evidence.columns import MICRO, block_sizes
from flagbench.evidence.derive import INFER, TRAIN
from flagbench.evidence.metrics import OWN
from flagbench.evidence.section import Span
from flagbench.verify import rechecks
from flagbench.verify.derivation import count, number, schedule
from flagbench.verify.subject import Subject, differ, text

MOST_CLAUSES = 3
"""Of each kind: a record may have any number of steps."""
MAX_RANK_STEPS = 16_000
MAX_LOSSES = 24_000
"""A record has up to so many steps of all ranks, and so many losses; as record/measured.py of the image side."""
MUCH = 500_000
"""Bytes. A record that would be no larger with shorter blocks has no reason for long ones: it may have 990,000."""
GAP = 0.02
GAP_SECONDS = 0.5
"""How much of a training may be in none of its steps and evaluations. Measured: less than 0.001, and 0.03 s."""
CONSTANT_STEPS = 100
"""A loss that is the same in so many steps is of a model that does not learn."""
ROUNDING = -1e-3
"""Losses are cross-entropies, which are negative by rounding only. Nats."""
NEAR = 0.01
"""Accuracies this near to the target may have been rounded, as published ones are."""


def problems(subject: Subject, section: Section) -> Iterator[str]:
    """Everything in the evidence that is not possible, one clause each, a few of each kind."""
    for rule in (_clocks, _durations, _amounts, _blocks, _ceilings, _losses, _target, _evaluations):
        yield from islice(rule(subject, section), MOST_CLAUSES)


def _clocks(subject: Subject, section: Section) -> Iterator[str]:
    """Every step takes time by both clocks. Without one of them, what is computed from it would not be checked."""
    for span in section.spans:
        for name in ("host", "device"):
            for rank, blocks in enumerate(span.columns[name]):
                if 0 in blocks:
                    yield f"steps of rank {rank} in {span.name} took no time by the clock of the {name}"


def _durations(subject: Subject, section: Section) -> Iterator[str]:
    """The steps of a phase fit into its duration, and leave nothing of it but evaluations; a resumed run has also
    skipped the batches before its checkpoint."""
    train, resumed = section.timing.get(TRAIN), rechecks.first_step(subject) > 0
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
        if phase == TRAIN and train is not None and train != lasted[0]:
            yield differ("the duration of train of rank 0", lasted[0] / MICRO, "timing.train is", train / MICRO)
        parts = max(own) + (section.timing.get("eval", 0) if phase == TRAIN else 0)
        if not resumed and max(lasted) - parts > GAP * max(lasted) + GAP_SECONDS * MICRO + step:
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


def _blocks(subject: Subject, section: Section) -> Iterator[str]:
    """Blocks of several steps hide what happened in a step: they are for long runs and large records."""
    block, least = section.block, max(1, -(-section.steps * section.world // MAX_RANK_STEPS))
    if block <= least or (subject.packed and 2 * section.world > MAX_RANK_STEPS):
        return
    # Evidence is packed where it is too large as numbers.
    size = len(json.dumps(section.to_json() if subject.packed else subject.record.raw))
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
    """All evaluations of a training together took no longer than it says, and followed its steps in order."""
    entries = subject.record.quality.evaluations if subject.record.quality else ()
    if INFER in subject.config:
        return
    for name, before in (("eval", False), ("eval_initial", True)):
        took = math.fsum(number(e, "seconds") or 0.0 for e in entries if (e["epoch"] < 0) is before)
        spent = section.timing.get(name, 0) / MICRO
        if took > spent * (1 + 1e-3) + 1e-6:
            yield f"its evaluations took {took:.6g} s, but timing.{name} is {spent:.6g} s"
    last, end = 0.0, rechecks.first_step(subject) + section.steps
    for entry in entries:
        step = number(entry, "steps") or 0.0
        if not last <= step <= end:
            yield f"an evaluation followed step {step:g}, but one before it {last:g}, and training ended with {end}"
            return
        last = step
