"""Explain why a run is slow: its gap to the expected rate, the causes of the gap, and what they leave unexplained.

`flagbench verify --explain` shows the result of `explain`. The gap is the share of its time that a run would have to
save to be as fast as expected. A run that is fast enough has no gap: the causes then get shares of its own time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from flagbench.manifests.model import Case
from flagbench.manifests.rows import Claim
from flagbench.records.model import Record
from flagbench.verdict.causes import (
    CAUSES,
    Cost,
    Counts,
    ExplainedRun,
    Kind,
    OtherSide,
    are_ceilings_steady,
    open_run,
)
from flagbench.verdict.result import MetricResult, Verdict, VerifyResult
from flagbench.verdict.roofs import MachineJudgement, judge_machine, reachable_matmul
from flagbench_core.case_kinds import MEASURE
from flagbench_core.evidence import EvidenceError

SLOW = 0.01
"""A rate that is lower by a smaller share is not slow: runs of one machine differ by as much."""
LEAST = 0.005
"""A cause that cost a smaller share of the run's time is left out: half of what counts as slow."""
_RATES = ("p_", "tokens_per_second")
"""The beginnings of the names of metrics that are rates."""


class Cause(Struct, frozen=True, kw_only=True):
    """One reason why a run took the time it took."""

    name: str
    title: str
    time: float | None
    """The share of the run's time that it cost, without the share that the other side lost to the same cause.

    None if it was not measured and there is no gap.
    """
    gap: float | None
    """The share of the gap that it accounts for; None if there is no gap."""
    at_most: bool = False
    """Whether its cost was not measured: then `time` and `gap` are what the measured causes leave of the gap."""
    seen: str
    """What the record shows, as a clause with numbers."""
    action: str
    """What to do about it, as a clause."""


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a run is slow; or where its time went, if it is not slow or cannot be compared."""

    metric: str | None = None
    """The rate that is explained: of those below the expected value, the one that counts most of the time."""
    ratio: float | None = None
    """The ratio of that rate to the expected one; None if it has none."""
    gap: float | None = None
    """The share of the run's time that it would have to save: 1 - ratio, 0 if it is as fast as expected."""
    causes: tuple[Cause, ...] = ()
    """The causes, the largest share first."""
    unexplained: float | None = None
    """The share of the gap for which no measured cause accounts; None if there is no gap."""
    reason: str | None = None
    """Why there is nothing to explain, or no gap."""
    machine: MachineJudgement | None = None
    """Whether the machine is slow, by its roofs (rates measured without a model); None without roofs."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that `flagbench verify --explain --json` prints."""
        document: dict[str, Any] = to_builtins(self)
        return document


def explain(
    records: Sequence[Record],
    result: VerifyResult,
    case: Case,
    baseline: Sequence[Record] = (),
    claims: Sequence[Claim] = (),
) -> Explanation:
    """Explain why the runs of a verdict are slow.

    A cause's share of the time is the mean over the runs. The share that the other side loses to the same cause is
    subtracted: for a baseline according to its evidence, for a published row (data waits and evaluations only)
    according to its rates.

    Args:
        records: the runs that the verdict is on, of one configuration.
        result: the verdict.
        case: the case of the runs.
        baseline: the runs of the baseline, if the verdict compares with one.
        claims: the claims of the case `roofs`, which say what devices reach without a model.
    """
    try:
        return _explain(records, result, case, baseline, claims)
    except EvidenceError as error:
        return Explanation(reason=f"its evidence contradicts itself: {error}")
    except ArithmeticError:  # an INVALID record may have any numbers, such as times of 0
        return Explanation(reason="its evidence has numbers that nothing can be computed from")


