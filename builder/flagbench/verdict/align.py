"""Whether two loss curves are aligned, by the rule published for Llama2-70B, and where they diverge.

FlagPerf, training/nvidia/llama2_70B-megatron/README.md at 1b5a0303, translated: "Alignment requires that, at the 21st
step and after it, the mean relative error of the losses of all steps against those of the corresponding steps of
NVIDIA is less than 2 %." With A the curve to be checked and B the reference:

    mean over steps s >= 21 of |A(s) - B(s)| / |B(s)|  <  0.02

Steps are counted from 1. Steps of A that B does not have are left out. If A lacks steps of B, the mean is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec import Struct, to_builtins

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case
from flagbench.records.model import Record
from flagbench.verdict.conditions import ConditionResult, describe
from flagbench.verdict.curve import Curve
from flagbench.verdict.curve_conditions import another_curve, curve_conditions, unknown_conditions
from flagbench.verdict.validity import examine
from flagbench_core.exit_codes import ExitCode

FROM_STEP = 21
WITHIN = 0.02
BOUNDS = (1e-6, 1.0)
"""Where a bound that is not the published one may lie."""
LARGEST_ERROR = 1e100
"""Sums of larger ones could overflow."""
ROWS = 10
"""Rows of the excerpt, at most."""


class Alignment(str, Enum):
    """What `flagbench align` concludes."""

    ALIGNED = "ALIGNED"
    DIVERGED = "DIVERGED"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"

    @property
    def exit_code(self) -> ExitCode:
        """The code `flagbench align` ends with: as `verify`, DIVERGED as BELOW."""
        if self is Alignment.ALIGNED:
            return ExitCode.OK
        return ExitCode.BELOW if self is Alignment.DIVERGED else ExitCode[self.name]


class Row(Struct, frozen=True):
    """Consecutive common steps: the means of their losses, and the relative errors; each None if undefined."""

    first: int
    last: int
    counted: bool
    """Whether the rule applies to them."""
    a: float | None
    b: float | None
    mean_error: float | None
    largest_error: float | None


class AlignResult(Struct, frozen=True, kw_only=True):
    """Two curves by the rule. Errors are fractions; None where no step has one. `reason` is one sentence."""

    verdict: Alignment
    reason: str
    notes: tuple[str, ...]
    a: str
    b: str
    case: str | None
    from_step: int
    to_step: int | None
    """The last step that counts; None: the last of the reference."""
    within: float
    compared: int
    """Common steps that count."""
    only_in_a: int
    """Further steps of A, which the reference does not have and which are left out."""
    only_in_b: int
    """Steps of the reference that count, but whose losses are not in both curves."""
    mean_error: float | None
    largest_error: float | None
    largest_error_step: int | None
    diverges_from: int | None
    """The first of all common steps from which on every error exceeds the bound; None if the last one does not."""
    conditions: tuple[ConditionResult, ...]
    """Those that differ: `here` is A, `expected` is B."""
    excerpt: tuple[Row, ...]

    @property
    def published_rule(self) -> bool:
        """Whether this is the published rule, and not one with another first step or bound."""
        return self.from_step == FROM_STEP and self.to_step is None and self.within == WITHIN

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the shape `flagbench align --json` prints."""
        found = to_builtins(self)
        found["conditions"] = [
            {"name": c.name, "a": c.here, "b": c.expected, "agreement": c.agreement.value} for c in self.conditions
        ]
        fixed = {"schema": "alignment/v1", "exit_code": int(self.verdict.exit_code)}
        return {**fixed, "published_rule": self.published_rule, **found}


