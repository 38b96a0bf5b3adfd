"""The devices of a run beside each other: the slowest in products, in memory and at its link to the host."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from flagbench.accept.check import AcceptanceCheck, Outcome, not_known
from flagbench.accept.checks.numbers import kind_of_metric, limit_for
from flagbench.manifests.limits import AcceptanceLimit, Kind
from flagbench.records.model import Measurement, Record
from flagbench_core.evidence.roofs import spread
from flagbench_core.evidence.slow_devices import ERRORS, share_of_others

KINDS: tuple[Kind, ...] = ("product", "memory", "host-link")
"""Of which each device has a rate of its own; a collective has one of all."""
MEDIAN_ERROR = 1.253
"""The standard error of a median over that of a mean, for normal values."""


@dataclass(frozen=True)
class PeerShares:
    """Of each device, by rank, the median share of the others' rate over the measurements of one kind."""

    shares: tuple[float, ...]
    error: float
    """ERRORS standard errors of such a median."""

    @property
    def slowest(self) -> int:
        """The rank of the slowest device."""
        return min(range(len(self.shares)), key=self.shares.__getitem__)

    def below(self, limit: float) -> tuple[int, ...]:
        """The ranks that are below a limit by more than the error."""
        return tuple(rank for rank, share in enumerate(self.shares) if share < min(limit, 1 - self.error))


def peer_shares(measurements: Sequence[Measurement], kind: Kind) -> PeerShares | None:
    """How the devices of a run compare in one kind of number; None where no measurement of it names several."""
    measured = [one for one in measurements if len(one.devices) > 1 and kind_of_metric(one.name) == kind]
    if not measured:
        return None
    by_rank = []
    for rank in range(len(measured[0].devices)):
        by_rank.append([share_of_others(one.devices, rank) for one in measured])
    # Of a typical device, between measurements and within them: those of a single one may agree by chance.
    between = median(spread(shares) for shares in by_rank)
    within = median(one.spread / math.sqrt(one.repeats) for one in measured)
    error = ERRORS * MEDIAN_ERROR * math.hypot(between, within) / math.sqrt(len(measured))
    return PeerShares(tuple(median(shares) for shares in by_rank), error)


def device_shares(record: Record) -> list[float | None]:
    """Of each device of a node, the median share of the others' rate over all measurements; None for one alone."""
    measured = [one.devices for one in record.measurements if len(one.devices) > 1]
    shares: list[float | None] = []
    for rank in range(len(record.system.devices)):
        of_rank = [share_of_others(rates, rank) for rates in measured if rank < len(rates)]
        shares.append(median(of_rank) if of_rank else None)
    return shares


def peer_checks(
    record: Record, history: Sequence[Record], limits: Sequence[AcceptanceLimit], disturbed: str
) -> Iterator[AcceptanceCheck]:
    """Whether each device is as fast as the others, by kind of number; nothing for a device alone.

    Args:
        history: earlier runs of this machine, which may name the same device.
        disturbed: what else used the machine, which may have slowed one device alone.
    """
    if record.system.nodes * record.system.devices_per_node == 1:
        return
    if not any(len(one.devices) > 1 for one in record.measurements):
        reason = "nothing was measured on all devices"
        yield not_known("devices alike", record.case, "the other devices", reason)
        return
    if len({device.name for device in record.system.devices}) > 1:
        yield not_known("devices alike", record.case, "the other devices", "they are of several models")
        return
    for kind in KINDS:
        limit, compared = limit_for(limits, kind, "peers"), peer_shares(record.measurements, kind)
        if limit is not None and compared is not None:
            yield _alike(record, kind, compared, limit, history, disturbed)


def _alike(
    record: Record,
    kind: Kind,
    compared: PeerShares,
    limit: AcceptanceLimit,
    history: Sequence[Record],
    disturbed: str,
) -> AcceptanceCheck:
    slowest = compared.slowest
    measured = f"rank {slowest} reaches {compared.shares[slowest]:.0%} of the others"
    failed: tuple[int, ...] = ()
    if limit.fail_below is not None:
        failed = compared.below(limit.fail_below)
    slow = compared.below(limit.inconclusive_below)
    outcome, reason = Outcome.PASS, ""
    if slow:
        outcome, reason = Outcome.INCONCLUSIVE, f"{_named(slow, compared)}, which sound devices can differ by"
    if failed:
        outcome, reason = Outcome.FAIL, _named(failed, compared)
    if failed and disturbed and not _confined(record, failed):
        outcome, reason = Outcome.INCONCLUSIVE, f"{_named(failed, compared)}, beside {disturbed}"
    repeated = _slow_before(record, failed or slow, history, kind, limit)
    if repeated:
        reason = f"{reason}; {repeated}"
    return AcceptanceCheck(
        name=f"{kind} alike",
        part=record.case,
        outcome=outcome,
        measured=measured,
        against="the other devices",
        limit=_limit_text(limit),
        limit_id=limit.id,
        kind=kind,
        reference=limit.against,
        reason=reason,
        ranks=failed or slow,
    )


def _limit_text(limit: AcceptanceLimit) -> str:
    text = f"none slower by {1 - limit.inconclusive_below:.0%} and three standard errors"
    if limit.fail_below is None:
        return text
    return f"{text}; by {1 - limit.fail_below:.0%} to fail"


def _named(ranks: Sequence[int], compared: PeerShares) -> str:
    return ", ".join(f"rank {rank} reaches {compared.shares[rank]:.0%} of the others" for rank in ranks)


def _slow_before(
    record: Record, ranks: Sequence[int], history: Sequence[Record], kind: Kind, limit: AcceptanceLimit
) -> str:
    """That earlier runs name the same device, `rank 5 was slow in 2 of 3 earlier runs, too`; or nothing."""
    uuids = uuid_by_rank(record)
    sentences = []
    for rank in ranks:
        count = 0
        for earlier in history:
            compared = peer_shares(earlier.measurements, kind)
            if compared is None:
                continue
            before = uuid_by_rank(earlier)
            slow = {before.get(other) for other in compared.below(limit.inconclusive_below)}
            count += uuids.get(rank) in slow - {None}
        if count:
            sentences.append(f"rank {rank} was slow in {count} of {len(history)} earlier runs, too")
    return ", ".join(sentences)


def _confined(record: Record, ranks: Sequence[int]) -> bool:
    """Whether a slow rank of a processor may use fewer processors than another one: then it is slow by its place, not
    by chance."""
    if record.stack != "cpu":
        return False
    allowed = {rank.rank: rank.processors for rank in record.ranks if rank.processors}
    most = max(allowed.values(), default=0)
    return any(allowed.get(rank, math.inf) < most for rank in ranks)


def uuid_by_rank(record: Record) -> Mapping[int, str]:
    """The device of each rank, as far as the record names it."""
    return {rank.rank: rank.uuid for rank in record.ranks if rank.uuid}
