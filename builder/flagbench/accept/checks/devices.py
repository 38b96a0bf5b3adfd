"""The devices of a run compared with each other: the slowest in products, in memory and at its link to the host."""

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
"""The kinds of numbers in which each device has a rate of its own; a collective has one rate for all devices."""
MEDIAN_ERROR = 1.253
"""The standard error of a median over that of a mean, for normal values."""


@dataclass(frozen=True)
class PeerShares:
    """How fast each device is compared with the others, in one kind of number."""

    shares: tuple[float, ...]
    """By rank, the rate of a device over that of the others, the median of the measurements."""
    error: float
    """ERRORS standard errors of such a median."""

    @property
    def slowest(self) -> int:
        """The rank of the slowest device."""
        return min(range(len(self.shares)), key=self.shares.__getitem__)

    def below(self, limit: float) -> tuple[int, ...]:
        """The ranks that are below a limit, and below 1 by more than the error."""
        return tuple(rank for rank, share in enumerate(self.shares) if share < min(limit, 1 - self.error))


def peer_shares(measurements: Sequence[Measurement], kind: Kind) -> PeerShares | None:
    """How the devices of a run compare in one kind of number; None where no measurement of it names several."""
    of_kind = []
    for measurement in measurements:
        if len(measurement.devices) > 1 and kind_of_metric(measurement.name) == kind:
            of_kind.append(measurement)
    if not of_kind:
        return None
    by_rank = []
    for rank in range(len(of_kind[0].devices)):
        by_rank.append([share_of_others(measurement.devices, rank) for measurement in of_kind])
    # The spreads of a typical device, as the measurements of a single device may agree by chance.
    between = median(spread(shares) for shares in by_rank)
    within = median(measurement.spread / math.sqrt(measurement.repeats) for measurement in of_kind)
    error = ERRORS * MEDIAN_ERROR * math.hypot(between, within) / math.sqrt(len(of_kind))
    return PeerShares(tuple(median(shares) for shares in by_rank), error)


def device_shares(record: Record) -> list[float | None]:
    """For each device of a node, its rate over that of the others, the median of all measurements.

    None for a device that no measurement compares with others.
    """
    rates_by_measurement = []
    for measurement in record.measurements:
        if len(measurement.devices) > 1:
            rates_by_measurement.append(measurement.devices)
    shares: list[float | None] = []
    for rank in range(len(record.system.devices)):
        shares_of_rank = [share_of_others(rates, rank) for rates in rates_by_measurement if rank < len(rates)]
        if shares_of_rank:
            shares.append(median(shares_of_rank))
        else:
            shares.append(None)
    return shares


def peer_checks(
    record: Record, history: Sequence[Record], limits: Sequence[AcceptanceLimit], disturbance: str
) -> Iterator[AcceptanceCheck]:
    """Whether each device is as fast as the others, by kind of number; nothing for a device alone.

    Args:
        history: earlier runs of this machine, which may name the same device.
        disturbance: what else used the machine, which may have slowed one device alone.
    """
    if record.system.nodes * record.system.devices_per_node == 1:
        return
    if not any(len(measurement.devices) > 1 for measurement in record.measurements):
        reason = "nothing was measured on all devices"
        yield not_known("devices alike", record.case, "the other devices", reason)
        return
    if len({device.name for device in record.system.devices}) > 1:
        yield not_known("devices alike", record.case, "the other devices", "they are of several models")
        return
    for kind in KINDS:
        limit = limit_for(limits, kind, "peers")
        peers = peer_shares(record.measurements, kind)
        if limit is not None and peers is not None:
            yield _alike(record, kind, peers, limit, history, disturbance)


def _alike(
    record: Record,
    kind: Kind,
    peers: PeerShares,
    limit: AcceptanceLimit,
    history: Sequence[Record],
    disturbance: str,
) -> AcceptanceCheck:
    slowest = peers.slowest
    measured = f"rank {slowest} reaches {peers.shares[slowest]:.0%} of the others"
    failed: tuple[int, ...] = ()
    if limit.fail_below is not None:
        failed = peers.below(limit.fail_below)
    slow = peers.below(limit.inconclusive_below)
    outcome = Outcome.PASS
    reason = ""
    if failed and disturbance and not _confined(record, failed):
        outcome = Outcome.INCONCLUSIVE
        reason = f"{_ranks_text(failed, peers)}, beside {disturbance}"
    elif failed:
        outcome = Outcome.FAIL
        reason = _ranks_text(failed, peers)
    elif slow:
        outcome = Outcome.INCONCLUSIVE
        reason = f"{_ranks_text(slow, peers)}, which sound devices can differ by"
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


def _ranks_text(ranks: Sequence[int], peers: PeerShares) -> str:
    return ", ".join(f"rank {rank} reaches {peers.shares[rank]:.0%} of the others" for rank in ranks)


def _slow_before(
    record: Record, ranks: Sequence[int], history: Sequence[Record], kind: Kind, limit: AcceptanceLimit
) -> str:
    """`rank 5 was slow in 2 of 3 earlier runs, too` if the device of a rank was; else an empty text."""
    uuids = uuid_by_rank(record)
    sentences = []
    for rank in ranks:
        count = 0
        for earlier in history:
            peers = peer_shares(earlier.measurements, kind)
            if peers is None:
                continue
            earlier_uuids = uuid_by_rank(earlier)
            slow = {earlier_uuids.get(slow_rank) for slow_rank in peers.below(limit.inconclusive_below)}
            if uuids.get(rank) in slow - {None}:
                count += 1
        if count:
            sentences.append(f"rank {rank} was slow in {count} of {len(history)} earlier runs, too")
    return ", ".join(sentences)


def _confined(record: Record, ranks: Sequence[int]) -> bool:
    """Whether a slow rank on a processor may use fewer processors than another rank, which explains its speed."""
    if record.stack != "cpu":
        return False
    allowed = {rank.rank: rank.processors for rank in record.ranks if rank.processors}
    most = max(allowed.values(), default=0)
    return any(allowed.get(rank, math.inf) < most for rank in ranks)


def uuid_by_rank(record: Record) -> Mapping[int, str]:
    """The UUID of the device of each rank, as far as the record has it."""
    return {rank.rank: rank.uuid for rank in record.ranks if rank.uuid}
