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
from flagbench.verdict.judge import no_evidence
from flagbench.verdict.losses import LossComparison, compare_losses
from flagbench.verdict.recompute import recompute
from flagbench.verdict.result import Estimate, Ratio, VerifyResult
from flagbench.verdict.rules import invalid
from flagbench.verdict.samples import same_run
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
        return {
            "schema": "comparison/v1",
            "exit_code": int(self.exit_code),
            "a": self.a.record_id,
            "b": self.b.record_id,
            "case": self.a.case,
            "conditions": [
                {"name": c.name, "a": c.expected, "b": c.here, "agreement": c.agreement.value}
                for c in self.conditions
            ],
            "config": [
                {"path": path, "a": None if a is ABSENT else a, "b": None if b is ABSENT else b}
                for path, a, b in self.config
            ],
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
    found = {label: recompute(record, case) for label, record in (("A", a), ("B", b))}
    wrong = [f"{label}: {what.message}" for label, each in found.items() for what in invalid(each)]
    unproven = [f"{label}: {why}" for label, each in found.items() if (why := no_evidence(each))]
    a, b = (each.record for each in found.values())
    once = same_run(a, b) if a.record_id != b.record_id else None
    names = dict.fromkeys((*a.conditions, *b.conditions))
    conditions = compare_conditions(names, b.conditions, a.conditions)
    return Comparison(
        a=a,
        b=b,
        conditions=tuple(
            c
            for c in conditions
            if c.agreement is not Agreement.EQUAL and not (c.here is None and c.expected is None)
        ),
        config=_config_differences(a.config or {}, b.config or {}),
        metrics=tuple(
            _pair(a, b, name, terms, comparable=not wrong)
            for name in dict.fromkeys(metric.name for metric in (*a.metrics, *b.metrics))
        ),
        gate=case.gate,
        problems=(*wrong, *unproven, *([f"A and B count as one run: {once}"] if once else ())),
        exit_code=ExitCode.INVALID if wrong else ExitCode.INCONCLUSIVE if unproven else ExitCode.OK,
        losses=compare_losses(a, b, case, wrong),
    )


def judge_speed(comparison: Comparison, case: Case, terms: Terms = STANDARD) -> VerifyResult | None:
    """What `verify --baseline` says of B, with A as the baseline.

    None where there is nothing to say: a record is invalid or has no evidence, or both are one run.
    """
    a, b = comparison.a, comparison.b
    if comparison.problems or a.record_id == b.record_id:
        return None
    return verify_baseline([b], a, case, terms=terms)


def _pair(a: Record, b: Record, name: str, terms: Terms, *, comparable: bool) -> MetricPair:
    x, y = a.metric(name), b.metric(name)
    units = " | ".join(dict.fromkeys(metric.unit for metric in (x, y) if metric is not None))
    ratio = None
    if comparable and x is not None and y is not None and (x.unit, x.scope) == (y.unit, y.scope):
        # The interval is that of one run against one, where both windows gave one.
        if x.ci95 is not None and y.ci95 is not None:
            ratio = ratio_of_sides([y], [x], rates_by_session([b], [a], name, "higher"), terms)
        if ratio is None:
            ratio = quotient(Estimate(y.value, 1), Estimate(x.value, 1))
    return MetricPair(name, units, _estimate(x), _estimate(y), ratio)


def _estimate(metric: Metric | None) -> Estimate | None:
    """A metric with its interval within the run."""
    return None if metric is None else Estimate(metric.value, 1, metric.ci95, metric.ci_method)


def _config_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Leaves that differ, in the order of A and then of B; a leaf that one side lacks is ABSENT there."""
    left, right = dict(leaves(a)), dict(leaves(b))
    pairs = ((path, left.get(path, ABSENT), right.get(path, ABSENT)) for path in dict.fromkeys((*left, *right)))
    return tuple((path, x, y) for path, x, y in pairs if x is ABSENT or y is ABSENT or not same(x, y))
