"""The checks of a run that both sides make: the image when the run ends, and the host from the record."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Sequence

from flagbench_core.case_kinds import kind_of

LEAST_STEPS = 50
"""With fewer steps, comparing the first and the last tenth is not conclusive."""
MAX_SKIPPED_SHARE = 0.1
"""The largest share of the measured steps that the loss scaler may skip: a skipped step does less work."""
CHANCE_ERRORS = 3
"""The number of standard errors by which an accuracy exceeds chance."""

PRECISION_ERRORS = {
    "fp32": (0.0, 2e-5),
    "tf32": (2e-5, 1.2e-3),
    "fp16": (2e-5, 1.2e-3),
    "bf16": (1.2e-3, 2e-2),
    "fp8": (2e-2, 0.1),
}
"""The limits of the relative error (Frobenius norm) of a product of random matrices that ran in a precision.

A product ran in a precision if its error is at least the first limit and below the second. Rounding inputs to m
explicit mantissa bits gives about 2**-(m+1) / sqrt(3) * sqrt(2) per product term: 4e-4 at 10 bits (TF32, FP16), 3e-3
at 7 (BF16), 4e-2 at 3 (FP8, E4M3), and about 1e-7 without rounding (FP32). The limits lie in between.
"""


class Judgement(NamedTuple):
    """The result of a check."""

    holds: bool
    values: dict[str, float]
    """The numbers that decided it, by name, which the record has as the check's `values`."""


class CheckFacts(NamedTuple):
    """The facts about a run that decide which checks apply to it."""

    precision: str
    real: bool
    """Whether the data are files, and not synthetic."""
    whole: bool
    """Whether it is a full published run, rather than a window of steps."""
    resumed: bool
    """Whether it resumed from a checkpoint."""
    steps: int
    replicas: int
    """The number of data-parallel replicas of the model."""
    has_accuracy: bool
    """Whether an evaluation after at least one step has an accuracy."""


def facts_of(config: dict[str, Any], replicas: int, steps: int, resumed: bool, has_accuracy: bool) -> CheckFacts:
    """The facts of a run with a resolved configuration. Raises LookupError or TypeError if keys are missing."""
    length = config[kind_of(config)]
    return CheckFacts(
        precision=config["precision"],
        real=config["data"]["source"] != "synthetic",
        whole=length["window_steps"] is None,
        resumed=resumed,
        steps=steps,
        replicas=replicas,
        has_accuracy=has_accuracy,
    )


def applies(name: str, facts: CheckFacts) -> bool:
    """Whether the check called `name` applies to a run that ended well. A check without a rule below always does."""
    if name == "ranks_in_step":
        return facts.replicas > 1
    if name == "updated":
        return facts.precision == "fp16"
    if name == "evaluated":
        return facts.whole
    if name == "learned":  # a resumed run lacks the first steps to compare with
        return facts.real and facts.whole and facts.steps >= LEAST_STEPS and not facts.resumed
    if name == "above_chance":
        return facts.real and facts.whole and facts.has_accuracy
    return True


def runs_in(precision: str, relative_error: float) -> bool:
    """Whether a product with that error can have run in a precision; False for a precision without limits."""
    if precision not in PRECISION_ERRORS:
        return False
    low, high = PRECISION_ERRORS[precision]
    return low <= relative_error < high


def loss_finite(not_finite: int, skipped: int) -> Judgement:
    """All losses are finite, except those of steps that the loss scaler skipped."""
    return Judgement(not_finite <= skipped, {"not_finite": not_finite, "skipped": skipped})


def updated(skipped: int, measured: int) -> Judgement:
    """The measured steps updated the parameters, except a few that the loss scaler skipped."""
    limit = MAX_SKIPPED_SHARE * measured
    return Judgement(skipped <= limit, {"skipped": skipped, "measured": measured, "limit": limit})


def evaluated(last: int, end: int) -> Judgement:
    """The last evaluation followed the last step."""
    return Judgement(last == end, {"last": last, "end": end})


def learned(losses: Sequence[float]) -> Judgement | None:
    """The mean loss of the last tenth is below that of the first; None for fewer than ten finite losses."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    tenth = len(finite) // 10
    if not tenth:
        return None
    first = math.fsum(finite[:tenth]) / tenth
    last = math.fsum(finite[-tenth:]) / tenth
    return Judgement(last < first, {"first_tenth": first, "last_tenth": last})


def above_chance(accuracy: float, counted: int, chance: float) -> Judgement:
    """The accuracy over `counted` examples exceeds chance by more than CHANCE_ERRORS; both are from 0 to 1."""
    standard_error = math.sqrt(max(0.0, chance * (1 - chance)) / counted)
    bar = chance + CHANCE_ERRORS * standard_error
    holds = 0 <= chance <= 1 and accuracy > bar
    return Judgement(holds, {"accuracy": accuracy, "counted": counted, "chance": chance, "bar": bar})
