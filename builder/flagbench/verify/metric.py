"""One metric compared with its expected value: is it comparable, and is it fast enough."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from flagbench.catalog.model import Case, MetricSpec
from flagbench.record.model import Metric, Record
from flagbench.verify import sanity
from flagbench.verify.conditions import Agreement, ConditionResult, depends_on, describe
from flagbench.verify.interval import RUNS_FOR_BETWEEN, Estimate, Ratio, common, estimate, ratio
from flagbench.verify.result import Against, MetricResult, Verdict

LOW, HIGH = 0.95, 1.10
"""The ratios to the expected value between which it counts as reproduced, both ends included."""

# A ratio that is 0.95 in decimal may miss it in the last bits of a division; no measurement resolves this.
_ROUNDING = 1e-9


class Expected(Struct, frozen=True):
    """The expected value of a metric, in the unit and scope it was stated in."""

    spec: MetricSpec
    estimate: Estimate
    unit: str
    scope: str


def classify(value: Ratio) -> Verdict:
    """The verdict on a ratio (above 1 is better) from its interval; INCONCLUSIVE without one."""
    if value.ci95 is None:
        return Verdict.INCONCLUSIVE
    low, high = value.ci95
    if low > HIGH + _ROUNDING:
        return Verdict.ABOVE
    if high < LOW - _ROUNDING:
        return Verdict.BELOW
    if low >= LOW - _ROUNDING and high <= HIGH + _ROUNDING:
        return Verdict.REPRODUCED
    return Verdict.INCONCLUSIVE


def is_speed(spec: MetricSpec) -> bool:
    """Whether the limits 0.95 and 1.10 fit a metric: a rate, a time, or a utilisation."""
    return spec.unit == "s" or spec.unit.endswith("/s") or spec.name.startswith(("mfu", "hfu"))


def candidates(spec: MetricSpec, against: Against) -> tuple[str, ...]:
    """Measured metrics that an expected value may be held against, the best first."""
    if against.kind == "baseline" or spec.held_by is None:
        return (spec.name,)
    return (spec.held_by, spec.name)


def compare_metric(
    records: Sequence[Record],
    case: Case,
    against: Against,
    conditions: Sequence[ConditionResult],
    expected: Expected,
) -> MetricResult:
    """Compare one metric of valid records with its expected value.

    A published value depends on some of the conditions; a baseline's metrics depend on all of them.
    """
    spec = expected.spec
    names = candidates(spec, against)
    name = next((name for name in names if common(records, name)), names[-1])
    found = common(records, name)
    result = MetricResult(
        name=spec.name,
        held_by=name,
        unit=expected.unit,
        better=spec.better,
        expected=expected.estimate,
        reason=f"{name} was not measured",
    )
    if not found:
        return result
    measured = estimate(found)
    needed = depends_on(case, spec, name)
    depends = [c for c in conditions if against.kind == "baseline" or c.name in needed]
    # Software only qualifies a verdict.
    differing = [c for c in depends if c.forbids and c.name not in case.software_conditions]
    why = [describe(c, other=against.side) for c in differing]
    same_work = all(c.agreement is Agreement.EQUAL for c in conditions if c.name in case.shapes)
    other = next((m for m in found if (m.unit, m.scope) != (expected.unit, expected.scope)), None)
    quotient = difference = None
    if other is not None:
        here, there = f"{other.unit} per {other.scope}", f"{expected.unit} per {expected.scope}"
        why.append(f"{name} is in {here} here, in {there} {against.side}")
    elif same_work:  # a fraction of the speed of other work would be quoted all the same
        difference = measured.value - expected.estimate.value
        if spec.unit != "fraction" or is_speed(spec):  # half the accuracy is not half as good
            quotient = ratio(measured, expected.estimate, spec.better)
    result = replace(result, measured=measured, ratio=quotient, difference=difference)
    if why:
        return replace(result, verdict=Verdict.NOT_COMPARABLE if is_speed(spec) else None, reason="; ".join(why))
    if name == spec.held_by and is_speed(spec) and (partial := sanity.partial_batches(records, name)):
        return replace(result, ratio=None, difference=None, verdict=Verdict.INVALID, reason=partial)
    verdict, reason = _judge(result, expected, found, against)
    return replace(result, comparable=True, verdict=verdict, reason=reason)


def _judge(
    result: MetricResult, expected: Expected, found: Sequence[Metric], against: Against
) -> tuple[Verdict | None, str]:
    """The verdict on a comparable metric, and the numbers behind it."""
    spec, other, name = expected.spec, expected.estimate, result.held_by
    text = f"{name} {estimate(found).text(expected.unit)}, {against.kind} {other.text()}"
    if not is_speed(spec):
        return None, f"{text}: {spec.name} is not a speed, so the limits {LOW:.2f} to {HIGH:.2f} do not fit it"
    if result.ratio is None:
        return Verdict.INCONCLUSIVE, f"{text}: no ratio, a value is not positive or the model not published"
    text = f"{text}: ratio {result.ratio}, allowed {LOW:.2f} to {HIGH:.2f}"
    if name != candidates(spec, against)[0]:
        text = f"{text}; {name} itself is held, the record has no {spec.held_by}"
    verdict = classify(result.ratio)
    if verdict is Verdict.INCONCLUSIVE:
        text = f"{text}; {_why_inconclusive(found, other)}"
    return verdict, text


def _why_inconclusive(found: Sequence[Metric], expected: Estimate) -> str:
    """Why a ratio gives no verdict."""
    runs, without = len(found), sum(metric.ci95 is None for metric in found)
    if 1 < runs < RUNS_FOR_BETWEEN and without:
        return f"{without} of {runs} runs have no interval, and {RUNS_FOR_BETWEEN} runs would give one between them"
    if (runs == 1 and without) or expected.ends is None:
        return "one value, no interval"
    return "the interval crosses a limit"
