"""Why a run is slow: the gap to what it is compared with, its causes, and the part that they leave unexplained.

A run that is as fast as expected, or faster, has no gap: the same causes are then shares of its own time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from flagbench.manifests.model import Case
from flagbench.manifests.rows import Claim
from flagbench.records.model import Record
from flagbench.verdict.causes import CAUSES, CORE, LOOP, WHOLE, Cost, ExplainedRun, Kind, OtherSide, open_run, steady
from flagbench.verdict.result import MetricResult, Verdict, VerifyResult
from flagbench.verdict.roofs import MachineJudgement, judge_machine, reachable
from flagbench_core.evidence import EvidenceError
from flagbench_core.evidence.section import MEASURE

SLOW = 0.01
"""A rate that is lower by less is not slow: runs of one machine differ by as much."""
LEAST = 0.005
"""Of the run's time; a cause that cost less is left out."""
_RATES = ("p_", "tokens_per_second")


class Cause(Struct, frozen=True, kw_only=True):
    """One reason why a run took the time it took.

    `time` is a share of the run's time, beyond what the other side lost to the same cause where that is known; `gap`
    is a share of the gap, None where there is none. `at_most`: how much it costs was not measured, and it is at most
    what the measured causes leave of the gap; without a gap, `time` is None too.
    """

    name: str
    title: str
    time: float | None
    gap: float | None
    at_most: bool = False
    seen: str
    """What the record says, a clause with numbers."""
    action: str
    """What to do about it, as a clause."""


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a run is slow; or where its time went, if it is not slow or has nothing comparable to be compared with."""

    metric: str | None = None
    """The rate that is explained: of those below the expected value, the one that counts most of the time."""
    ratio: float | None = None
    gap: float | None = None
    """The share of the run's time that it would have to save: 1 - ratio, 0 if it is as fast as expected."""
    causes: tuple[Cause, ...] = ()
    """The largest share first."""
    unexplained: float | None = None
    """The share of the gap that no measured cause accounts for."""
    reason: str | None = None
    """Why there is nothing to explain, or no gap."""
    machine: MachineJudgement | None = None
    """Whether the machine is slow, by the roofs of the runs; None without roofs."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        document: dict[str, Any] = to_builtins(self)
        return document


def explain(
    records: Sequence[Record],
    result: VerifyResult,
    case: Case,
    baseline: Sequence[Record] = (),
    claims: Sequence[Claim] = (),
) -> Explanation:
    """Why the runs of a verdict are slow.

    Args:
        records: the runs that the verdict is on, of one configuration.
        result: the verdict.
        baseline: the runs of the other side, if they were compared with a baseline.
        claims: of the case roofs: what devices reach without a model.

    A cause's share of the time is the mean over the runs. What the other side loses to the same cause is subtracted:
    a baseline's by its evidence, a published row's data waits and evaluations by its own rates.
    """
    try:
        return _explain(records, result, case, baseline, claims)
    except EvidenceError as error:
        return Explanation(reason=f"its evidence contradicts itself: {error}")
    except ArithmeticError:  # an INVALID record may have any numbers
        return Explanation(reason="its evidence has numbers that nothing can be computed from")


def _explain(
    records: Sequence[Record], result: VerifyResult, case: Case, baseline: Sequence[Record], claims: Sequence[Claim]
) -> Explanation:
    """As `explain`. Raises EvidenceError, and ArithmeticError for numbers that no run has."""
    target = _choose_target(result)
    counts = _choose_time(target, records)
    runs = _open_all(records, case, counts)
    if not runs:
        if case.kind == MEASURE:
            return Explanation(reason="roofs have no steps; `flagbench report RECORD` shows them against the peaks")
        return Explanation(reason="a record has no evidence of steps")
    metric, ratio = None, None
    if target is not None:
        metric = target.held_by
    if target is not None and target.ratio is not None:
        ratio = target.ratio.value
    if ratio is None:  # the baseline's work is of another kind, and its times per step say nothing of this run's
        baseline = ()
    baseline_runs = _open_with_evidence(baseline, case, counts)
    if not baseline_runs:
        baseline = ()
    both_steady = steady(runs) and (not baseline_runs or steady(baseline_runs))
    comparison = OtherSide(baseline_runs, result.conditions, both_steady, reachable(records[0], case, claims))
    attribution = _attribute(runs, comparison, _costs_of_row(result, counts), ratio)
    causes = sorted(attribution.causes, key=lambda cause: -(cause.time or 0.0))
    return Explanation(
        metric=metric,
        ratio=ratio,
        gap=_gap(ratio),
        causes=tuple(causes),
        unexplained=attribution.unexplained,
        reason=_shares_note(result, target, _gap(ratio)),
        machine=judge_machine(records, case, baseline, claims),
    )


def _choose_time(target: MetricResult | None, records: Sequence[Record]) -> str:
    """What the explained rate counts; without one, the most that all records measured."""
    if target is not None:
        return _counted_time(target.held_by)
    if all(record.metric("p_whole") for record in records):
        return WHOLE
    return LOOP


def _open_all(records: Sequence[Record], case: Case, counts: str) -> list[ExplainedRun]:
    """The records as runs; empty if one of them has no evidence of a window."""
    runs = _open_with_evidence(records, case, counts)
    if len(runs) < len(records):
        return []
    return runs


def _open_with_evidence(records: Sequence[Record], case: Case, counts: str) -> list[ExplainedRun]:
    """The records that have evidence of a window, as runs."""
    runs = []
    for record in records:
        run = open_run(record, case, counts)
        if run is not None:
            runs.append(run)
    return runs


def _gap(ratio: float | None) -> float | None:
    """The share of its time that a run would have to save."""
    if ratio is None:
        return None
    return max(0.0, 1 - ratio)


class _Attribution(NamedTuple):
    """The causes of a run's time or gap, and the share of the gap that they leave; None without a gap."""

    causes: list[Cause]
    unexplained: float | None


