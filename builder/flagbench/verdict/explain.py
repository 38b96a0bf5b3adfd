"""Why a run is slow: the gap between it and what it is compared with, the causes, and what they leave unexplained.

A run that is as fast as expected, or faster, has no gap: the same causes are then shares of its own time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from flagbench.manifests.model import Case
from flagbench.manifests.rows import Claim
from flagbench.records.model import Record
from flagbench.verdict.causes import CAUSES, CORE, LOOP, WHOLE, Cost, ExplainedRun, Kind, Other, open_run, steady
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
    """Why a run is slow, or where its time went if it is not, or was compared with nothing comparable."""

    metric: str | None = None
    """The rate that is explained: of those that are below what is expected, the one that counts most of the time."""
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
    """What the roofs of the runs say of their machine; None without roofs."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = to_builtins(self)
        return found


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
    target = _target(result)
    counts = WHOLE if all(record.metric("p_whole") for record in records) else LOOP
    if target:
        counts = _counts(target.held_by)
    ratio = target.ratio.value if target and target.ratio else None
    gap = None if ratio is None else max(0.0, 1 - ratio)
    opened, there = ([open_run(record, case, counts) for record in side] for side in (records, baseline))
    runs = [run for run in opened if run is not None]
    if not runs or len(runs) < len(opened):
        if case.kind == MEASURE:
            return Explanation(reason="roofs have no steps; `flagbench report RECORD` shows them against the peaks")
        return Explanation(reason="a record has no evidence of steps")
    # Without a ratio it is work of another kind, whose times per step say nothing of this run's.
    others = [run for run in there if run is not None and ratio is not None]
    agree = steady(runs) and (not others or steady(others))
    other = Other(others, result.conditions, agree, reachable(records[0], case, claims))
    waits = _published_costs(result) if result.against.kind == "claim" else {}

    causes, unmeasured = [], []
    lost = gap if gap is not None and gap > SLOW else None  # None: shares are of the run's own time
    left = 1.0 if lost is None else lost  # what is measured directly comes first, and takes its part
    for kind in CAUSES:
        costs = _find(kind, runs, other)
        if any(cost.seconds is None for _, cost in costs):
            unmeasured.append((kind, costs[0][1].seen))
            continue
        elsewhere = waits.get((kind.name, counts), 0.0)
        if other.runs:
            elsewhere = _share(_find(kind, other.runs, other), len(other.runs))
        share = min(left, _share(costs, len(runs)) - elsewhere * (ratio or 0.0))
        if share >= LEAST:
            left -= share
            seen = max(costs, key=lambda found: found[1].seconds or 0.0)[1].seen
            causes.append(_cause(kind, share, share / lost if lost else None, seen))
    unexplained = left / lost if lost else None
    if lost is None or left >= LEAST:
        rest = None if lost is None else left
        causes += [_cause(kind, rest, unexplained, seen, at_most=True) for kind, seen in unmeasured]
    return Explanation(
        metric=target.held_by if target else None,
        ratio=ratio,
        gap=gap,
        causes=tuple(sorted(causes, key=lambda cause: -(cause.time or 0.0))),
        unexplained=unexplained,
        reason=_reason(result, target, gap),
        machine=judge_machine(records, case, baseline if others else (), claims),
    )


def _cause(kind: Kind, time: float | None, gap: float | None, seen: str, *, at_most: bool = False) -> Cause:
    return Cause(name=kind.name, title=kind.title, time=time, gap=gap, at_most=at_most, seen=seen, action=kind.action)


def _find(kind: Kind, runs: Sequence[ExplainedRun], other: Other) -> list[tuple[ExplainedRun, Cost]]:
    """What a cause cost each of the runs that it was found in."""
    return [(run, cost) for run in runs if (cost := kind.find(run, other))]


def _share(costs: Sequence[tuple[ExplainedRun, Cost]], runs: int) -> float:
    """The share of the time that a cause cost, the mean over all runs."""
    return math.fsum(max(0.0, cost.seconds or 0.0) / run.time for run, cost in costs) / runs


def _reason(result: VerifyResult, target: MetricResult | None, gap: float | None) -> str | None:
    if result.verdict is Verdict.INVALID:
        what = f"{result.outcome}, so there is no gap"
        return f"{what}; shares are of the run's own time, if its evidence is true"
    if target is None:
        return f"no rate has a ratio to the {result.against.kind}'s, so shares are of the run's own time"
    if gap is not None and gap <= SLOW and target.ratio is not None:
        found = f"{target.held_by} is at {target.ratio.value:.3f} of the {result.against.kind}'s"
        return f"{found}, so there is no gap, and shares are of the run's own time"
    return None


def _target(result: VerifyResult) -> MetricResult | None:
    """The rate to explain: of the slow ones, that which counts most of the time, else the gate or another rate."""
    rates = [m for m in result.metrics if m.ratio is not None and m.held_by.startswith(_RATES)]
    if any(c.name == "devices" and c.forbids for c in result.differing):  # eight devices say nothing of one's time
        rates = [m for m in rates if "per_device" in m.held_by]
    order = (WHOLE, LOOP, CORE)
    slow = [m for m in rates if m.ratio is not None and 1 - m.ratio.value > SLOW]
    found = sorted(slow, key=lambda m: order.index(_counts(m.held_by)))
    gate = [m for m in rates if result.gate in (m.name, m.held_by)]
    return next(iter((*found, *gate, *rates)), None)


def _counts(name: str) -> str:
    """What a rate counts, by its name."""
    return WHOLE if "whole" in name else CORE if "core" in name else LOOP


def _published_costs(result: VerifyResult) -> Mapping[tuple[str, str], float]:
    """What a row's own rates say of its data waits and evaluations, as shares of what each rate counts."""
    rates: dict[str, float] = {}
    for metric in result.metrics:
        if metric.held_by.startswith(_RATES) and metric.expected.value > 0 and "per_device" not in metric.name:
            rates.setdefault(_counts(metric.name), metric.expected.value)
    core, loop, whole = (rates.get(name) for name in (CORE, LOOP, WHOLE))
    found: dict[tuple[str, str], float] = {}
    if core and loop:
        found["data_wait", LOOP] = max(0.0, 1 - loop / core)
        if whole:
            found["data_wait", WHOLE] = found["data_wait", LOOP] * whole / loop
    if loop and whole:
        found["evaluation", WHOLE] = max(0.0, 1 - whole / loop)
    return found
