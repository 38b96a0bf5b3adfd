"""The gap between a run and what it is compared with, its causes in order, and what they leave unexplained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flagbench.manifests.model import Case
from flagbench.records.model import Record
from flagbench.verdict.explain.losses import MEASURED, Loss, Measured, ceiling, precision
from flagbench.verdict.explain.result import Cause, Explanation
from flagbench.verdict.explain.run import CORE, LOOP, WHOLE, Run, open_run
from flagbench.verdict.explain.suspects import SUSPECTS
from flagbench.verdict.result import MetricResult, Verdict, VerifyResult
from flagbench_core.evidence import EvidenceError

SLOW = 0.01
"""A rate that is lower by less is not slow: runs of one machine differ by as much."""
LEAST = 0.005
"""Of the run's time; a cause that cost less is left out."""
_RATES = ("p_", "tokens_per_second")
_PRECISION = (
    "precision",
    "a slower precision (TF32 off)",
    "run with the precision of the row (`--precision`), and unset NVIDIA_TF32_OVERRIDE",
)
_CEILING = (
    "low_ceiling",
    "a slow device",
    "run the case on each device alone, and compare their names, clocks, MIG slices and ECC (`nvidia-smi -q`)",
)


def explain(
    records: Sequence[Record], result: VerifyResult, case: Case, baseline: Sequence[Record] = ()
) -> Explanation:
    """Why the runs of a verdict are slow.

    Args:
        records: the runs that the verdict is on, of one configuration.
        result: the verdict.
        baseline: the runs of the other side, if they were compared with a baseline.

    A cause's share of the time is the mean over the runs. What the other side loses to the same cause is subtracted:
    a baseline's by its evidence, a published row's data waits and evaluations by its own rates.
    """
    try:
        return _explained(records, result, case, baseline)
    except EvidenceError as error:
        return _nothing(f"its evidence contradicts itself: {error}")
    except ArithmeticError:  # an INVALID record may have any numbers
        return _nothing("its evidence has numbers that nothing can be computed from")


def _explained(
    records: Sequence[Record], result: VerifyResult, case: Case, baseline: Sequence[Record]
) -> Explanation:
    """As `explain`. Raises EvidenceError, and ArithmeticError for numbers that no run has."""
    opened, there = ([open_run(record, case) for record in side] for side in (records, baseline))
    runs = [run for run in opened if run is not None]
    if not runs or len(runs) < len(opened):
        return _nothing("a record has no evidence of steps")
    target = _target(result)
    counts = _counts(target.held_by) if target else _widest(runs)
    ratio = target.ratio.value if target and target.ratio else None
    # Without a ratio it is work of another kind, whose times per step say nothing of this run's.
    base = [run for run in there if run is not None and ratio is not None]
    gap = None if ratio is None else max(0.0, 1 - ratio)
    losses = _losses(runs, base, result, counts, ratio)
    measured = sum(share for _, share, _ in losses)
    causes = [_cause(how, share, seen, gap) for how, share, seen in losses]
    left = None if gap is None else max(0.0, gap - measured)
    causes += _suspected(runs[0], base, result, gap, left)
    return Explanation(
        metric=target.held_by if target else None,
        ratio=ratio,
        gap=gap,
        causes=tuple(sorted(causes, key=lambda cause: -(cause.time or 0.0))),
        unexplained=left / gap if gap and left is not None else None,
        reason=_reason(result, target, gap),
    )


def _nothing(reason: str) -> Explanation:
    return Explanation(metric=None, ratio=None, gap=None, causes=(), unexplained=None, reason=reason)


def _reason(result: VerifyResult, target: MetricResult | None, gap: float | None) -> str | None:
    if result.verdict is Verdict.INVALID:
        return "the record is INVALID, so there is no gap; shares are of the run's own time, if its evidence is true"
    if target is None:
        return f"no rate has a ratio to the {result.against.kind}'s, so shares are of the run's own time"
    if gap is not None and gap <= SLOW:
        return f"{target.held_by} is not below the {result.against.kind}'s by more than {SLOW:.0%}"
    return None


def _target(result: VerifyResult) -> MetricResult | None:
    """The rate to explain: of the slow ones, that which counts most of the time, else the gate or another rate."""
    rates = [m for m in result.metrics if m.ratio is not None and m.held_by.startswith(_RATES)]
    order = (WHOLE, LOOP, CORE)
    slow = [m for m in rates if m.ratio is not None and 1 - m.ratio.value > SLOW]
    found = sorted(slow, key=lambda m: order.index(_counts(m.held_by)))
    gate = [m for m in rates if result.gate in (m.name, m.held_by)]
    return next(iter((*found, *gate, *rates)), None)


def _counts(name: str) -> str:
    """What a rate counts, by its name."""
    return WHOLE if "whole" in name else CORE if "core" in name else LOOP


def _widest(runs: Sequence[Run]) -> str:
    """Without a rate to explain: all of the time, where the run was the published one."""
    return WHOLE if all(run.record.metric("p_whole") for run in runs) else LOOP


_Found = tuple[tuple[str, str, str], float, str]
"""A cause's name, title and action, its share of the time, and what was seen."""


def _losses(
    runs: Sequence[Run], base: Sequence[Run], result: VerifyResult, counts: str, ratio: float | None
) -> list[_Found]:
    """Each measured cause that cost the runs more than it cost the other side."""
    published = _published(result) if result.against.kind == "claim" else {}
    found: list[_Found] = []

    def add(how: tuple[str, str, str], losses: Sequence[Loss | None], elsewhere: float) -> None:
        known = [loss for loss in losses if loss is not None]
        if not known:
            return
        share = sum(max(0.0, loss.share) for loss in known) / len(losses) - elsewhere
        if share >= LEAST:
            found.append((how, min(share, 1.0), max(known, key=lambda loss: loss.share).seen))

    for cause in MEASURED:
        elsewhere = _mean(base, cause, counts) if base else published.get((cause.name, counts), 0.0)
        losses = [cause.find(run, counts) for run in runs]
        add((cause.name, cause.title, cause.action), losses, elsewhere * (ratio or 0.0))
    slower = [precision(run, counts, result.conditions) for run in runs]
    add(_PRECISION, slower, 0.0)
    if not any(slower):
        add(_CEILING, [ceiling(run, counts, base) for run in runs], 0.0)
    return found


def _mean(runs: Sequence[Run], cause: Measured, counts: str) -> float:
    """The share of the time that a cause cost, the mean over the runs."""
    found = [cause.find(run, counts) for run in runs]
    return math.fsum(max(0.0, loss.share) for loss in found if loss) / len(found)


def _published(result: VerifyResult) -> Mapping[tuple[str, str], float]:
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


def _cause(how: tuple[str, str, str], share: float, seen: str, gap: float | None) -> Cause:
    name, title, action = how
    of_gap = min(1.0, share / gap) if gap else None
    return Cause(name=name, title=title, time=share, gap=of_gap, seen=seen, action=action)


def _suspected(
    run: Run, base: Sequence[Run], result: VerifyResult, gap: float | None, left: float | None
) -> list[Cause]:
    """What costs time by an amount that nobody measured."""
    found = []
    for suspect in SUSPECTS:
        seen = suspect.see(run, base, result.conditions)
        pointless = suspect.relative if left is None else left < LEAST
        if seen is None or pointless:
            continue
        found.append(
            Cause(
                name=suspect.name,
                title=suspect.title,
                time=left,
                gap=left / gap if gap and left is not None else None,
                at_most=True,
                seen=seen,
                action=suspect.action,
            )
        )
    return found
