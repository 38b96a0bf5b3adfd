"""One metric compared with its expected value: is it comparable, and is it fast enough."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from flagbench.manifests.model import Case, MetricSpec
from flagbench.records.model import Record
from flagbench.verdict import sanity
from flagbench.verdict.conditions import Agreement, ConditionResult, depends_on, describe
from flagbench.verdict.interval import Estimate, common, estimate, ratio
from flagbench.verdict.judge import HIGH, LOW, Sample, Terms, against_baseline, against_claim
from flagbench.verdict.result import Against, MetricResult, Verdict

STANDARD = Terms()
"""95 % intervals, the default spread between runs, and 2 % against a baseline."""


class Expected(Struct, frozen=True):
    """The expected value of a metric, in the unit and scope it was stated in."""

    spec: MetricSpec
    estimate: Estimate
    unit: str
    scope: str
    runs: Sample | None = None
    """Of a baseline."""


def is_speed(spec: MetricSpec) -> bool:
    """Whether the limits 0.95 and 1.10 fit a metric: a rate, a time, or a utilisation."""
    return spec.unit == "s" or spec.unit.endswith("/s") or spec.name.startswith(("mfu", "hfu"))


def candidates(spec: MetricSpec, against: Against) -> tuple[str, ...]:
    """Measured metrics that an expected value may be compared with, the best first."""
    if against.kind == "baseline" or spec.held_by is None:
        return (spec.name,)
    return (spec.held_by, spec.name)


def compare_metric(
    records: Sequence[Record],
    case: Case,
    against: Against,
    conditions: Sequence[ConditionResult],
    expected: Expected,
    terms: Terms = STANDARD,
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
    measured = estimate(found, terms.prior(name), terms.level)
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
        return replace(result, ratio=None, difference=None, verdict=Verdict.NOT_COMPARABLE, reason=partial)
    return _judged(replace(result, comparable=True), expected, Sample(tuple(records), tuple(found)), against, terms)


def _judged(result: MetricResult, expected: Expected, sample: Sample, against: Against, terms: Terms) -> MetricResult:
    """A comparable metric with its verdict, and the numbers behind it."""
    spec, other, name = expected.spec, expected.estimate, result.held_by
    measured = result.measured or Estimate(0.0, 0)
    text = f"{name} {_with_runs(measured, expected.unit)}, {against.kind} {_with_runs(other)}"
    if not is_speed(spec):
        text = f"{text}: {spec.name} is not a speed, so the limits {LOW:.2f} to {HIGH:.2f} do not fit it"
        return replace(result, reason=text)
    if result.ratio is None:
        text = f"{text}: no ratio, a value is not positive or the model not published"
        return replace(result, verdict=Verdict.INCONCLUSIVE, reason=text)
    if expected.runs is not None:
        quotient, verdict, why = against_baseline(sample, expected.runs, spec, terms)
        text = f"{text}: ratio {quotient}, {why}"
        return replace(result, ratio=quotient, verdict=verdict, reason=text)
    text = f"{text}: ratio {result.ratio}, allowed {LOW:.2f} to {HIGH:.2f}"
    if name != candidates(spec, against)[0]:
        text = f"{text}; {name} itself is held, the record has no {spec.held_by}"
    verdict, because = against_claim(result.ratio, sample, terms)
    return replace(result, verdict=verdict, reason=f"{text}; {because}" if because else text)


def _with_runs(value: Estimate, unit: str = "") -> str:
    """A measured value says how many runs it is of: one run knows least of how runs differ."""
    if not value.runs:
        return value.text()
    return f"{value.text(unit)} ({'one run' if value.runs == 1 else f'{value.runs} runs'})"
