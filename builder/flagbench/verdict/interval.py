"""Compare measured metrics with expected ones: the interval of each, their ratio, and whether they are comparable.

`verify` calls `compare_metric` for every metric of a claim (a published result) or of a baseline (earlier runs, with
which the runs are compared). The intervals come from `stats`; this module selects the runs, metrics and conditions
that go into them. Metrics are compared only if the conditions that they depend on are equal on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from flagbench.manifests.model import Case, MetricSpec
from flagbench.manifests.rows import Claim
from flagbench.records.model import Metric, Record
from flagbench.verdict.claim_limits import is_speed
from flagbench.verdict.conditions import Agreement, ConditionResult, depends_on, describe
from flagbench.verdict.result import Against, Compared, Estimate, MetricResult, Ratio, slowest_device
from flagbench.verdict.samples import SessionPlaces, group_sides_into_sessions, session_share
from flagbench.verdict.stats.between import DEFAULT, LEVEL, RUNS_FOR_STUDENT, Prior, over_runs
from flagbench.verdict.stats.faster_or_slower import WITHIN, SessionRuns, compare_sides

MOST_CREDIT = 1.01
"""Largest ratio of samples counted as if every batch were full to trained samples. It is above 1.0035, the ratio of
the published set: SST-2's 67,349 sentences count as 67,584."""


class Terms(Struct, frozen=True):
    """The tolerance, the assumed spread between runs, and the level of a verdict."""

    within: float = WITHIN
    """The tolerance of a baseline: a ratio that differs from 1 by no more counts as the same speed."""
    priors: dict[str, Prior] = {}
    """The spread between earlier runs, by metric; `DEFAULT` for other metrics."""
    level: float = LEVEL
    """The level at which a verdict on a claim has to hold: above 95 % if the runs are looked at more than once."""

    def prior(self, name: str) -> Prior:
        """Return the assumed spread between runs of a metric."""
        return self.priors.get(name, DEFAULT)


STANDARD = Terms()
"""95 % intervals, the default spread between runs, and 2 % against a baseline."""


class Expected(Struct, frozen=True):
    """The expected value of a metric, published or measured by a baseline."""

    spec: MetricSpec
    estimate: Estimate
    unit: str
    """The unit of the value, such as `samples/s`."""
    scope: str
    """The extent that the value describes: `job`, `node` or `device`."""
    records: tuple[Record, ...] = ()
    """The records of a baseline; empty for a published value."""


class _MeasuredMetric(NamedTuple):
    """The name of a metric, and the metric of each run; no metrics if a run did not measure it."""

    name: str
    metrics: list[Metric]


def expected_of_claim(claim: Claim, case: Case) -> list[Expected]:
    """Return the published values of a row, which are taken as exact."""
    specs = {spec.name: spec for spec in case.metrics}
    values = []
    for metric in claim.metrics:
        spec = specs[metric.name]
        values.append(Expected(spec, Estimate(metric.value, runs=0), metric.unit, spec.scope))
    return values


def expected_of_baseline(records: Sequence[Record], case: Case, terms: Terms) -> list[Expected]:
    """Return the values that the runs of a baseline measured, for each metric that all of them have."""
    values = []
    for metric in records[0].metrics:
        spec = case.metric(metric.name)
        metrics = collect_metric(records, metric.name)
        # For a metric that the case does not know, nothing says whether higher or lower is better.
        if spec is None or not metrics:
            continue
        mean = estimate(metrics, terms.prior(spec.name), session=compute_session_share(records, spec))
        values.append(Expected(spec, mean, metrics[0].unit, metrics[0].scope, tuple(records)))
    return values


def compute_session_share(records: Sequence[Record], spec: MetricSpec | Metric) -> float:
    """Return the share of a session's deviation that is left in the mean of a metric over the records.

    A session is a group of runs of one machine that began within two hours of each other. It is 0 for a metric that
    is not a speed: an accuracy does not differ between sessions.
    """
    if not is_speed(spec):
        return 0.0
    return session_share(records)


