"""Whether the losses of two runs are aligned by the rule published for Llama2-70B, and the step at which they part.

FlagPerf, training/nvidia/llama2_70B-megatron/README.md at 1b5a0303, translated: "Alignment requires that, at the 21st
step and after it, the mean relative error of the losses of all steps against those of the corresponding steps of
NVIDIA is less than 2 %." With the losses of A as the reference:

    mean over steps s >= 21 of |B(s) - A(s)| / |A(s)|  <  0.02

Steps are counted from 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct

from flagbench.manifests.model import Case
from flagbench.records.model import Record
from flagbench.verdict.conditions import alike, known_conditions

FIRST_STEP = 21
LIMIT = 0.02
LARGEST_ERROR = 1e100
"""The sum of larger errors could overflow."""
HOW_COMPUTED = frozenset({"attention", "engine", "layout", "memory_monitor", "precision", "recompute", "stop_rule"})
"""Conditions that say how a curve is computed, or how far. The rule is for runs that differ in them."""
BATCH = frozenset({"batch_size", "gradient_accumulation_steps"})
"""Conditions that may differ as long as all replicas together train on the same number of samples in a step."""

LossCurve = Mapping[int, float | None]
"""Losses by step, counted from 1 and without gaps; None where a loss is not finite."""


class Alignment(str, Enum):
    """The outcome of the rule on two curves."""

    ALIGNED = "ALIGNED"
    DIVERGED = "DIVERGED"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


class LossErrors(Struct, frozen=True):
    """Relative errors of the losses of B, as fractions of those of A."""

    steps: int
    """Steps from the 21st on that have a loss in both records."""
    missing: int
    """Steps of A from the 21st on that do not."""
    mean: float | None
    """Mean over `steps`; None if the error of a step is not known, or without steps."""
    largest: float | None
    largest_step: int | None
    parts_at: int | None
    """The first of all common steps from which on every error exceeds the limit; None if the last one does not."""


class LossComparison(Struct, frozen=True):
    """The losses of two records by the rule."""

    outcome: Alignment
    reason: str
    """One clause."""
    errors: LossErrors


def compare_losses(a: Record, b: Record, case: Case, problems: Sequence[str]) -> LossComparison | None:
    """Compare the losses of B with those of A; None if no step has a loss in both.

    Args:
        problems: what makes one of the records invalid.
    """
    reference = loss_curve(a)
    curve = loss_curve(b)
    by_step = _relative_errors(reference, curve)
    if not by_step or a.quality is None or a.quality.losses is None:
        return None
    last = a.quality.losses.first_step + a.quality.losses.steps
    errors = _summarise(by_step, first=max(FIRST_STEP, min(reference)), last=last)
    different, unknown = _compare_settings(a, b, case)
    if problems:
        return LossComparison(Alignment.INVALID, problems[0], errors)
    if different:
        return LossComparison(Alignment.NOT_COMPARABLE, f"the runs differ in {', '.join(different)}", errors)
    if errors.steps == 0:
        reason = f"no step from {FIRST_STEP} on has a loss in both records"
        return LossComparison(Alignment.INCONCLUSIVE, reason, errors)
    if errors.mean is None:
        reason = "a loss is not finite or, in A, 0, so its relative error is not known"
        return LossComparison(Alignment.INCONCLUSIVE, reason, errors)

    mean = f"the mean relative error of {errors.steps:,} steps is {percent(errors.mean)}"
    if errors.missing > 0:
        reason = f"{mean}, but {errors.missing:,} steps of A do not have a loss in both records"
        return LossComparison(Alignment.INCONCLUSIVE, reason, errors)
    if errors.mean >= LIMIT:
        return LossComparison(Alignment.DIVERGED, f"{mean}, not less than {percent(LIMIT)}", errors)
    if unknown:
        reason = f"{mean}, but neither record has its {', '.join(unknown)}"
        return LossComparison(Alignment.INCONCLUSIVE, reason, errors)
    return LossComparison(Alignment.ALIGNED, f"{mean}, less than {percent(LIMIT)}", errors)


def loss_curve(record: Record) -> LossCurve:
    """The losses of a record by step; empty if it has none."""
    if record.quality is None or record.quality.losses is None:
        return {}
    losses = record.quality.losses
    return dict(enumerate(losses.values, losses.first_step + 1))


def percent(fraction: float) -> str:
    """`1.234 %`."""
    return f"{100 * fraction:.4g} %"


def _relative_errors(reference: LossCurve, curve: LossCurve) -> dict[int, float | None]:
    """The relative error of each common step; None if a loss is not finite or the reference is 0."""
    errors: dict[int, float | None] = {}
    for step, expected in reference.items():
        if step not in curve:
            continue
        loss = curve[step]
        errors[step] = None
        if loss is not None and expected:
            error = abs(loss - expected) / abs(expected)
            if error < LARGEST_ERROR:
                errors[step] = error
    return errors


def _summarise(by_step: Mapping[int, float | None], first: int, last: int) -> LossErrors:
    """The errors by the rule, which counts the steps of A from `first` to `last`."""
    counted = [step for step in by_step if first <= step <= last]
    largest_step = None
    largest = None
    numbers = []
    for step in counted:
        error = by_step[step]
        if error is None:
            continue
        numbers.append(error)
        if largest is None or error > largest:
            largest_step, largest = step, error
    mean = None
    if numbers and len(numbers) == len(counted):
        mean = math.fsum(numbers) / len(numbers)
    return LossErrors(
        steps=len(counted),
        missing=max(0, last - first + 1 - len(counted)),
        mean=mean,
        largest=largest,
        largest_step=largest_step,
        parts_at=_parting_step(by_step),
    )


def _parting_step(by_step: Mapping[int, float | None]) -> int | None:
    """The first step from which on every error exceeds the limit or is not known."""
    parting = None
    for step in sorted(by_step, reverse=True):
        error = by_step[step]
        if error is not None and error <= LIMIT:
            break
        parting = step
    return parting


# Whether two runs should have the same curve


def _compare_settings(a: Record, b: Record, case: Case) -> tuple[list[str], list[str]]:
    """What the losses depend on: names of what differs, and of what neither record has."""
    left, right = known_conditions(a), known_conditions(b)
    different, unknown = [], []
    for name in _conditions_of_loss(case):
        if not alike(left.get(name), right.get(name)):
            different.append(name)
        elif left.get(name) is None:
            unknown.append(name)
    if not alike(_samples_per_step(a), _samples_per_step(b)):
        different.append("samples per step")
    if not alike(_training_set(a), _training_set(b)):
        different.append("training set")
    return different, unknown


def _conditions_of_loss(case: Case) -> Iterator[str]:
    loss = case.metric("loss")
    if loss is not None:
        for name in loss.depends_on:
            if name not in HOW_COMPUTED and name not in BATCH:
                yield name


def _samples_per_step(record: Record) -> int | None:
    """Samples that all replicas together train on in a step; None if the conditions do not say."""
    batch = record.conditions.get("batch_size")
    accumulated = record.conditions.get("gradient_accumulation_steps", 1)
    if not isinstance(batch, int) or not isinstance(accumulated, int):
        return None
    if record.layout is not None:
        return record.layout.dp * batch * accumulated
    return record.system.nodes * record.system.devices_per_node * batch * accumulated


def _training_set(record: Record) -> str | None:
    """The sha256 of the training set; None if the record does not have it."""
    quality = record.raw.get("quality")
    if not isinstance(quality, dict) or not isinstance(quality.get("data"), dict):
        return None
    sha256 = quality["data"].get("train_sha256")
    return sha256 if isinstance(sha256, str) else None