def _explain(
    records: Sequence[Record], result: VerifyResult, case: Case, baseline: Sequence[Record], claims: Sequence[Claim]
) -> Explanation:
    """Explain as `explain` does. Raises EvidenceError, and ArithmeticError for numbers that no run has."""
    target = _choose_target(result)
    counts = _choose_time(target, records)
    runs = _open_all(records, case, counts)
    if not runs:
        if case.kind == MEASURE:
            return Explanation(reason="roofs have no steps; `flagbench report RECORD` shows them against the peaks")
        return Explanation(reason="a record has no evidence of steps")
    metric = None
    ratio = None
    if target is not None:
        metric = target.held_by
    if target is not None and target.ratio is not None:
        ratio = target.ratio.value
    if ratio is None:
        # The baseline did other work, so its times per step are not comparable.
        baseline = ()
    baseline_runs = _open_with_evidence(baseline, case, counts)
    if not baseline_runs:
        baseline = ()
    ceilings_agree = are_ceilings_steady(runs)
    if baseline_runs:
        ceilings_agree = ceilings_agree and are_ceilings_steady(baseline_runs)
    expected_matmul = reachable_matmul(records[0], case, claims)
    other_side = OtherSide(baseline_runs, result.conditions, ceilings_agree, expected_matmul)
    attribution = _attribute(runs, other_side, _costs_of_row(result, counts), ratio)
    causes = sorted(attribution.causes, key=lambda cause: -(cause.time or 0.0))
    return Explanation(
        metric=metric,
        ratio=ratio,
        gap=_gap_of(ratio),
        causes=tuple(causes),
        unexplained=attribution.unexplained,
        reason=_explain_shares(result, target, _gap_of(ratio)),
        machine=judge_machine(records, case, baseline, claims),
    )


def _choose_time(target: MetricResult | None, records: Sequence[Record]) -> Counts:
    """Return the time that the explained rate counts; without such a rate, the longest that all records measured."""
    if target is not None:
        return _counted_time(target.held_by)
    if all(record.metric("p_whole") for record in records):
        return Counts.WHOLE
    return Counts.LOOP


def _open_all(records: Sequence[Record], case: Case, counts: Counts) -> list[ExplainedRun]:
    """Return the records as runs; an empty list if one of them has no evidence of a window."""
    runs = _open_with_evidence(records, case, counts)
    if len(runs) < len(records):
        return []
    return runs


def _open_with_evidence(records: Sequence[Record], case: Case, counts: Counts) -> list[ExplainedRun]:
    """Return those of the records that have evidence of a window, as runs."""
    runs = []
    for record in records:
        run = open_run(record, case, counts)
        if run is not None:
            runs.append(run)
    return runs


def _gap_of(ratio: float | None) -> float | None:
    """Return the share of its time that a run would have to save; None without a ratio."""
    if ratio is None:
        return None
    return max(0.0, 1 - ratio)


class _CostInRun(NamedTuple):
    """A run in which a cause was found, and what the cause cost there."""

    run: ExplainedRun
    cost: Cost


class _Attribution(NamedTuple):
    """The causes of a run's time or gap, and the share of the gap that they leave; None without a gap."""

    causes: list[Cause]
    unexplained: float | None


def _attribute(
    runs: Sequence[ExplainedRun], other_side: OtherSide, published: Mapping[str, float], ratio: float | None
) -> _Attribution:
    """Share out the gap of runs, or their whole time if there is no gap, among the causes.

    Args:
        runs: the runs to explain.
        other_side: what the runs are compared with.
        published: what each cause costs a published row, as a share of its time, by the cause's name.
        ratio: the ratio of the explained rate to the expected one; None if it has none.
    """
    gap = _gap_of(ratio)
    if gap is not None and gap <= SLOW:
        gap = None
    remaining = 1.0
    if gap is not None:
        remaining = gap
    causes = []
    unmeasured: list[tuple[Kind, str]] = []
    for kind in CAUSES:
        costs = _find_costs(kind, runs, other_side)
        if any(found.cost.seconds is None for found in costs):
            unmeasured.append((kind, costs[0].cost.clause))
            continue
        # The time of the other side is `ratio` of that of the runs.
        expected = _expected_share(kind, other_side, published) * (ratio or 0.0)
        share = min(remaining, _mean_share(costs, len(runs)) - expected)
        if share < LEAST:
            continue
        remaining -= share
        largest = max((found.cost for found in costs), key=lambda cost: cost.seconds or 0.0)
        causes.append(_describe_cause(kind, share, _share_of_gap(share, gap), largest.clause))
    unexplained = _share_of_gap(remaining, gap)
    most: float | None = None
    if gap is not None:
        if remaining < LEAST:
            return _Attribution(causes, unexplained)
        most = remaining
    for kind, clause in unmeasured:
        causes.append(_describe_cause(kind, most, unexplained, clause, at_most=True))
    return _Attribution(causes, unexplained)


def _expected_share(kind: Kind, other_side: OtherSide, published: Mapping[str, float]) -> float:
    """Return the share of its own time that the other side lost to a cause; 0 if that is not known."""
    if other_side.runs:
        return _mean_share(_find_costs(kind, other_side.runs, other_side), len(other_side.runs))
    return published.get(kind.name, 0.0)