def _attribute(
    runs: Sequence[ExplainedRun], comparison: OtherSide, published: Mapping[str, float], ratio: float | None
) -> _Attribution:
    """Share out the gap of runs, or their time where there is no gap, among the causes.

    Args:
        runs: the runs to explain.
        comparison: what they are compared with.
        published: what each cause costs a published row, as a share of its time, by the cause's name.
        ratio: of the explained rate to the expected one; None if it has none.
    """
    gap = _gap(ratio)
    if gap is not None and gap <= SLOW:
        gap = None
    remaining = 1.0
    if gap is not None:
        remaining = gap
    causes = []
    unmeasured: list[tuple[Kind, str]] = []
    # In the order of CAUSES: what is measured directly comes first, and takes its part.
    for kind in CAUSES:
        costs = _find_costs(kind, runs, comparison)
        if any(cost.seconds is None for _, cost in costs):
            unmeasured.append((kind, costs[0][1].clause))
            continue
        expected = published.get(kind.name, 0.0)
        if comparison.runs:
            expected = _mean_share(_find_costs(kind, comparison.runs, comparison), len(comparison.runs))
        share = min(remaining, _mean_share(costs, len(runs)) - expected * (ratio or 0.0))
        if share < LEAST:
            continue
        remaining -= share
        largest = max((cost for _, cost in costs), key=lambda cost: cost.seconds or 0.0)
        causes.append(_describe_cause(kind, share, _of_gap(share, gap), largest.clause))
    unexplained = _of_gap(remaining, gap)
    if gap is not None and remaining < LEAST:
        return _Attribution(causes, unexplained)
    most = remaining if gap is not None else None
    for kind, clause in unmeasured:
        causes.append(_describe_cause(kind, most, unexplained, clause, at_most=True))
    return _Attribution(causes, unexplained)


def _of_gap(share: float, gap: float | None) -> float | None:
    """A share of the time as a share of the gap; None without a gap."""
    if gap is None:
        return None
    return share / gap


def _describe_cause(
    kind: Kind, time: float | None, gap: float | None, clause: str, *, at_most: bool = False
) -> Cause:
    return Cause(
        name=kind.name, title=kind.title, time=time, gap=gap, at_most=at_most, seen=clause, action=kind.action
    )


def _find_costs(kind: Kind, runs: Sequence[ExplainedRun], comparison: OtherSide) -> list[tuple[ExplainedRun, Cost]]:
    """The runs in which a cause was at work, each with what it cost."""
    costs = []
    for run in runs:
        cost = kind.find(run, comparison)
        if cost is not None:
            costs.append((run, cost))
    return costs


def _mean_share(costs: Sequence[tuple[ExplainedRun, Cost]], runs: int) -> float:
    """The share of the time that a cause cost, the mean over all runs."""
    return math.fsum(max(0.0, cost.seconds or 0.0) / run.time for run, cost in costs) / runs


def _shares_note(result: VerifyResult, target: MetricResult | None, gap: float | None) -> str | None:
    if result.verdict is Verdict.INVALID:
        return f"{result.outcome}, so there is no gap; shares are of the run's own time, if its evidence is true"
    if target is None:
        return f"no rate has a ratio to the {result.against.kind}'s, so shares are of the run's own time"
    if gap is not None and gap <= SLOW and target.ratio is not None:
        ratio = f"{target.held_by} is at {target.ratio.value:.3f} of the {result.against.kind}'s"
        return f"{ratio}, so there is no gap, and shares are of the run's own time"
    return None


def _choose_target(result: VerifyResult) -> MetricResult | None:
    """The rate to explain: of the slow ones, that which counts most of the time, else the gate or another rate."""
    # Eight devices say nothing of one's time.
    per_device = any(condition.name == "devices" and condition.forbids for condition in result.differing)
    rates = []
    slow = []
    for metric in result.metrics:
        if metric.ratio is None or not metric.held_by.startswith(_RATES):
            continue
        if per_device and "per_device" not in metric.held_by:
            continue
        rates.append(metric)
        if 1 - metric.ratio.value > SLOW:
            slow.append(metric)
    if slow:
        order = (WHOLE, LOOP, CORE)
        return min(slow, key=lambda metric: order.index(_counted_time(metric.held_by)))
    for metric in rates:
        if result.gate in (metric.name, metric.held_by):
            return metric
    if rates:
        return rates[0]
    return None


def _counted_time(name: str) -> str:
    """What a rate counts, by its name."""
    if "whole" in name:
        return WHOLE
    if "core" in name:
        return CORE
    return LOOP


def _costs_of_row(result: VerifyResult, counts: str) -> Mapping[str, float]:
    """What the rates of a published row say of its data waits and evaluations, as shares of the time that counts."""
    if result.against.kind != "claim":
        return {}
    rates: dict[str, float] = {}
    for metric in result.metrics:
        if metric.held_by.startswith(_RATES) and metric.expected.value > 0 and "per_device" not in metric.name:
            rates.setdefault(_counted_time(metric.name), metric.expected.value)
    core, loop, whole = rates.get(CORE), rates.get(LOOP), rates.get(WHOLE)
    if loop is None:
        return {}
    costs: dict[str, float] = {}
    if core is not None and counts != CORE:
        costs["data_wait"] = max(0.0, 1 - loop / core)
    if counts != WHOLE:
        return costs
    if whole is None:
        return {}
    if "data_wait" in costs:
        costs["data_wait"] *= whole / loop
    costs["evaluation"] = max(0.0, 1 - whole / loop)
    return costs
