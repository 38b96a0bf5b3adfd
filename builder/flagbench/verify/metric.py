"""One metric compared with its expected value: is it comparable, and is it fast enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flagbench.catalog.model import MetricSpec
from flagbench.record.model import Metric, Record
from flagbench.verify import numbers, sanity
from flagbench.verify.conditions import ConditionResult, describe
from flagbench.verify.interval import Estimate, Ratio, estimate, ratio
from flagbench.verify.result import Against, MetricResult, Verdict, estimate_text, ratio_text

LOW, HIGH = 0.95, 1.10
"""The ratios to the expected value between which it counts as reproduced, both ends included."""

# A ratio that is 0.95 in decimal may miss it in the last bits of a division; no measurement resolves this.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Expected:
    """What a metric should be, in the unit and scope it was stated in."""

    estimate: Estimate
    unit: str
    scope: str


def classify(value: Ratio) -> Verdict:
    """The verdict on a ratio (above 1 is better) from its interval; INCONCLUSIVE without one."""
    if value.low is None or value.high is None:
        return Verdict.INCONCLUSIVE
    if value.low > HIGH + _ROUNDING:
        return Verdict.ABOVE
    if value.high < LOW - _ROUNDING:
        return Verdict.BELOW
    if value.low >= LOW - _ROUNDING and value.high <= HIGH + _ROUNDING:
        return Verdict.REPRODUCED
    return Verdict.INCONCLUSIVE


def is_speed(spec: MetricSpec) -> bool:
    """Whether the limits 0.95 and 1.10 fit a metric: a rate, a time, or a utilisation."""
    return spec.unit == "s" or spec.unit.endswith("/s") or spec.name.startswith(("mfu", "hfu"))


def is_accuracy(spec: MetricSpec) -> bool:
    """Whether a metric is the share of correct answers."""
    return spec.unit == "fraction" and not is_speed(spec)


def candidates(spec: MetricSpec) -> tuple[str, ...]:
    """Measured metrics that a published value may be held against, the best first."""
    return (spec.name,) if spec.held_by is None else (spec.held_by, spec.name)


def compare_metric(
    records: Sequence[Record],
    spec: MetricSpec,
    names: Sequence[str],
    expected: Expected,
    blocking: Sequence[ConditionResult],
    *,
    same_work: bool,
    against: Against,
) -> MetricResult:
    """Compare one metric of valid records with its expected value.

    Args:
        names: measured metrics to look for; the first that every record has is compared.
        blocking: conditions that forbid the comparison of this metric.
        same_work: whether model and shapes are equal, so that a ratio may be shown.
    """
    name, found = _find(records, names)
    result = MetricResult(
        name=spec.name,
        held_by=name,
        unit=expected.unit,
        better=spec.better,
        measured=None,
        expected=expected.estimate,
        ratio=None,
        difference=None,
        comparable=False,
        verdict=None,
        reason=f"{name} was not measured",
    )
    if not found:
        return result
    measured = estimate(found)
    forbidden = Verdict.NOT_COMPARABLE if is_speed(spec) else None
    why = [describe(c, other=against.side) for c in blocking]
    if other := next((m for m in found if (m.unit, m.scope) != (expected.unit, expected.scope)), None):
        here, there = f"{other.unit} per {other.scope}", f"{expected.unit} per {expected.scope}"
        why.append(f"{name} is in {here} here, in {there} {against.side}")
        return replace(result, measured=measured, verdict=forbidden, reason="; ".join(why))
    result = replace(result, measured=measured)
    quotient = None
    # A fraction of the speed of other work means nothing, and would be quoted all the same.
    if same_work:
        # Half the accuracy is not half as good, so an accuracy has no ratio.
        quotient = None if is_accuracy(spec) else ratio(measured, expected.estimate, spec.better)
        result = replace(result, ratio=quotient, difference=measured.value - expected.estimate.value)
    if why:
        return replace(result, verdict=forbidden, reason="; ".join(why))
    if name == spec.held_by and is_speed(spec) and (partial := sanity.partial_batches(records, name)):
        return replace(result, ratio=None, difference=None, verdict=Verdict.INVALID, reason=partial)
    verdict, reason = _judge(spec, name, measured, expected, quotient, against)
    return replace(result, comparable=True, verdict=verdict, reason=reason)


def _find(records: Sequence[Record], names: Sequence[str]) -> tuple[str, list[Metric]]:
    """The first name that every record has, and its metrics; else the last name and an empty list."""
    for name in names:
        found = [m for m in (r.metric(name) for r in records) if m is not None]
        if len(found) == len(records):
            return name, found
    return names[-1], []


def _judge(
    spec: MetricSpec, name: str, measured: Estimate, expected: Expected, quotient: Ratio | None, against: Against
) -> tuple[Verdict | None, str]:
    """The verdict on a comparable metric, and the numbers behind it."""
    other = expected.estimate
    stated = estimate_text(other) if other.runs else numbers.published(other.value)
    text = f"{name} {estimate_text(measured, expected.unit)}, {against.kind.value} {stated}"
    if not is_speed(spec):
        return None, f"{text}: {spec.name} is not a speed, so the limits {LOW:.2f} to {HIGH:.2f} do not fit it"
    if quotient is None:
        return Verdict.INCONCLUSIVE, f"{text}: no ratio, a value is not positive or the model not published"
    text = f"{text}: ratio {ratio_text(quotient)}, allowed {LOW:.2f} to {HIGH:.2f}"
    if spec.held_by not in (None, name) and not other.runs:
        text = f"{text}; {name} itself is held, the record has no {spec.held_by}"
    verdict = classify(quotient)
    if verdict is Verdict.INCONCLUSIVE:
        text = f"{text}; {measured.reason or other.reason or 'the interval crosses a limit'}"
    return verdict, text
