"""Checks the laps of a soak: whether a device became slower between the early laps and the last ones.

A soak repeats the same measurements in laps, to find faults that appear under load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from flagbench.accept.check import AcceptanceCheck, Outcome, not_known
from flagbench.accept.checks.devices import KINDS
from flagbench.accept.checks.numbers import kind_of_metric, limit_for
from flagbench.manifests.limits import AcceptanceLimit, Kind
from flagbench.records.model import Record
from flagbench_core.evidence.drift import lap_drifts


def soak_checks(record: Record, limits: Sequence[AcceptanceLimit], disturbance: str) -> Iterator[AcceptanceCheck]:
    """Check for each kind of number whether the last laps are as fast as the early ones.

    The limits are those between devices.

    Args:
        record: the soak.
        limits: the limits of the acceptance.
        disturbance: other uses of the machine during the soak, in words, which may have slowed it; or empty.
    """
    if not record.laps:
        return
    drifts = lap_drifts([lap.rates for lap in record.laps])
    if drifts is None:
        yield not_known("laps alike", record.case, "the second lap", f"{len(record.laps)} laps show no drift")
        return
    for kind in KINDS:
        limit = limit_for(limits, kind, "peers")
        shares = _shares_by_rank(drifts, kind)
        if limit is not None and shares:
            yield _drift_check(record, kind, shares, limit, disturbance)


def _shares_by_rank(drifts: Mapping[str, Sequence[float]], kind: Kind) -> list[float]:
    """By rank, the late rate of a device over its early one: the median of the measurements of a kind."""
    ratios_by_measurement = [ratios for name, ratios in drifts.items() if kind_of_metric(name) == kind]
    return [median(ratios_of_rank) for ratios_of_rank in zip(*ratios_by_measurement, strict=True)]


def _drift_check(
    record: Record, kind: Kind, shares: list[float], limit: AcceptanceLimit, disturbance: str
) -> AcceptanceCheck:
    """The check of one kind of number. A failed rank is inconclusive if another use of the machine may explain it."""
    slowest = shares.index(min(shares))
    slow = tuple(rank for rank, share in enumerate(shares) if share < limit.inconclusive_below)
    failed: tuple[int, ...] = ()
    if limit.fail_below is not None:
        failed = tuple(rank for rank, share in enumerate(shares) if share < limit.fail_below)
    outcome = Outcome.PASS
    reason = ""
    if slow:
        outcome = Outcome.INCONCLUSIVE
        reason = ", ".join(f"rank {rank} ended at {shares[rank]:.0%} of its early rate" for rank in slow)
    if failed and not disturbance:
        outcome = Outcome.FAIL
    if failed and disturbance:
        reason = f"{reason}, beside {disturbance}"
    return AcceptanceCheck(
        name=f"{kind} over laps",
        part=record.case,
        outcome=outcome,
        measured=f"rank {slowest} ended at {shares[slowest]:.0%} after {len(record.laps)} laps",
        against="its early laps",
        limit=f"at least {limit.inconclusive_below:.0%}",
        limit_id=limit.id,
        kind=kind,
        reason=reason,
        ranks=failed or slow,
    )
