"""Intervals of measured metrics, from one run or several, and of their ratios to what is expected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from flagbench.manifests.model import Case, MetricSpec
from flagbench.manifests.rows import Claim
from flagbench.records.model import Metric, Record
from flagbench.verdict.claim_limits import is_speed
from flagbench.verdict.conditions import Agreement, ConditionResult, depends_on, describe
from flagbench.verdict.result import Against, Compared, Estimate, MetricResult, Ratio, slowest_device
from flagbench.verdict.samples import session_share, sessions_of_sides
from flagbench.verdict.stats.between import DEFAULT, LEVEL, RUNS_FOR_STUDENT, Prior, over_runs
from flagbench.verdict.stats.faster_or_slower import WITHIN, SessionRuns, compare_sides

MOST_CREDIT = 1.01
"""Largest ratio of credited to trained samples: SST-2's 67,349 sentences are credited as 67,584."""


class Terms(Struct, frozen=True):
    """What a verdict is made with."""

    within: float = WITHIN
    """Against a baseline: ratios that differ from 1 by no more are the same."""
    priors: dict[str, Prior] = {}
    """The spread between earlier runs, by metric; `DEFAULT` for others."""
    level: float = LEVEL
    """At which a verdict on a claim has to hold: above 95 % where it is looked at more than once."""

    def prior(self, name: str) -> Prior:
        """What is assumed of the spread between runs of a metric."""
        return self.priors.get(name, DEFAULT)


STANDARD = Terms()
"""95 % intervals, the default spread between runs, and 2 % against a baseline."""


class Expected(Struct, frozen=True):
    """The expected value of a metric, in the unit and scope it was stated in; `records`: those of a baseline."""

    spec: MetricSpec
    estimate: Estimate
    unit: str
    scope: str
    records: tuple[Record, ...] = ()


def expected_of_claim(claim: Claim, case: Case) -> list[Expected]:
    """The published values of a row, which are taken as exact."""
    specs = {spec.name: spec for spec in case.metrics}
    published = [(specs[metric.name], metric) for metric in claim.metrics]
    return [Expected(spec, Estimate(metric.value, runs=0), metric.unit, spec.scope) for spec, metric in published]


def expected_of_baseline(records: Sequence[Record], case: Case, terms: Terms) -> list[Expected]:
    """What the runs of a baseline measured; a metric that the case does not know has no better direction."""
    known = ((case.metric(metric.name), common(records, metric.name)) for metric in records[0].metrics)
    return [
        Expected(
            spec,
            estimate(found, terms.prior(spec.name), session=session_of(records, spec)),
            found[0].unit,
            found[0].scope,
            tuple(records),
        )
        for spec, found in known
        if spec and found
    ]


