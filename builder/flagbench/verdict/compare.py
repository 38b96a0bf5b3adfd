"""Compare two records side by side: the conditions and settings that differ, and the ratio of each metric.

This is what `flagbench compare` shows. Unlike `verify`, it compares records of different conditions too, and gives no
verdict on them; `judge_speed` adds one if both records can have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case
from flagbench.records.model import Metric, Record
from flagbench.verdict.conditions import Agreement, ConditionResult, compare_conditions
from flagbench.verdict.derivation import leaves, same
from flagbench.verdict.interval import STANDARD, Terms, quotient, rates_by_session, ratio_of_sides
from flagbench.verdict.judge import explain_missing_evidence
from flagbench.verdict.losses import LossComparison, compare_losses
from flagbench.verdict.recompute import recompute
from flagbench.verdict.result import Estimate, Ratio, VerifyResult
from flagbench.verdict.rules import check_record
from flagbench.verdict.samples import explain_same_run
from flagbench.verdict.subject import Subject
from flagbench.verdict.verify import verify_baseline
from flagbench_core.exit_codes import ExitCode

ABSENT = object()
"""Stands for a setting that a configuration does not have, because None is a value."""


class MetricPair(Struct, frozen=True):
    """A metric of two records, as computed from their evidence."""

    name: str
    unit: str
    """The unit of the metric; both units, joined by ` | `, if they differ."""
    a: Estimate | None
    """The value in A with the interval of its steps; None if A does not have the metric."""
    b: Estimate | None
    """The value in B with the interval of its steps; None if B does not have the metric."""
    ratio: Ratio | None
    """B over A with the interval between runs; None if a value is absent, a record invalid, or the units differ."""


class SettingPair(NamedTuple):
    """A setting that differs in two configurations; a value is ABSENT if its configuration lacks the setting."""

    path: str
    """The dotted path of the setting, such as `train.batch_size`."""
    a: Any
    b: Any


class Comparison(Struct, frozen=True):
    """The comparison of record B with record A, both of one case."""

    a: Record
    b: Record
    conditions: tuple[ConditionResult, ...]
    """The conditions that are not equal; in each, `here` is B and `expected` is A."""
    config: tuple[SettingPair, ...]
    """The settings that are not equal."""
    metrics: tuple[MetricPair, ...]
    gate: str
    """The metric of the case that a verdict would be on."""
    problems: tuple[str, ...]
    """Why a record is invalid, or its numbers cannot be checked, as clauses that name A or B."""
    exit_code: ExitCode = ExitCode.OK
    """INVALID if a record is invalid, INCONCLUSIVE if one has no evidence, as for `flagbench verify`."""
    losses: LossComparison | None = None
    """The comparison of the losses; None if no step has a loss in both records."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that `flagbench compare --json` prints."""
        conditions = []
        for condition in self.conditions:
            conditions.append(
                {
                    "name": condition.name,
                    "a": condition.expected,
                    "b": condition.here,
                    "agreement": condition.agreement.value,
                }
            )
        config = []
        for setting in self.config:
            config.append({"path": setting.path, "a": _null_if_absent(setting.a), "b": _null_if_absent(setting.b)})
        return {
            "schema": "comparison/v1",
            "exit_code": int(self.exit_code),
            "a": self.a.record_id,
            "b": self.b.record_id,
            "case": self.a.case,
            "conditions": conditions,
            "config": config,
            "gate": self.gate,
            "metrics": to_builtins(self.metrics),
            "losses": to_builtins(self.losses),
            "problems": list(self.problems),
        }


def compare_records(a: Record, b: Record, case: Case, terms: Terms = STANDARD) -> Comparison:
    """Compare record B with record A. Conditions that differ are reported, never refused.

    The metrics of an invalid record are shown as its evidence gives them, without a ratio.

    Args:
        a: the record to compare with.
        b: the record to compare.
        case: the case of both records.
        terms: the spread between runs that is assumed for the intervals of ratios.

    Raises:
        FlagbenchError: the records are of different cases.
    """
    if a.case != b.case:
        raise FlagbenchError(
            f"the records are of different cases: {a.case} and {b.case}",
            remedy="compare two records of the same case; `flagbench results ls` shows them",
        )
    subjects = {"A": recompute(a, case), "B": recompute(b, case)}
    a = subjects["A"].record
    b = subjects["B"].record
    invalid_parts = _list_invalid_parts(subjects)
    missing_evidence = _list_missing_evidence(subjects)
    problems = [*invalid_parts, *missing_evidence]
    reason = explain_same_run(a, b)
    if reason is not None and a.record_id != b.record_id:
        problems.append(f"A and B count as one run: {reason}")
    exit_code = ExitCode.OK
    if invalid_parts:
        exit_code = ExitCode.INVALID
    elif missing_evidence:
        exit_code = ExitCode.INCONCLUSIVE
    metrics = []
    for name in dict.fromkeys(metric.name for metric in (*a.metrics, *b.metrics)):
        metrics.append(_pair_metric(a, b, name, terms, comparable=not invalid_parts))
    return Comparison(
        a=a,
        b=b,
        conditions=_differing_conditions(a, b),
        config=_config_differences(a.config or {}, b.config or {}),
        metrics=tuple(metrics),
        gate=case.gate,
        problems=tuple(problems),
        exit_code=exit_code,
        losses=compare_losses(a, b, case, invalid_parts),
    )


