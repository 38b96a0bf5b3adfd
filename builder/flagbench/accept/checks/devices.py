"""Compares the devices of a run with each other: in matmuls, in memory bandwidth and at their links to the host."""

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
"""The kinds of numbers that are measured on each device alone. A collective has one rate for all devices together."""
MEDIAN_ERROR = 1.253
"""The standard error of a median over that of a mean, for many normal values: sqrt(pi / 2)."""


@dataclass(frozen=True)
class PeerShares:
    """How fast each device is compared with the others, in one kind of number."""

    shares: tuple[float, ...]
    """By rank, the rate of a device over that of the others: the median of the measurements."""
    error: float
    """The error of such a median: ERRORS times its standard error."""

    @property
    def slowest(self) -> int:
        """The rank of the slowest device."""
        return self.shares.index(min(self.shares))

    def ranks_below(self, limit: float) -> tuple[int, ...]:
        """The ranks whose share is below a limit, and below 1 by more than the error."""
        threshold = min(limit, 1 - self.error)
        return tuple(rank for rank, share in enumerate(self.shares) if share < threshold)


def peer_shares(measurements: Sequence[Measurement], kind: Kind) -> PeerShares | None:
    """How the devices of a run compare in one kind of number; None if it was not measured on several devices."""
    of_kind = []
    for measurement in measurements:
        if len(measurement.devices) > 1 and kind_of_metric(measurement.name) == kind:
            of_kind.append(measurement)
    if not of_kind:
        return None
    shares_by_rank = []
    for rank in range(len(of_kind[0].devices)):
        shares_by_rank.append([share_of_others(measurement.devices, rank) for measurement in of_kind])
    # The spread between the measurements of a device: that of a typical one, as those of one may agree by chance.
    spread_between = median(spread(shares) for shares in shares_by_rank)
    # The error that each measurement has from the spread of its repeats.
    error_within = median(measurement.spread / math.sqrt(measurement.repeats) for measurement in of_kind)
    standard_error = MEDIAN_ERROR * math.hypot(spread_between, error_within) / math.sqrt(len(of_kind))
    medians = tuple(median(shares) for shares in shares_by_rank)
    return PeerShares(medians, ERRORS * standard_error)


def device_shares(record: Record) -> list[float | None]:
    """For each device of a node, its rate over that of the others: the median of all measurements.

    None for a device that was not compared with others.
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
    """Check for each kind of number whether every device is as fast as the others; no checks for a single device.

    Args:
        record: the run.
        history: earlier runs of this machine. The reason of a check says if they show the same slow device.
        limits: the limits of the acceptance.
        disturbance: other uses of the machine during the run, in words, which may have slowed one device; or empty.
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
            yield _peer_check(record, kind, peers, limit, history, disturbance)


def _peer_check(
    record: Record,
    kind: Kind,
    peers: PeerShares,
    limit: AcceptanceLimit,
    history: Sequence[Record],
    disturbance: str,
) -> AcceptanceCheck:
    """The check of one kind of number. A failed rank is inconclusive if another use of the machine may explain it."""
    failed: tuple[int, ...] = ()
    if limit.fail_below is not None:
        failed = peers.ranks_below(limit.fail_below)
    slow = peers.ranks_below(limit.inconclusive_below)
    outcome = Outcome.PASS
    reason = ""
    if failed and disturbance and not _has_fewer_processors(record, failed):
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
        measured=_ranks_text([peers.slowest], peers),
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
    """`rank 5 was slow in 2 of 3 earlier runs, too`, for the ranks whose devices were slow before; else empty."""
    uuids = uuid_by_rank(record)
    sentences = []
    for rank in ranks:
        uuid = uuids.get(rank)
        count = 0
        for earlier in history:
            if uuid is not None and uuid in _slow_uuids(earlier, kind, limit):
                count += 1
        if count:
            sentences.append(f"rank {rank} was slow in {count} of {len(history)} earlier runs, too")
    return ", ".join(sentences)


def _slow_uuids(record: Record, kind: Kind, limit: AcceptanceLimit) -> set[str]:
    """The UUIDs of the devices that were slow in a run."""
    peers = peer_shares(record.measurements, kind)
    if peers is None:
        return set()
    uuids = uuid_by_rank(record)
    return {uuids[rank] for rank in peers.ranks_below(limit.inconclusive_below) if rank in uuids}


def _has_fewer_processors(record: Record, ranks: Sequence[int]) -> bool:
    """Whether a slow rank of a run on a processor may use fewer processors than another rank.

    That explains its speed, whatever else used the machine.
    """
    if record.stack != "cpu":
        return False
    processors = {rank.rank: rank.processors for rank in record.ranks if rank.processors}
    most = max(processors.values(), default=0)
    return any(processors.get(rank, math.inf) < most for rank in ranks)


def uuid_by_rank(record: Record) -> Mapping[int, str]:
    """The UUID of the device of each rank; ranks without a UUID in the record are missing."""
    return {rank.rank: rank.uuid for rank in record.ranks if rank.uuid}
