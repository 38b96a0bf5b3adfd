"""Two records side by side: what differs, and the ratio of what both measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from flagbench.verdict.samples import same_run
from flagbench.verdict.subject import Subject
from flagbench.verdict.verify import verify_baseline
from flagbench_core.exit_codes import ExitCode

ABSENT = object()
"""Marks a setting that a configuration does not have; None is a value."""


class MetricPair(Struct, frozen=True):
    """A metric of two records, as computed from their evidence.

    `ratio` is B over A, None where either is absent, invalid or in another unit. The intervals of `a` and `b` are
    within the runs, that of `ratio` is between runs.
    """

    name: str
    unit: str
    a: Estimate | None
    b: Estimate | None
    ratio: Ratio | None


class Comparison(Struct, frozen=True):
    """Two records of one case. `config` are leaves of the configuration that differ, by dotted path.

    In `conditions`, `here` is B and `expected` is A; only those that are not equal are listed.
    """

    a: Record
    b: Record
    conditions: tuple[ConditionResult, ...]
    config: tuple[tuple[str, Any, Any], ...]
    metrics: tuple[MetricPair, ...]
    gate: str
    """The metric of the case that a verdict would be on."""
    problems: tuple[str, ...]
    """What makes a record invalid, or its numbers no evidence, one clause each; A and B are named."""
    exit_code: ExitCode = ExitCode.OK
    """INVALID and INCONCLUSIVE as for `flagbench verify`, where a record is invalid or has no evidence."""
    losses: LossComparison | None = None
    """None if no step has a loss in both records."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the shape `flagbench compare --json` prints."""
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
        for path, a, b in self.config:
            config.append({"path": path, "a": _null_if_absent(a), "b": _null_if_absent(b)})
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

    An invalid record has no ratio to another: its numbers are shown as its evidence gives them.

    Args:
        case: the case of both.
        terms: what is known of the spread between runs.

    Raises:
        FlagbenchError: the records are of different cases.
    """
    if a.case != b.case:
        raise FlagbenchError(
            f"the records are of different cases: {a.case} and {b.case}",
            remedy="compare two records of the same case; `flagbench results ls` shows them",
        )
    subjects = {"A": recompute(a, case), "B": recompute(b, case)}
    a, b = subjects["A"].record, subjects["B"].record
    invalid_parts = _invalid_parts(subjects)
    unproven = _unproven(subjects)
    problems = [*invalid_parts, *unproven]
    reason = same_run(a, b)
    if reason is not None and a.record_id != b.record_id:
        problems.append(f"A and B count as one run: {reason}")
    exit_code = ExitCode.OK
    if invalid_parts:
        exit_code = ExitCode.INVALID
    elif unproven:
        exit_code = ExitCode.INCONCLUSIVE
    names = dict.fromkeys(metric.name for metric in (*a.metrics, *b.metrics))
    return Comparison(
        a=a,
        b=b,
        conditions=_differing_conditions(a, b),
        config=_config_differences(a.config or {}, b.config or {}),
        metrics=tuple(_pair(a, b, name, terms, comparable=not invalid_parts) for name in names),
        gate=case.gate,
        problems=tuple(problems),
        exit_code=exit_code,
        losses=compare_losses(a, b, case, invalid_parts),
    )


def _null_if_absent(setting: Any) -> Any:
    return None if setting is ABSENT else setting


def _invalid_parts(subjects: Mapping[str, Subject]) -> list[str]:
    """What makes A or B invalid, one clause each."""
    clauses = []
    for label, subject in subjects.items():
        for finding in check_record(subject):
            clauses.append(f"{label}: {finding.message}")
    return clauses


def _unproven(subjects: Mapping[str, Subject]) -> list[str]:
    """Why the numbers of A or B cannot be checked, one clause each."""
    clauses = []
    for label, subject in subjects.items():
        reason = explain_missing_evidence(subject)
        if reason is not None:
            clauses.append(f"{label}: {reason}")
    return clauses


def _differing_conditions(a: Record, b: Record) -> tuple[ConditionResult, ...]:
    """The conditions that are not equal and known of at least one of both."""
    names = dict.fromkeys((*a.conditions, *b.conditions))
    differing = []
    for condition in compare_conditions(names, b.conditions, a.conditions):
        unknown = condition.here is None and condition.expected is None
        if condition.agreement is not Agreement.EQUAL and not unknown:
            differing.append(condition)
    return tuple(differing)


def judge_speed(comparison: Comparison, case: Case, terms: Terms = STANDARD) -> VerifyResult | None:
    """What `verify --baseline` says of B, with A as the baseline.

    None where there is nothing to say: a record is invalid or has no evidence, or both are one run.
    """
    a, b = comparison.a, comparison.b
    if comparison.problems or a.record_id == b.record_id:
        return None
    return verify_baseline([b], a, case, terms=terms)


def _pair(a: Record, b: Record, name: str, terms: Terms, *, comparable: bool) -> MetricPair:
    metric_a, metric_b = a.metric(name), b.metric(name)
    units = " | ".join(dict.fromkeys(metric.unit for metric in (metric_a, metric_b) if metric is not None))
    ratio = None
    if comparable and metric_a is not None and metric_b is not None:
        ratio = _ratio_of_runs((a, metric_a), (b, metric_b), terms)
    return MetricPair(name, units, _estimate(metric_a), _estimate(metric_b), ratio)


def _ratio_of_runs(a: tuple[Record, Metric], b: tuple[Record, Metric], terms: Terms) -> Ratio | None:
    """A metric of B over that of A; None where the units differ."""
    record_a, metric_a = a
    record_b, metric_b = b
    if (metric_a.unit, metric_a.scope) != (metric_b.unit, metric_b.scope):
        return None
    # The interval is that of one run against one, where both windows gave one.
    if metric_a.ci95 is not None and metric_b.ci95 is not None:
        sides = rates_by_session([record_b], [record_a], metric_a.name, "higher")
        ratio = ratio_of_sides([metric_b], [metric_a], sides, terms)
        if ratio is not None:
            return ratio
    return quotient(Estimate(metric_b.value, 1), Estimate(metric_a.value, 1))


def _estimate(metric: Metric | None) -> Estimate | None:
    """A metric with its interval within the run."""
    if metric is None:
        return None
    return Estimate(metric.value, 1, metric.ci95, metric.ci_method)


def _config_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Leaves that differ, in the order of A and then of B; a leaf that one side lacks is ABSENT there."""
    leaves_a, leaves_b = dict(leaves(a)), dict(leaves(b))
    differences = []
    for path in dict.fromkeys((*leaves_a, *leaves_b)):
        setting_a, setting_b = leaves_a.get(path, ABSENT), leaves_b.get(path, ABSENT)
        if setting_a is ABSENT or setting_b is ABSENT or not same(setting_a, setting_b):
            differences.append((path, setting_a, setting_b))
    return tuple(differences)