def _null_if_absent(setting: Any) -> Any:
    """Return the JSON value of a setting, which is null if a configuration does not have it."""
    if setting is ABSENT:
        return None
    return setting


def _list_invalid_parts(subjects: Mapping[str, Subject]) -> list[str]:
    """Return a clause for each finding that makes A or B invalid."""
    clauses = []
    for label, subject in subjects.items():
        for finding in check_record(subject):
            clauses.append(f"{label}: {finding.message}")
    return clauses


def _list_missing_evidence(subjects: Mapping[str, Subject]) -> list[str]:
    """Return a clause for each of A and B whose numbers cannot be checked."""
    clauses = []
    for label, subject in subjects.items():
        reason = explain_missing_evidence(subject)
        if reason is not None:
            clauses.append(f"{label}: {reason}")
    return clauses


def _differing_conditions(a: Record, b: Record) -> tuple[ConditionResult, ...]:
    """Return the conditions that are not equal and that at least one of the records knows."""
    names = dict.fromkeys((*a.conditions, *b.conditions))
    differing = []
    for condition in compare_conditions(names, b.conditions, a.conditions):
        unknown_to_both = condition.here is None and condition.expected is None
        if condition.agreement is not Agreement.EQUAL and not unknown_to_both:
            differing.append(condition)
    return tuple(differing)


def judge_speed(comparison: Comparison, case: Case, terms: Terms = STANDARD) -> VerifyResult | None:
    """Return the result of `verify --baseline` for B, with A as the baseline.

    None if there can be no verdict: a record is invalid or has no evidence, or both are of one run.
    """
    a = comparison.a
    b = comparison.b
    if comparison.problems or a.record_id == b.record_id:
        return None
    return verify_baseline([b], a, case, terms=terms)


def _pair_metric(a: Record, b: Record, name: str, terms: Terms, *, comparable: bool) -> MetricPair:
    """Return a metric of both records, with a ratio if they are comparable."""
    metric_a = a.metric(name)
    metric_b = b.metric(name)
    units = " | ".join(dict.fromkeys(metric.unit for metric in (metric_a, metric_b) if metric is not None))
    ratio = None
    if comparable and metric_a is not None and metric_b is not None:
        ratio = _divide_metric(a, b, metric_a, metric_b, terms)
    return MetricPair(name, units, _estimate_within_run(metric_a), _estimate_within_run(metric_b), ratio)


def _divide_metric(a: Record, b: Record, metric_a: Metric, metric_b: Metric, terms: Terms) -> Ratio | None:
    """Return a metric of B over that of A; None if the units differ, or the value of A is not positive."""
    if (metric_a.unit, metric_a.scope) != (metric_b.unit, metric_b.scope):
        return None
    # The interval is that of one run compared with another, if the steps of each give an interval, too.
    if metric_a.ci95 is not None and metric_b.ci95 is not None:
        sides = rates_by_session([b], [a], metric_a.name, "higher")
        ratio = ratio_of_sides([metric_b], [metric_a], sides, terms)
        if ratio is not None:
            return ratio
    return quotient(Estimate(metric_b.value, 1), Estimate(metric_a.value, 1))


def _estimate_within_run(metric: Metric | None) -> Estimate | None:
    """Return the value of one run with the interval of its steps; None without a metric."""
    if metric is None:
        return None
    return Estimate(metric.value, 1, metric.ci95, metric.ci_method)


def _config_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[SettingPair, ...]:
    """Return the settings of two configurations that differ, in the order of A and then of B."""
    leaves_a = dict(leaves(a))
    leaves_b = dict(leaves(b))
    differences = []
    for path in dict.fromkeys((*leaves_a, *leaves_b)):
        setting_a = leaves_a.get(path, ABSENT)
        setting_b = leaves_b.get(path, ABSENT)
        if setting_a is ABSENT or setting_b is ABSENT or not same(setting_a, setting_b):
            differences.append(SettingPair(path, setting_a, setting_b))
    return tuple(differences)