def _share_of_gap(share: float, gap: float | None) -> float | None:
    """Return a share of the time as a share of the gap; None without a gap."""
    if gap is None:
        return None
    return share / gap


def _describe_cause(
    kind: Kind, time: float | None, gap: float | None, clause: str, *, at_most: bool = False
) -> Cause:
    """Return a cause of this kind with its shares of the time and of the gap, and what the record shows."""
    return Cause(
        name=kind.name, title=kind.title, time=time, gap=gap, at_most=at_most, seen=clause, action=kind.action
    )


def _find_costs(kind: Kind, runs: Sequence[ExplainedRun], other_side: OtherSide) -> list[_CostInRun]:
    """Return the runs in which a cause was found, each with what it cost."""
    costs = []
    for run in runs:
        cost = kind.find(run, other_side)
        if cost is not None:
            costs.append(_CostInRun(run, cost))
    return costs


def _mean_share(costs: Sequence[_CostInRun], runs: int) -> float:
    """Return the share of the time that a cause cost, the mean over all `runs` runs."""
    shares = [max(0.0, found.cost.seconds or 0.0) / found.run.time for found in costs]
    return math.fsum(shares) / runs


def _explain_shares(result: VerifyResult, target: MetricResult | None, gap: float | None) -> str | None:
    """Return why the causes have shares of the run's own time and not of a gap; None if there is a gap."""
    if result.verdict is Verdict.INVALID:
        return f"{result.outcome}, so there is no gap; shares are of the run's own time, if its evidence is true"
    if target is None:
        return f"no rate has a ratio to the {result.against.kind}'s, so shares are of the run's own time"
    if gap is not None and gap <= SLOW and target.ratio is not None:
        ratio = f"{target.held_by} is at {target.ratio.value:.3f} of the {result.against.kind}'s"
        return f"{ratio}, so there is no gap, and shares are of the run's own time"
    return None


def _choose_target(result: VerifyResult) -> MetricResult | None:
    """Choose the rate to explain: the slow rate that counts most of the time, else the gate, else any rate.

    None if no rate has a ratio to an expected one.
    """
    # The rate of a job does not compare with that of another number of devices; only a rate per device does.
    devices_differ = any(condition.name == "devices" and condition.forbids for condition in result.differing)
    rates = []
    slow = []
    for metric in result.metrics:
        if metric.ratio is None or not metric.held_by.startswith(_RATES):
            continue
        if devices_differ and "per_device" not in metric.held_by:
            continue
        rates.append(metric)
        if 1 - metric.ratio.value > SLOW:
            slow.append(metric)
    for counts in (Counts.WHOLE, Counts.LOOP, Counts.CORE):
        for metric in slow:
            if _counted_time(metric.held_by) is counts:
                return metric
    for metric in rates:
        if result.gate in (metric.name, metric.held_by):
            return metric
    if rates:
        return rates[0]
    return None


def _counted_time(name: str) -> Counts:
    """Return the time that a rate counts, by its name."""
    if "whole" in name:
        return Counts.WHOLE
    if "core" in name:
        return Counts.CORE
    return Counts.LOOP


def _costs_of_row(result: VerifyResult, counts: Counts) -> Mapping[str, float]:
    """Return what data waits and evaluations cost a published row, as shares of the time that counts, by cause.

    They follow from its rates: one that counts the loop is lower than one that counts the device's steps by the share
    of data waits, and one that counts evaluations too is lower by their share. Empty if it has not enough rates.
    """
    if result.against.kind != "claim":
        return {}
    rates: dict[Counts, float] = {}
    for metric in result.metrics:
        if not metric.held_by.startswith(_RATES) or "per_device" in metric.name:
            continue
        if metric.expected.value > 0:
            rates.setdefault(_counted_time(metric.name), metric.expected.value)
    core = rates.get(Counts.CORE)
    loop = rates.get(Counts.LOOP)
    whole = rates.get(Counts.WHOLE)
    if loop is None:
        return {}
    costs: dict[str, float] = {}
    if core is not None and counts is not Counts.CORE:
        costs["data_wait"] = max(0.0, 1 - loop / core)
    if counts is not Counts.WHOLE:
        return costs
    if whole is None:
        return {}
    if "data_wait" in costs:
        costs["data_wait"] *= whole / loop
    costs["evaluation"] = max(0.0, 1 - whole / loop)
    return costs
