"""Intervals of measured metrics, from one run or several, and of their ratios to expected values."""

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
    """The tolerance, the priors and the level of a verdict."""

    within: float = WITHIN
    """Against a baseline: ratios that differ from 1 by no more are the same."""
    priors: dict[str, Prior] = {}
    """The spread between earlier runs, by metric; `DEFAULT` for others."""
    level: float = LEVEL
    """At which a verdict on a claim has to hold: above 95 % where it is looked at more than once."""

    def prior(self, name: str) -> Prior:
        """The assumed spread between runs of a metric."""
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
    values = []
    for metric in claim.metrics:
        spec = specs[metric.name]
        values.append(Expected(spec, Estimate(metric.value, runs=0), metric.unit, spec.scope))
    return values


def expected_of_baseline(records: Sequence[Record], case: Case, terms: Terms) -> list[Expected]:
    """What the runs of a baseline measured; a metric that the case does not know has no better direction."""
    values = []
    for metric in records[0].metrics:
        spec = case.metric(metric.name)
        metrics = common(records, metric.name)
        if spec is None or not metrics:
            continue
        mean = estimate(metrics, terms.prior(spec.name), session=session_of(records, spec))
        values.append(Expected(spec, mean, metrics[0].unit, metrics[0].scope, tuple(records)))
    return values


def session_of(records: Sequence[Record], spec: MetricSpec | Metric) -> float:
    """As `session_share`, for a metric: only speeds differ between sessions."""
    if not is_speed(spec):
        return 0.0
    return session_share(records)


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
    """Compare an expected metric with the measured one: its interval, its ratio, and whether it is comparable.

    A published value depends on some of the conditions; a baseline's metrics depend on all of them.
    """
    spec = expected.spec
    name, metrics = _measured_metric(records, candidates(spec, against))
    result = MetricResult(
        name=spec.name,
        held_by=name,
        unit=expected.unit,
        better=spec.better,
        expected=expected.estimate,
        reason=_absent(records, name),
    )
    if not metrics:
        return Compared(spec=spec, result=result, runs=())
    prior, session = terms.prior(name), session_of(records, spec)
    measured = estimate(metrics, prior, session=session)
    compared = Compared(
        spec=spec,
        result=replace(result, measured=measured, slowest_device=slowest_device(metrics)),
        runs=tuple(metrics),
        session=session,
        baseline=tuple(common(expected.records, name)),
    )
    problems = list(differing_conditions(case, against, conditions, spec, name))
    unit_problem = _other_unit(metrics, expected, against)
    if unit_problem is not None:
        return _with_ratio(compared, [*problems, unit_problem])
    if not problems and name == spec.held_by and is_speed(spec):
        batch_problem = partial_batches(records, name)
        if batch_problem is not None:
            return _with_ratio(compared, [batch_problem])
    if not _has_equal_shapes(case, conditions):
        # A fraction of the speed of other work would be quoted all the same.
        return _with_ratio(compared, problems)

    difference = measured.value - expected.estimate.value
    if spec.unit == "fraction" and not is_speed(spec):  # half the accuracy is not half as good
        return _with_ratio(compared, problems, difference)
    to_expected = ratio(measured, expected.estimate, spec.better)
    if terms.level > LEVEL:
        strict_estimate = estimate(metrics, prior, terms.level, session)
        compared = replace(compared, strict=ratio(strict_estimate, expected.estimate, spec.better))
    if not problems and compared.baseline and to_expected is not None and is_speed(spec):
        sides = rates_by_session(records, expected.records, name, spec.better)
        compared = replace(compared, sides=tuple(sides))
        to_expected = ratio_of_sides(metrics, compared.baseline, sides, terms)
    return _with_ratio(compared, problems, difference, to_expected)


def _measured_metric(records: Sequence[Record], names: Sequence[str]) -> tuple[str, list[Metric]]:
    """The first of the names that all records have, and the metric of each; the last name and none without one."""
    for name in names:
        metrics = common(records, name)
        if metrics:
            return name, metrics
    return names[-1], []


def _other_unit(metrics: Sequence[Metric], expected: Expected, against: Against) -> str | None:
    """That a metric was measured in another unit or scope than the expected one."""
    for metric in metrics:
        if (metric.unit, metric.scope) != (expected.unit, expected.scope):
            return (
                f"{metric.name} is in {metric.unit} per {metric.scope} here, in {expected.unit} per {expected.scope} "
                f"{against.side}"
            )
    return None


def _has_equal_shapes(case: Case, conditions: Sequence[ConditionResult]) -> bool:
    """Whether the model and the shapes of its batches are equal on both sides."""
    for condition in conditions:
        if condition.name in case.shapes and condition.agreement is not Agreement.EQUAL:
            return False
    return True


def _with_ratio(
    compared: Compared, problems: Sequence[str], difference: float | None = None, to_expected: Ratio | None = None
) -> Compared:
    """A comparison with its numbers; `problems`: why it is not comparable, if it is not."""
    result = replace(
        compared.result,
        ratio=to_expected,
        difference=difference,
        comparable=not problems,
        reason="; ".join(problems),
    )
    return replace(compared, result=result)