def align(
    a: Curve,
    b: Curve,
    case: Case | None = None,
    *,
    from_step: int = FROM_STEP,
    to_step: int | None = None,
    within: float = WITHIN,
) -> AlignResult:
    """Hold curve A against the reference B.

    Args:
        case: the case of the records; required if a curve is that of a record.

    Raises:
        FlagbenchError: the curves are of one record or of different cases, or a setting is out of range.
        ValueError: a record without its case, which could not be checked.
    """
    if case is None and (a.record is not None or b.record is not None):
        raise ValueError("the curve of a record is given without the record's case")
    if not BOUNDS[0] <= within <= BOUNDS[1]:
        raise FlagbenchError(
            f"--within {within:g} is out of range: {BOUNDS[0]:g} to {BOUNDS[1]:g}",
            remedy="give a fraction, such as 0.02 for 2 %",
        )
    if from_step < 1:
        raise FlagbenchError(f"--from-step {from_step} is not a step", remedy="steps are counted from 1")
    if to_step is not None and to_step < from_step:
        raise FlagbenchError(
            f"--to-step {to_step} is before --from-step {from_step}", remedy="give a later step, or none"
        )
    _check_records(a.record, b.record)
    errors = _errors(a, b)
    last = math.inf if to_step is None else to_step
    counted = {step: error for step, error in errors.items() if from_step <= step <= last}
    known = {step: error for step, error in counted.items() if error is not None}
    complete = bool(counted) and len(known) == len(counted)
    mean = math.fsum(known.values()) / len(known) if complete else None
    largest = max(known, key=lambda step: known[step]) if known else None
    conditions = curve_conditions(a.record, b.record, case)
    unknown = unknown_conditions(a.record, b.record, case)
    only = [
        sum(from_step <= step <= last and step not in errors for step in curve.losses) + _cut(curve, from_step, last)
        for curve in (a, b)
    ]
    verdict, reason = _verdict(a, b, case, conditions, unknown, counted, only[1], mean, from_step, within)
    return AlignResult(
        verdict=verdict,
        reason=reason,
        notes=tuple(_notes(a, b, conditions, unknown, errors, only, from_step, mean)),
        a=a.name,
        b=b.name,
        case=None if case is None else case.name,
        from_step=from_step,
        to_step=to_step,
        within=within,
        compared=len(counted),
        only_in_a=only[0],
        only_in_b=only[1],
        mean_error=mean,
        largest_error=None if largest is None else known[largest],
        largest_error_step=largest,
        diverges_from=_diverges_from(errors, within),
        conditions=conditions,
        excerpt=tuple(_excerpt(a, b, errors, counted)),
    )


def _cut(curve: Curve, first: int, last: float) -> int:
    """How many of the steps that count are among those at the end of a run whose losses its record does not have."""
    known = max(curve.losses)
    return int(max(0, min(last, known + curve.cut) - max(first - 1, known)))


def _check_records(a: Record | None, b: Record | None) -> None:
    if a is None or b is None:
        return
    if a.record_id == b.record_id:
        raise FlagbenchError(
            f"the record {a.record_id} is compared with itself", remedy="name the records of two runs"
        )
    if a.case != b.case:
        raise FlagbenchError(
            f"the records are of different cases: {a.case} and {b.case}",
            remedy="compare two records of the same case; `flagbench results ls` shows them",
        )


def _errors(a: Curve, b: Curve, shift: int = 0) -> dict[int, float | None]:
    """The relative error of each common step; None where a loss is not finite, or the reference is 0. With a `shift`,
    step s of A is compared with step s + shift of B."""
    found: dict[int, float | None] = {}
    for step, left in a.losses.items():
        if step + shift not in b.losses:
            continue
        right = b.losses[step + shift]
        error = abs(left - right) / abs(right) if left is not None and right else math.nan
        found[step] = error if error < LARGEST_ERROR else None
    return found


def _verdict(
    a: Curve,
    b: Curve,
    case: Case | None,
    conditions: Sequence[ConditionResult],
    unknown: Sequence[str],
    counted: Mapping[int, float | None],
    missing: int,
    mean: float | None,
    from_step: int,
    within: float,
) -> tuple[Alignment, str]:
    for side, curve in (("A", a), ("B", b)):
        if case is not None and curve.record is not None and (wrong := examine(curve.record, case).problems):
            return Alignment.INVALID, f"{side}: {wrong[0]}"
    other = [describe(c, other="in B").replace(" here,", " in A,") for c in conditions if another_curve(c)]
    if other:
        return Alignment.NOT_COMPARABLE, f"these are different curves: {'; '.join(other)}"
    if not counted:
        return Alignment.INCONCLUSIVE, (
            f"the curves have no common step from {from_step} on: A has {_span(a)}, B has {_span(b)}"
        )
    if mean is None:
        lacking = next(step for step, error in counted.items() if error is None)
        return Alignment.INVALID, f"step {lacking} has no relative error: {_why(a, b, lacking)}"
    if missing:
        return Alignment.INCONCLUSIVE, (
            f"{missing:,} of the {missing + len(counted):,} steps of B that count are not in both curves; the mean "
            f"relative error of the others is {percent(mean)}"
        )
    below = mean < within and not math.isclose(mean, within, rel_tol=1e-12)
    if below and unknown:
        return Alignment.INCONCLUSIVE, (
            f"the mean relative error is {percent(mean)}, but neither record says whether the runs had the same "
            f"{', '.join(unknown)}"
        )
    told, bound = percent(mean), percent(within)
    if told == bound:
        told = f"{100 * mean:.17g} %"
    steps = f"{_steps(len(counted))} from {min(counted)} to {max(counted)}"
    words = "less" if below else "not less"
    verdict = Alignment.ALIGNED if below else Alignment.DIVERGED
    return verdict, f"the mean relative error of {steps} is {told}, {words} than {bound}"


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def _why(a: Curve, b: Curve, step: int) -> str:
    for side, curve in (("A", a), ("B", b)):
        if curve.losses[step] is None:
            return f"the loss of {side} is not finite"
    return f"the loss of B is {b.losses[step]:g}"