def list_candidates(spec: MetricSpec, against: Against) -> tuple[str, ...]:
    """Return the names of measured metrics that an expected value may be compared with, the best first."""
    # A published speed may be by the publisher's own clock, for which the case has a metric: `held_by`.
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

    Args:
        records: the runs, recomputed.
        case: the case of the runs.
        against: what the runs are compared with.
        conditions: the conditions of both sides, compared. Those that forbid the comparison become its reason: for a
            published value the conditions that the metric depends on, for a baseline all of them.
        expected: the expected value.
        terms: the tolerance, spread and level of the intervals.
    """
    spec = expected.spec
    measured = _find_measured(records, list_candidates(spec, against))
    name = measured.name
    result = MetricResult(
        name=spec.name,
        held_by=name,
        unit=expected.unit,
        better=spec.better,
        expected=expected.estimate,
        reason=_explain_absence(records, name),
    )
    forbidding = _find_forbidding(case, against, conditions, spec, name)
    if not measured.metrics:
        return Compared(spec=spec, result=result, runs=(), forbidding=forbidding)
    session = compute_session_share(records, spec)
    mean = estimate(measured.metrics, terms.prior(name), session=session)
    compared = Compared(
        spec=spec,
        result=replace(result, measured=mean, slowest_device=slowest_device(measured.metrics)),
        runs=tuple(measured.metrics),
        session=session,
        baseline=tuple(collect_metric(expected.records, name)),
        forbidding=forbidding,
    )
    problems = [describe(condition, side=against.side) for condition in forbidding]
    unit_problem = _explain_other_unit(measured.metrics, expected, against)
    if unit_problem is not None:
        return _with_ratio(compared, [*problems, unit_problem])
    counts_as_published = name == spec.held_by and is_speed(spec)
    if not problems and counts_as_published:
        batch_problem = explain_partial_batches(records, name)
        if batch_problem is not None:
            return _with_ratio(compared, [batch_problem])
    if not _has_equal_shapes(case, conditions):
        # A ratio to the speed of other work would be quoted, whatever its verdict says.
        return _with_ratio(compared, problems)
    return _add_ratio(compared, records, expected, problems, terms)


def _add_ratio(
    compared: Compared, records: Sequence[Record], expected: Expected, problems: Sequence[str], terms: Terms
) -> Compared:
    """Return a comparison with the difference and the ratio of measured and expected value.

    `problems`: why the metric is not comparable, if it is not; then runs and baseline are not compared by session.
    """
    spec = compared.spec
    name = compared.result.held_by
    measured = compared.result.measured
    assert measured is not None  # `compare_metric` returns before for a metric that was not measured
    difference = measured.value - expected.estimate.value
    if spec.unit == "fraction" and not is_speed(spec):  # accuracies are compared by their difference
        return _with_ratio(compared, problems, difference)
    ratio = compute_ratio(measured, expected.estimate, spec.better)
    if terms.level > LEVEL:
        strict_estimate = estimate(compared.runs, terms.prior(name), terms.level, compared.session)
        compared = replace(compared, strict=compute_ratio(strict_estimate, expected.estimate, spec.better))
    is_comparable_speed = not problems and is_speed(spec)
    if is_comparable_speed and compared.baseline and ratio is not None:
        sides = rates_by_session(records, expected.records, name, spec.better)
        compared = replace(compared, sides=tuple(sides))
        ratio = ratio_of_sides(compared.runs, compared.baseline, sides, terms)
    return _with_ratio(compared, problems, difference, ratio)


def _find_measured(records: Sequence[Record], names: Sequence[str]) -> _MeasuredMetric:
    """Return the first of the names that all records have; if there is none, the last name without metrics."""
    for name in names:
        metrics = collect_metric(records, name)
        if metrics:
            return _MeasuredMetric(name, metrics)
    return _MeasuredMetric(names[-1], [])


def _explain_other_unit(metrics: Sequence[Metric], expected: Expected, against: Against) -> str | None:
    """Return a clause with both units if a metric was measured in another unit or scope than expected; else None."""
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
    compared: Compared, problems: Sequence[str], difference: float | None = None, ratio: Ratio | None = None
) -> Compared:
    """Return a comparison with its numbers; `problems`: why it is not comparable, if it is not."""
    result = replace(
        compared.result,
        ratio=ratio,
        difference=difference,
        comparable=not problems,
        reason="; ".join(problems),
    )
    return replace(compared, result=result)


def _explain_absence(records: Sequence[Record], name: str) -> str:
    """Return a clause that a metric was not measured, with the reason that a record has for it, if any."""
    for record in records:
        if record.quality is None:
            continue
        # A mean over repeats is absent for the reason for which its operation was not measured.
        reason = record.quality.absent.get(name.removesuffix("_mean"))
        if reason:
            return f"{name} was not measured: {reason}"
    return f"{name} was not measured"


def _find_forbidding(
    case: Case, against: Against, conditions: Sequence[ConditionResult], spec: MetricSpec, name: str
) -> tuple[ConditionResult, ...]:
    """Return the conditions that forbid to compare a metric; software only qualifies a verdict."""
    needed = depends_on(case, spec, name)
    forbidding = []
    for condition in conditions:
        depends = against.kind == "baseline" or condition.name in needed
        if depends and condition.forbids and condition.name not in case.software_conditions:
            forbidding.append(condition)
    return tuple(forbidding)


def explain_partial_batches(records: Sequence[Record], name: str) -> str | None:
    """Return a clause if too few batches were full for the metric `name`, which counts every batch as full.

    None if the samples that it counts are at most MOST_CREDIT times those that the run trained on.
    """
    for record in records:
        if record.work is None:
            continue
        credited = record.work.samples_published_count
        trained = record.work.samples_executed
        if credited > MOST_CREDIT * trained:
            return (
                f"record {record.record_id}: {name} counts every batch as full, {credited:,} samples in all, but the "
                f"run trained on {trained:,}; use a training set of at least a hundred steps"
            )
    return None


def rates_by_session(
    records: Sequence[Record], baseline: Sequence[Record], name: str, better: str
) -> list[SessionRuns]:
    """Return the values of a metric that all records have, by session and side.

    The sides change places if `better` is `lower`, so that higher is always better. A metric that is not a speed does
    not differ between sessions, so all its runs count as one session.
    """
    metrics = collect_metric(records, name)
    baseline_metrics = collect_metric(baseline, name)
    if is_speed(metrics[0]):
        places_by_session = group_sides_into_sessions(records, baseline)
    else:
        places_by_session = [SessionPlaces(list(range(len(metrics))), list(range(len(baseline_metrics))))]
    sessions = []
    for places in places_by_session:
        measured_values = list_values([metrics[place] for place in places.records])
        baseline_values = list_values([baseline_metrics[place] for place in places.baseline])
        if better == "lower":
            sessions.append(SessionRuns(measured=baseline_values, baseline=measured_values))
        else:
            sessions.append(SessionRuns(measured=measured_values, baseline=baseline_values))
    return sessions


def ratio_of_sides(
    metrics: Sequence[Metric], baseline: Sequence[Metric], sides: Sequence[SessionRuns], terms: Terms = STANDARD
) -> Ratio | None:
    """Return the ratio of the runs to those of the baseline, above 1 is better; None if a value is not positive.

    Args:
        metrics: the metric of each run.
        baseline: the metric of each run of the baseline.
        sides: the values of both, by session.
        terms: the assumed spread between runs.
    """
    for value in (*list_values(metrics), *list_values(baseline)):
        if not 0 < value < math.inf:
            return None
    least = math.hypot(_half_width_of_mean(metrics), _half_width_of_mean(baseline))
    sides_ratio = compare_sides(sides, least=least, prior=terms.prior(metrics[0].name))
    return Ratio(sides_ratio.ratio, sides_ratio.interval, sides_ratio.method)


def _half_width_of_mean(metrics: Sequence[Metric]) -> float:
    """Return the half-width that the windows of runs give their mean, as a share of the mean."""
    widths = []
    for width, metric in zip(compute_half_widths(metrics), metrics, strict=True):
        widths.append(width / metric.value)
    return math.hypot(*widths) / len(widths)


def list_values(metrics: Sequence[Metric]) -> list[float]:
    """Return the value of each run."""
    return [float(metric.value) for metric in metrics]


def collect_metric(records: Sequence[Record], name: str) -> list[Metric]:
    """Return a metric of each record; an empty list if a record lacks it."""
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
    """Return the mean of one metric over one or more runs of the same conditions, with an interval between runs.

    There is an interval only if the windows of at least half of the runs gave one: steps that have not settled say
    nothing about the next run. If a few windows gave none, the spread between the runs shows what disturbed them.

    Args:
        metrics: the metric of each run.
        prior: the assumed spread between runs, as for `over_runs`.
        level: the level of the interval.
        session: how much of a session's deviation is left in the mean, as for `over_runs`.
    """
    runs = len(metrics)
    values = list_values(metrics)
    mean_of_runs = None
    if len(find_without_interval(metrics)) <= runs / 2:
        mean_of_runs = over_runs(values, compute_half_widths(metrics), prior, level, session)
    if mean_of_runs is None:
        return Estimate(math.fsum(values) / runs, runs)
    return Estimate(mean_of_runs.value, runs, mean_of_runs.interval, mean_of_runs.method)


def find_without_interval(metrics: Sequence[Metric]) -> list[int]:
    """Return the indices of the runs that have no usable interval of their own.

    These are the runs whose window was not steady enough for one, which their `ci_reason` says. Among fewer than five
    runs a run that has no window counts too: its own spread is needed there.
    """
    is_few = len(metrics) < RUNS_FOR_STUDENT
    places = []
    for place, metric in enumerate(metrics):
        if metric.ci95 is None and (metric.ci_reason or is_few):
            places.append(place)
    return places


def compute_half_widths(metrics: Sequence[Metric]) -> list[float]:
    """Return the half-width of the interval within each run, the wider side of it; 0 for a run without one."""
    widths = []
    for metric in metrics:
        low, high = metric.ci95 or (metric.value, metric.value)
        widths.append(max(metric.value - low, high - metric.value))
    return widths


def compute_ratio(measured: Estimate, expected: Estimate, better: str) -> Ratio | None:
    """Return the ratio of measured to expected, or its inverse if `better` is `lower`, so that above 1 is better."""
    if better == "lower":
        return quotient(expected, measured)
    return quotient(measured, expected)


def quotient(top: Estimate, bottom: Estimate) -> Ratio | None:
    """Return the ratio of two estimates; None if `bottom` is not positive.

    The interval is the conservative one, from lowest over highest to highest over lowest. There is none if one of the
    estimates has none.
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