def session_of(records: Sequence[Record], spec: MetricSpec | Metric) -> float:
    """As `session_share`, for a metric: only speeds differ between sessions."""
    return session_share(records) if is_speed(spec) else 0.0


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
    terms: Terms,
) -> Compared:
    """An expected metric beside what the runs measured: its interval, its ratio, and whether it is comparable.

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
        reason=_absent(records, name),
    )
    if not found:
        return Compared(spec=spec, result=result, runs=())
    prior, session = terms.prior(name), session_of(records, spec)
    measured = estimate(found, prior, session=session)
    baseline = common(expected.records, name)
    sides: list[SessionRuns] = []
    why = [*differing_conditions(case, against, conditions, spec, name)]
    other = next((m for m in found if (m.unit, m.scope) != (expected.unit, expected.scope)), None)
    difference = quotient = strict = None
    if other is not None:
        here, there = f"{other.unit} per {other.scope}", f"{expected.unit} per {expected.scope}"
        why.append(f"{name} is in {here} here, in {there} {against.side}")
    elif all(c.agreement is Agreement.EQUAL for c in conditions if c.name in case.shapes):
        # A fraction of the speed of other work would be quoted all the same.
        difference = measured.value - expected.estimate.value
        if spec.unit != "fraction" or is_speed(spec):  # half the accuracy is not half as good
            quotient = ratio(measured, expected.estimate, spec.better)
            if terms.level > LEVEL:
                strict = ratio(estimate(found, prior, terms.level, session), expected.estimate, spec.better)
    if not why and name == spec.held_by and is_speed(spec) and (partial := partial_batches(records, name)):
        why, quotient, difference = [partial], None, None
    if not why and baseline and quotient is not None and is_speed(spec):
        sides = rates_by_session(records, expected.records, name, spec.better)
        quotient = ratio_of_sides(found, baseline, sides, terms)
    result = replace(
        result,
        measured=measured,
        slowest_device=slowest_device(found),
        ratio=quotient,
        difference=difference,
        comparable=not why,
        reason="; ".join(why),
    )
    return Compared(
        spec=spec,
        result=result,
        runs=tuple(found),
        session=session,
        strict=strict,
        baseline=tuple(baseline),
        sides=tuple(sides),
    )


def _absent(records: Sequence[Record], name: str) -> str:
    """That a metric was not measured, and why, if a record says so."""
    reasons = (each.quality.absent.get(name.removesuffix("_mean")) for each in records if each.quality is not None)
    return ": ".join([f"{name} was not measured", *filter(None, reasons)][:2])


def differing_conditions(
    case: Case, against: Against, conditions: Sequence[ConditionResult], spec: MetricSpec, name: str
) -> Iterable[str]:
    """The conditions that a metric depends on and that forbid to compare it; software only qualifies a verdict."""
    needed = depends_on(case, spec, name)
    for condition in conditions:
        depends = against.kind == "baseline" or condition.name in needed
        if depends and condition.forbids and condition.name not in case.software_conditions:
            yield describe(condition, other=against.side)


def partial_batches(records: Sequence[Record], name: str) -> str | None:
    """Why the metric `name`, which counts every batch as full, is not comparable: too many batches were not full."""
    for record in records:
        if record.work is None:
            continue
        credited, trained = record.work.samples_published_count, record.work.samples_executed
        if credited > MOST_CREDIT * trained:
            return (
                f"record {record.record_id}: {name} counts every batch as full, {credited:,} samples in all, but the "
                f"run trained on {trained:,}; use a training set of at least a hundred steps"
            )
    return None


def rates_by_session(
    records: Sequence[Record], others: Sequence[Record], name: str, better: str
) -> list[SessionRuns]:
    """A metric that all records have, by session and side; the sides change places where `better` is `lower`.

    What is not a speed does not differ between sessions: all are of one.
    """
    here, there = common(records, name), common(others, name)
    places = [([*range(len(here))], [*range(len(there))])]
    if is_speed(here[0]):
        places = sessions_of_sides(records, others)
    found = []
    for mine, theirs in places:
        session = SessionRuns(
            [float(here[place].value) for place in mine], [float(there[place].value) for place in theirs]
        )
        if better == "lower":
            session = SessionRuns(session.there, session.here)
        found.append(session)
    return found


def ratio_of_sides(
    here: Sequence[Metric], there: Sequence[Metric], sides: Sequence[SessionRuns], terms: Terms = STANDARD
) -> Ratio | None:
    """The runs of one side over those of the other, above 1 is better; None where a value is not positive.

    `sides`: the values of both, by session.
    """
    if not all(0 < value < math.inf for value in (*rates(here), *rates(there))):
        return None
    # The half-width, relative, that the windows of the runs give their means.
    widths = ([width / m.value for width, m in zip(half_widths(side), side, strict=True)] for side in (here, there))
    least = math.hypot(*(math.hypot(*side) / len(side) for side in widths))
    found = compare_sides(sides, least=least, prior=terms.prior(here[0].name))
    return Ratio(found.ratio, found.interval, found.method)


def rates(metrics: Sequence[Metric]) -> list[float]:
    """The value of each run."""
    return [float(metric.value) for metric in metrics]


def common(records: Sequence[Record], name: str) -> list[Metric]:
    """A metric of each record; empty where a record lacks it."""
    found = [metric for metric in (record.metric(name) for record in records) if metric is not None]
    return found if len(found) == len(records) else []


def estimate(
    metrics: Sequence[Metric], prior: Prior = DEFAULT, level: float = LEVEL, session: float = 1.0
) -> Estimate:
    """One metric of one or more runs under the same conditions, as a value and an interval between runs.

    There is one only where the windows of at least half of the runs gave one: of steps that have not settled, nothing
    is known. Runs that differ in what refused some of the windows show it by their spread.

    Args:
        prior, level, session: as for `over_runs`.
    """
    runs = len(metrics)
    values = [float(metric.value) for metric in metrics]
    found = None
    if 2 * len(without_interval(metrics)) <= runs:
        found = over_runs(values, half_widths(metrics), prior, level, session)
    if found is None:
        return Estimate(math.fsum(values) / runs, runs)
    return Estimate(found.value, runs, found.interval, found.method)


def without_interval(metrics: Sequence[Metric]) -> list[int]:
    """The places of the runs whose window was refused; of fewer than five runs, also of those without a window."""
    few = len(metrics) < RUNS_FOR_STUDENT
    return [place for place, metric in enumerate(metrics) if metric.ci95 is None and (metric.ci_reason or few)]


def half_widths(metrics: Sequence[Metric]) -> list[float]:
    """The half-width of the interval within each run, the wider side of it; 0 for a run without one."""
    ends = [(metric.value, *(metric.ci95 or (metric.value, metric.value))) for metric in metrics]
    return [max(value - low, high - value) for value, low, high in ends]


def ratio(measured: Estimate, expected: Estimate, better: str) -> Ratio | None:
    """Measured over expected, or its inverse where `better` is `lower`: above 1 is always better."""
    return quotient(expected, measured) if better == "lower" else quotient(measured, expected)


def quotient(top: Estimate, bottom: Estimate) -> Ratio | None:
    """`top` over `bottom`; None where `bottom` is not positive.

    The interval is the conservative one, lowest over highest to highest over lowest.
    """
    if bottom.value <= 0 or not math.isfinite(value := top.value / bottom.value):
        return None
    above, below = top.ends, bottom.ends
    if above is None or below is None or below[0] <= 0:
        return Ratio(value)
    corners = [a / b for a in above for b in below]
    if not all(map(math.isfinite, corners)):
        return Ratio(value)
    return Ratio(value, (min(corners), max(corners)), top.ci_method or bottom.ci_method)
