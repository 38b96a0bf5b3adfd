"""Decide whether the losses of two runs are aligned by the rule published for Llama2-70B, and where they part.

`flagbench compare` shows the result. The rule is that of FlagPerf, training/nvidia/llama2_70B-megatron/README.md at
1b5a0303, translated: "Alignment requires that, at the 21st step and after it, the mean relative error of the losses
of all steps against those of the corresponding steps of NVIDIA is less than 2 %." With the losses of A as the
reference:

    mean over steps s >= 21 of |B(s) - A(s)| / |A(s)|  <  0.02

Steps are counted from 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from flagbench.manifests.model import Case
from flagbench.records.model import Record
from flagbench.verdict.conditions import alike, known_conditions
from flagbench.verdict.derivation import look_up

FIRST_STEP = 21
"""The first step that the rule counts."""
LIMIT = 0.02
"""The mean relative error below which losses are aligned, by the rule."""
LARGEST_ERROR = 1e100
"""A relative error that is larger counts as not known: the sum of such errors could overflow."""
HOW_COMPUTED = frozenset({"attention", "engine", "layout", "memory_monitor", "precision", "recompute", "stop_rule"})
"""Conditions that say how a loss curve is computed, or how long it is. The rule is for runs that differ in them."""
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
    """The relative errors of the losses of B, as fractions of those of A."""

    steps: int
    """The number of steps from the 21st on that have a loss in both records."""
    missing: int
    """The number of steps of A from the 21st on that do not have a loss in both records."""
    mean: float | None
    """The mean error over `steps`; None if the error of one of them is not known, or if there are none."""
    largest: float | None
    """The largest error that is known; None if none is."""
    largest_step: int | None
    """The step with the largest error."""
    parts_at: int | None
    """The first of all common steps from which on every error exceeds the limit; None if the last one does not."""


class LossComparison(Struct, frozen=True):
    """The outcome of the rule on the losses of two records."""

    outcome: Alignment
    reason: str
    """Why the outcome is what it is, as a clause."""
    errors: LossErrors


class _SettingsOfLoss(NamedTuple):
    """Names of the settings on which the losses depend and that do not show to be equal."""

    different: list[str]
    """Those that differ between the records."""
    unknown: list[str]
    """Those that neither record has."""


def compare_losses(a: Record, b: Record, case: Case, problems: Sequence[str]) -> LossComparison | None:
    """Compare the losses of B with those of A; None if no step has a loss in both.

    Args:
        a: the record whose losses are the reference.
        b: the record whose losses are compared.
        case: the case of both records.
        problems: why one of the records is invalid, as clauses; empty if both are sound.
    """
    reference = loss_curve(a)
    curve = loss_curve(b)
    by_step = _relative_errors(reference, curve)
    if not by_step or a.quality is None or a.quality.losses is None:
        return None
    last = a.quality.losses.first_step + a.quality.losses.steps
    errors = _summarise(by_step, first=max(FIRST_STEP, min(reference)), last=last)
    settings = _compare_settings(a, b, case)
    if problems:
        return LossComparison(Alignment.INVALID, problems[0], errors)
    if settings.different:
        reason = f"the runs differ in {', '.join(settings.different)}"
        return LossComparison(Alignment.NOT_COMPARABLE, reason, errors)
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
    if settings.unknown:
        reason = f"{mean}, but neither record has its {', '.join(settings.unknown)}"
        return LossComparison(Alignment.INCONCLUSIVE, reason, errors)
    return LossComparison(Alignment.ALIGNED, f"{mean}, less than {percent(LIMIT)}", errors)


def loss_curve(record: Record) -> LossCurve:
    """Return the losses of a record by step; an empty mapping if it has none."""
    if record.quality is None or record.quality.losses is None:
        return {}
    losses = record.quality.losses
    return dict(enumerate(losses.values, losses.first_step + 1))


def percent(fraction: float) -> str:
    """Return a fraction as text in percent, with four significant digits, as in `1.234 %`."""
    return f"{100 * fraction:.4g} %"


def _relative_errors(reference: LossCurve, curve: LossCurve) -> dict[int, float | None]:
    """Return the relative error of each common step; None if a loss is not finite or the reference is 0."""
    errors: dict[int, float | None] = {}
    for step, expected in reference.items():
        if step in curve:
            errors[step] = _relative_error(expected, curve[step])
    return errors


def _relative_error(expected: float | None, loss: float | None) -> float | None:
    """Return the error of a loss as a fraction of the expected one; None if it is not known."""
    if loss is None or not expected:
        return None
    error = abs(loss - expected) / abs(expected)
    if error >= LARGEST_ERROR:
        return None
    return error


def _summarise(by_step: Mapping[int, float | None], first: int, last: int) -> LossErrors:
    """Return the errors that the rule looks at; it counts the steps of A from `first` to `last`."""
    counted = [step for step in by_step if first <= step <= last]
    largest_step = None
    largest = None
    known_errors = []
    for step in counted:
        error = by_step[step]
        if error is None:
            continue
        known_errors.append(error)
        if largest is None or error > largest:
            largest_step = step
            largest = error
    mean = None
    if known_errors and len(known_errors) == len(counted):
        mean = math.fsum(known_errors) / len(known_errors)
    return LossErrors(
        steps=len(counted),
        missing=max(0, last - first + 1 - len(counted)),
        mean=mean,
        largest=largest,
        largest_step=largest_step,
        parts_at=_parting_step(by_step),
    )


def _parting_step(by_step: Mapping[int, float | None]) -> int | None:
    """Return the first step from which on every error exceeds the limit or is not known; None if none is."""
    parting = None
    for step in sorted(by_step, reverse=True):
        error = by_step[step]
        if error is not None and error <= LIMIT:
            break
        parting = step
    return parting


# Whether two runs should have the same curve


def _compare_settings(a: Record, b: Record, case: Case) -> _SettingsOfLoss:
    """Compare the settings on which the losses depend."""
    conditions_a = known_conditions(a)
    conditions_b = known_conditions(b)
    different: list[str] = []
    unknown: list[str] = []
    for name in _conditions_of_loss(case):
        if not alike(conditions_a.get(name), conditions_b.get(name)):
            different.append(name)
        elif conditions_a.get(name) is None:
            unknown.append(name)
    if not alike(_samples_per_step(a), _samples_per_step(b)):
        different.append("samples per step")
    if not alike(_training_set(a), _training_set(b)):
        different.append("training set")
    return _SettingsOfLoss(different, unknown)


def _conditions_of_loss(case: Case) -> Iterator[str]:
    """Yield the conditions on which the losses of a case depend and in which the runs have to be equal."""
    loss = case.metric("loss")
    if loss is not None:
        for name in loss.depends_on:
            if name not in HOW_COMPUTED and name not in BATCH:
                yield name


def _samples_per_step(record: Record) -> int | None:
    """Return the samples on which all replicas together train in a step; None if the conditions do not say."""
    batch = record.conditions.get("batch_size")
    accumulated = record.conditions.get("gradient_accumulation_steps", 1)
    if not isinstance(batch, int) or not isinstance(accumulated, int):
        return None
    if record.layout is not None:
        return record.layout.dp * batch * accumulated
    return record.system.nodes * record.system.devices_per_node * batch * accumulated


def _training_set(record: Record) -> str | None:
    """Return the sha256 of the training set; None if the record does not have it."""
    sha256 = look_up(record.raw, "quality.data.train_sha256")
    if not isinstance(sha256, str):
        return None
    return sha256