def _span(curve: Curve) -> str:
    return f"steps {min(curve.losses)} to {max(curve.losses)}"


def percent(fraction: float) -> str:
    """`1.234 %`."""
    return f"{100 * fraction:.4g} %"


def _diverges_from(errors: Mapping[int, float | None], within: float) -> int | None:
    """The first step from which on all errors exceed the bound. A step without an error is beyond any bound."""
    first: int | None = None
    for step in sorted(errors, reverse=True):
        error = errors[step]
        if error is not None and error <= within:
            break
        first = step
    return first


# What a reader has to know beside the verdict


def _notes(
    a: Curve,
    b: Curve,
    conditions: Sequence[ConditionResult],
    unknown: Sequence[str],
    errors: Mapping[int, float | None],
    only: Sequence[int],
    from_step: int,
    mean: float | None,
) -> Iterator[str]:
    for side, curve in (("A", a), ("B", b)):
        if curve.record is None:
            yield f"{side} is a file of losses: data, seed, batch and model of its run are not known"
        if curve.cut:
            yield f"the record of {side} does not have the losses of its last {_steps(curve.cut)}"
    if only[0]:
        yield f"{_steps(only[0])} of A that the reference does not have {'is' if only[0] == 1 else 'are'} left out"
    if only[1]:
        yield "to compare the steps before the first that is missing, set --to-step"
    if unknown:
        yield f"not known of either run: {', '.join(unknown)}"
    if conditions and not any(map(another_curve, conditions)):
        yield "the conditions that differ do not make it another curve"
    before = [step for step, error in errors.items() if error is None and step < from_step]
    if before:
        yield f"step {before[0]}, which is not counted, has no relative error: {_why(a, b, before[0])}"
    if mean == 0:
        yield "every loss is equal: these may be two copies of one run"
    if mean is not None:
        yield from _shifted(a, b, mean, from_step)


def _shifted(a: Curve, b: Curve, mean: float, from_step: int) -> Iterator[str]:
    """Whether the curves are much closer if one is shifted by a step, as if they counted from different numbers."""
    for shift in (-1, 1):
        found = [error for step, error in _errors(a, b, shift).items() if step >= from_step]
        known = [error for error in found if error is not None]
        if len(known) > 1 and math.fsum(known) / len(known) < mean / 4:
            yield (
                f"step s of A is closer to step s{shift:+d} of B ({percent(math.fsum(known) / len(known))}): check "
                "that both count steps from 1"
            )


def _excerpt(
    a: Curve, b: Curve, errors: Mapping[int, float | None], counted: Mapping[int, float | None]
) -> Iterator[Row]:
    """The steps that do not count in one row before and one after the others, which are in rows of about equally
    many."""
    steps, inside = sorted(errors), sorted(counted)
    first, last = (inside[0], inside[-1]) if inside else (math.inf, math.inf)
    size = max(1, -(-len(inside) // (ROWS - 2)))
    groups = [[step for step in steps if step < first]]
    groups += [inside[start : start + size] for start in range(0, len(inside), size)]
    groups += [[step for step in steps if step > last]]
    for group in filter(None, groups):
        known = [error for error in map(errors.__getitem__, group) if error is not None]
        yield Row(
            first=group[0],
            last=group[-1],
            counted=group[0] in counted,
            a=_mean(a, group),
            b=_mean(b, group),
            mean_error=math.fsum(known) / len(known) if known else None,
            largest_error=max(known, default=None),
        )


def _mean(curve: Curve, steps: Sequence[int]) -> float | None:
    found = [loss for loss in map(curve.losses.__getitem__, steps) if loss is not None]
    return math.fsum(found) / len(found) if found else None
