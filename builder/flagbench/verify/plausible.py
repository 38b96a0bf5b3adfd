"""Whether a record's evidence is possible in itself, and whether the run's own checks are borne out by it.

The numbers of a record follow from its evidence (`recompute`). This is about the evidence: a step counts no more than a
batch, the steps of a training fill it, and a check that passed passes again where the record has what it was made of.
The rules on checks are those of record/checks.py of the image side.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from flagbench.evidence import Section
from flagbench.evidence.columns import MICRO
from flagbench.evidence.derive import INFER, TRAIN
from flagbench.evidence.metrics import OWN
from flagbench.evidence.section import Span
from flagbench.record.model import Check
from flagbench.verify.derivation import count, number, schedule
from flagbench.verify.subject import Subject, differ, text

MAX_RANK_STEPS = 16_000
MAX_LOSSES = 24_000
"""A record has every step up to so many of all ranks, and so many losses, as in record/measured.py of the image side."""
MUCH = 500_000
"""Bytes. A record that would be smaller with shorter blocks has no reason for long ones: up to 990,000 are allowed."""
GAP = 0.02
GAP_SECONDS = 0.5
"""How much of a training may be in none of its steps and evaluations. Measured: less than 0.001, and 0.03 s."""
CONSTANT_STEPS = 100
"""A loss that is the same in so many steps is of a model that does not learn."""
ROUNDING = -1e-3
"""Losses are cross-entropies, which are negative by rounding only. Nats."""
NEAR = 0.01
"""Accuracies this near to the target may have been rounded, as published ones are."""
MAX_SKIPPED_SHARE = 0.1
_ACCURACY = re.compile(r"acc ([0-9.]+) of ([0-9]+) examples; guessing gives [0-9.]+, at most ([0-9.]+)", re.ASCII)


def problems(subject: Subject, section: Section) -> Iterator[str]:
    """Everything in the evidence that is not possible, one clause each, a few of each kind."""
    for rule in (_durations, _amounts, _blocks, _ceilings, _losses, _target, _evaluations, _checks):
        yield from islice(rule(subject, section), 3)


def _durations(subject: Subject, section: Section) -> Iterator[str]:
    """The steps of a phase fit into its duration, and leave nothing of it but evaluations; skipped ones of a resumed
    run are not among them."""
    train, resumed = section.timing.get(TRAIN), bool(subject.record.quality and subject.record.quality.resumed)
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


def _work(span: Span, rank: int, batch: int, block: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Samples, published samples, tokens and useful tokens of each block, and the samples of as many full batches."""
    names = ("samples", "samples_published", "tokens", "tokens_useful")
    columns = [span.columns[name][rank] for name in names]
    rest = span.steps
    for amounts in zip(*columns, strict=True):
        yield (*amounts, batch * min(block, rest))
        rest -= block