def _absent(records: Sequence[Record], name: str) -> str:
    """That a metric was not measured, and why, if a record says so."""
    for record in records:
        if record.quality is None:
            continue
        reason = record.quality.absent.get(name.removesuffix("_mean"))
        if reason:
            return f"{name} was not measured: {reason}"
    return f"{name} was not measured"


def differing_conditions(
    case: Case, against: Against, conditions: Sequence[ConditionResult], spec: MetricSpec, name: str
) -> Iterable[str]:
    """The conditions that a metric depends on and that forbid to compare it; software only qualifies a verdict."""
    needed = depends_on(case, spec, name)
    for condition in conditions:
        depends = against.kind == "baseline" or condition.name in needed
        if depends and condition.forbids and condition.name not in case.software_conditions:
            yield describe(condition, side=against.side)


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
    records: Sequence[Record], baseline: Sequence[Record], name: str, better: str
) -> list[SessionRuns]:
    """A metric that all records have, by session and side; the sides change places where `better` is `lower`.

    What is not a speed does not differ between sessions: all are of one.
    """
    metrics, baseline_metrics = common(records, name), common(baseline, name)
    if is_speed(metrics[0]):
        places = sessions_of_sides(records, baseline)
    else:
        places = [(list(range(len(metrics))), list(range(len(baseline_metrics))))]
    sessions = []
    for places_of_runs, places_of_baseline in places:
        session = SessionRuns(
            rates([metrics[place] for place in places_of_runs]),
            rates([baseline_metrics[place] for place in places_of_baseline]),
        )
        if better == "lower":
            session = SessionRuns(session.baseline, session.measured)
        sessions.append(session)
    return sessions


def ratio_of_sides(
    metrics: Sequence[Metric], baseline: Sequence[Metric], sides: Sequence[SessionRuns], terms: Terms = STANDARD
) -> Ratio | None:
    """The runs of one side over those of the other, above 1 is better; None where a value is not positive.

    `sides`: the values of both, by session.
    """
    for rate in (*rates(metrics), *rates(baseline)):
        if not 0 < rate < math.inf:
            return None
    least = math.hypot(_half_width_of_mean(metrics), _half_width_of_mean(baseline))
    sides_ratio = compare_sides(sides, least=least, prior=terms.prior(metrics[0].name))
    return Ratio(sides_ratio.ratio, sides_ratio.interval, sides_ratio.method)


def _half_width_of_mean(metrics: Sequence[Metric]) -> float:
    """The half-width, relative, that the windows of runs give their mean."""
    widths = []
    for width, metric in zip(half_widths(metrics), metrics, strict=True):
        widths.append(width / metric.value)
    return math.hypot(*widths) / len(widths)


def rates(metrics: Sequence[Metric]) -> list[float]:
    """The value of each run."""
    return [float(metric.value) for metric in metrics]


def common(records: Sequence[Record], name: str) -> list[Metric]:
    """A metric of each record; empty where a record lacks it."""
    metrics = []
    for record in records:
        metric = record.metric(name)
        if metric is None:
            return []
        metrics.append(metric)
    return metrics


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
    values = rates(metrics)
    over = None
    if 2 * len(without_interval(metrics)) <= runs:
        over = over_runs(values, half_widths(metrics), prior, level, session)
    if over is None:
        return Estimate(math.fsum(values) / runs, runs)
    return Estimate(over.value, runs, over.interval, over.method)


def without_interval(metrics: Sequence[Metric]) -> list[int]:
    """The places of the runs whose window was refused; of fewer than five runs, also of those without a window."""
    few = len(metrics) < RUNS_FOR_STUDENT
    places = []
    for place, metric in enumerate(metrics):
        if metric.ci95 is None and (metric.ci_reason or few):
            places.append(place)
    return places


def half_widths(metrics: Sequence[Metric]) -> list[float]:
    """The half-width of the interval within each run, the wider side of it; 0 for a run without one."""
    widths = []
    for metric in metrics:
        low, high = metric.ci95 or (metric.value, metric.value)
        widths.append(max(metric.value - low, high - metric.value))
    return widths


def ratio(measured: Estimate, expected: Estimate, better: str) -> Ratio | None:
    """Measured over expected, or its inverse where `better` is `lower`: above 1 is always better."""
    if better == "lower":
        return quotient(expected, measured)
    return quotient(measured, expected)


def quotient(top: Estimate, bottom: Estimate) -> Ratio | None:
    """`top` over `bottom`; None where `bottom` is not positive.

    The interval is the conservative one, lowest over highest to highest over lowest.
    """
    if bottom.value <= 0:
        return None
    value = top.value / bottom.value
    if not math.isfinite(value):
        return None
    if top.ends is None or bottom.ends is None or bottom.ends[0] <= 0:
        return Ratio(value)
    corners = []
    for numerator in top.ends:
        for denominator in bottom.ends:
            corners.append(numerator / denominator)
    if not all(math.isfinite(corner) for corner in corners):
        return Ratio(value)
    return Ratio(value, (min(corners), max(corners)), top.ci_method or bottom.ci_method)