def _blocks(subject: Subject, section: Section) -> Iterator[str]:
    """Blocks of several steps hide what happened in a step: they are for long runs and large records."""
    block, least = section.block, max(1, -(-section.steps * section.world // MAX_RANK_STEPS))
    if block > least and len(json.dumps(subject.record.raw)) * block < MUCH * (block - 1):
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
    quality = subject.record.quality
    losses = quality.losses if quality else None
    values, first = (losses.values, losses.first_step) if losses else ((), 0)
    if len(values) != min(section.steps, MAX_LOSSES):
        yield f"quality.losses has {len(values)} losses of {section.steps} steps"
    resumed = count(quality.resumed, "step") or 0 if quality else 0
    if first != resumed:
        yield differ("quality.losses.first_step", first, "the run began with step", resumed)
    finite = _finite(values)
    if finite and min(finite) < ROUNDING:
        yield f"a loss is {min(finite):.6g}, which no cross-entropy is"
    if len(finite) >= CONSTANT_STEPS and min(finite) == max(finite):
        yield f"the loss of all {len(finite)} steps is {finite[0]:.6g}"


def _finite(values: Sequence[Any]) -> list[float]:
    return [float(value) for value in values if value is not None]


def _target(subject: Subject, section: Section) -> Iterator[str]:
    """A run to a target accuracy ended when it was reached, or at the limit."""
    quality, plan = subject.record.quality, schedule(subject.config)
    target = number(plan, "target_acc")
    if quality is None or quality.resumed or target is None or plan.get("window_steps") is not None:
        return
    last = _evaluated(subject)[-1:]
    found = max((entry.get(name) or 0.0 for entry in last for name in _ACCURACIES), default=0.0)
    if quality.converged is None:
        yield f"quality.converged is null, but the run has the target {target:g}"
    elif found and abs(found - target) > NEAR and quality.converged != (found >= target):
        yield (
            f"quality.converged is {text(quality.converged)}, but the last evaluation has {found:.6g} and the target "
            f"is {target:g}"
        )
    full = (subject.counted("samples_per_step") or 0) * (subject.replicas or 0)
    examples = count(subject.record.raw["quality"].get("data"), "train_examples") or 0
    # Of an epoch, and of the limit, the last batch may not be taken.
    limits = (count(plan, "max_samples") or 0, (count(plan, "max_epochs") or 0) * (examples - full))
    least = min((limit for limit in limits if limit > 0), default=0) - full
    trained = section.stretch().total("samples_published")
    if quality.converged is False and trained < least:
        yield f"it did not reach its target, but ended after {trained:,} samples, and its limit is {least:,} or more"


def _evaluations(subject: Subject, section: Section) -> Iterator[str]:
    """No evaluation took longer than the run, and none of a known set counted more examples than it has."""
    record, data = subject.record, subject.record.raw["quality"].get("data") if subject.record.quality else None
    examples = number(data, "eval_examples")
    for entry in record.quality.evaluations if record.quality else ():
        seconds = number(entry, "seconds")
        if seconds is not None and not 0 <= seconds <= (record.duration or math.inf):
            yield f"an evaluation took {seconds:.6g} s, and the run {text(record.duration)} s"
        if entry.get("accuracy") is not None and examples is not None and entry["counted"] > examples:
            yield f"an evaluation counted {entry['counted']:,} examples, and its set has {examples:,}"


_ACCURACIES = ("accuracy", "published_accuracy")


def _evaluated(subject: Subject) -> list[Mapping[str, Any]]:
    """The evaluations that followed a step."""
    quality = subject.record.quality
    return [entry for entry in (quality.evaluations if quality else ()) if entry["epoch"] >= 0]


def _checks(subject: Subject, section: Section) -> Iterator[str]:
    """Checks that passed, made again as far as the record has what they are made of."""
    for check in subject.record.checks:
        again = _AGAIN.get(check.name)
        if again is not None and (wrong := again(subject, section, check)):
            yield f"the check {check.name} passed, but {wrong}"


Again = Callable[[Subject, Section, Check], str | None]


def _skipped(subject: Subject) -> int:
    """The steps that the loss scaler skipped."""
    training = subject.record.quality and subject.record.quality.training
    return count(training, "skipped_steps") or 0 if subject.config.get("precision") == "fp16" else 0


def _loss_finite(subject: Subject, section: Section, check: Check) -> str | None:
    quality = subject.record.quality
    values = quality.losses.values if quality and quality.losses else ()
    bad, skipped = values.count(None), _skipped(subject)
    return f"{bad} losses are not finite, and {skipped} steps were skipped" if bad > skipped else None


def _updated(subject: Subject, section: Section, check: Check) -> str | None:
    if subject.record.quality and subject.record.quality.resumed:  # it counts those before the checkpoint
        return None
    warmup = count(schedule(subject.config), "warmup_steps") or 0
    skipped, measured = _skipped(subject) - warmup, section.steps - warmup
    too_many = skipped > MAX_SKIPPED_SHARE * measured
    return f"at least {skipped} of {measured} measured steps were skipped" if too_many else None


def _learned(subject: Subject, section: Section, check: Check) -> str | None:
    quality = subject.record.quality
    values = quality.losses.values if quality and quality.losses else ()
    finite = _finite(values)
    tenth = len(finite) // 10
    if not tenth or len(values) < section.steps:
        return None
    early, late = (math.fsum(part) / tenth for part in (finite[:tenth], finite[-tenth:]))
    return None if late < early else f"the mean loss of the first tenth is {early:.6g}, of the last {late:.6g}"


def _was_evaluated(subject: Subject, section: Section, check: Check) -> str | None:
    quality = subject.record.quality
    resumed = count(quality.resumed, "step") or 0 if quality else 0
    last = max((number(entry, "steps") or 0 for entry in _evaluated(subject)), default=None)
    if last == section.steps + resumed:
        return None
    return f"the last evaluation followed step {text(last)} of {section.steps + resumed}"


def _above_chance(subject: Subject, section: Section, check: Check) -> str | None:
    """By the number that the check found and that of the last evaluation, which are the same."""
    last = next((e for e in reversed(_evaluated(subject)) if e.get("accuracy") is not None), None)
    if last is None:
        return "no evaluation has an accuracy"
    words = _ACCURACY.match(check.detail)
    if words and not (f"{last['accuracy']:.4f}" == words[1] and last["counted"] == int(words[2])):
        return f"of acc {words[1]} of {words[2]} examples; the last has {last['accuracy']:.4f} of {last['counted']}"
    if words and last["accuracy"] <= float(words[3]) - 1e-4:
        return f"the accuracy of {last['accuracy']:.4f} is not above {words[3]}"
    return None


_AGAIN: Mapping[str, Again] = {
    "loss_finite": _loss_finite,
    "updated": _updated,
    "evaluated": _was_evaluated,
    "learned": _learned,
    "above_chance": _above_chance,
}
