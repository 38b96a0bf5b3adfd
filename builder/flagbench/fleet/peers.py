"""Compares the speed of nodes with each other, and the change since their own last run with that of the others.

Nodes are peers if they ran the same case on the same stack and device model, with the same settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flagbench.fleet.node_run import NodeRun
from flagbench.fleet.result import Action, ComparedNumber, ComparedValue, Finding, Source
from flagbench.fleet.spread import Middle, clipped_middle, limit_in_spreads
from flagbench.manifests.limits import FleetLimits, Kind, PeerLimit

_SOUND_TOO = {
    "host-link": "the link of one sound machine can differ by this from run to run",
    "collective": "sound nodes can differ by this",
}
"""What a finding adds that is no reason to drain a node, by the kind of the number."""
_SOUND_CHIPS_TOO = "sound chips can differ by this"
"""What it adds for other kinds."""


@dataclass(frozen=True)
class Excuses:
    """Why nodes may be slow without a fault of their own; such nodes are not drained for their speed."""

    disturbances: Mapping[str, str]
    """What slowed a node for a time, by its name."""
    differences: Mapping[str, str]
    """How its software or hardware differs from that of most nodes, by its name; it does not count for the middle."""

    def of(self, host: str) -> str:
        """Return the excuse of a node; empty if it has none."""
        return self.disturbances.get(host) or self.differences.get(host, "")


@dataclass(frozen=True)
class Comparison:
    """The numbers that were compared between nodes, and what was found."""

    compared: tuple[ComparedNumber, ...] = ()
    values: tuple[tuple[str, ComparedValue], ...] = ()
    """Each number of each node that was compared with its peers, with the node's name."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class _Number:
    """One number on several nodes."""

    metric: str
    kind: Kind
    amounts: Mapping[str, float]
    """The number by the name of the node; or the change since its last run, as a ratio."""
    ranks: Mapping[str, int | None]
    """The rank of the device that it is of, by the name of the node."""

    @property
    def is_slowest_of_several(self) -> bool:
        """Whether it is the number of the slowest of several devices, whose distribution has a longer lower tail."""
        return any(rank is not None for rank in self.ranks.values())


def compare_with_peers(runs: Mapping[str, NodeRun], excuses: Excuses, limits: FleetLimits) -> Comparison:
    """Compare nodes with each other; `runs` has one sound run of each node, all of the same settings."""
    numbers = []
    for metric in _metrics(runs):
        amounts: dict[str, float] = {}
        ranks: dict[str, int | None] = {}
        kind: Kind = "case"
        for host, run in runs.items():
            if metric in run.values:
                value = run.values[metric]
                kind = value.kind
                amounts[host] = value.amount
                ranks[host] = value.rank
        numbers.append(_Number(metric, kind, amounts, ranks))
    return _compare(numbers, excuses, limits, Source.PEERS, runs)


def compare_with_last_runs(
    runs: Mapping[str, NodeRun], last_runs: Mapping[str, NodeRun], excuses: Excuses, limits: FleetLimits
) -> Comparison:
    """Compare the change of each node since its last run with the change of the others.

    What all nodes changed by, such as after an update, is not held against one of them.

    Args:
        runs: one sound run of each node, all of the same settings.
        last_runs: an earlier sound run of the same settings and devices, of those nodes that have one.
    """
    updated = [host for host, last in last_runs.items() if last.properties != runs[host].properties]
    differences = dict(excuses.differences)
    if 2 * len(updated) <= len(last_runs):  # otherwise most nodes were updated, and the change of all includes it
        for host in updated:
            differences[host] = "its software or hardware has changed since"
    numbers = []
    for metric in _metrics(last_runs):
        number = _changes(metric, runs, last_runs)
        if number is not None:
            numbers.append(number)
    return _compare(numbers, Excuses(excuses.disturbances, differences), limits, Source.LAST_RUN, runs)


def _changes(metric: str, runs: Mapping[str, NodeRun], last_runs: Mapping[str, NodeRun]) -> _Number | None:
    """The change of a number since the last run of each node, as a ratio; None if no node has both."""
    changes: dict[str, float] = {}
    ranks: dict[str, int | None] = {}
    kind: Kind | None = None
    for host, last_run in last_runs.items():
        before = last_run.values.get(metric)
        now = runs[host].values.get(metric)
        if before is None or now is None or before.amount <= 0:
            continue
        changes[host] = now.amount / before.amount
        ranks[host] = now.rank
        kind = now.kind
    if kind is None:
        return None
    return _Number(metric, kind, changes, ranks)


def _metrics(runs: Mapping[str, NodeRun]) -> list[str]:
    """The names of all numbers of the runs."""
    metrics: set[str] = set()
    for run in runs.values():
        metrics.update(run.values)
    return sorted(metrics)


def _compare(
    numbers: Sequence[_Number], excuses: Excuses, limits: FleetLimits, source: Source, runs: Mapping[str, NodeRun]
) -> Comparison:
    """Compare each number between the nodes. Numbers of too few nodes are left out."""
    compared: dict[str, ComparedNumber] = {}
    values: list[tuple[str, ComparedValue]] = []
    first = next(iter(runs.values()))
    for number in numbers:
        limit = limits.limit(number.kind, processor=first.on_processor)
        peers = [amount for host, amount in number.amounts.items() if host not in excuses.differences]
        if limit is None or len(peers) < limits.min_nodes:
            continue
        middle = clipped_middle(peers, limit.least_spread)
        if middle is None:
            continue
        in_spreads = limit_in_spreads(len(peers), len(numbers), limits.false_alarms)
        if number.is_slowest_of_several:
            in_spreads *= limits.slowest_of_several
        compared[number.metric] = ComparedNumber(
            run=first.run,
            device=first.device,
            source=source,
            metric=number.metric,
            kind=number.kind,
            nodes=len(peers),
            spread=middle.spread,
            limit=in_spreads,
            least_difference=max(in_spreads * middle.spread, 1 - limit.look_below),
        )
        values += _values_on_nodes(number, middle)
    findings = []
    for (host, kind), slow_values in _slow_values(values, compared).items():
        limit = limits.limit(kind, processor=first.on_processor)
        assert limit is not None  # a number without a limit was not compared
        findings.append(_finding(host, slow_values, compared, limit, excuses))
    if source is not Source.PEERS:
        values = []
    return Comparison(tuple(compared.values()), tuple(values), tuple(findings))


def _values_on_nodes(number: _Number, middle: Middle) -> Iterator[tuple[str, ComparedValue]]:
    """A number of each node, compared with the middle of the nodes, with the name of the node."""
    for host, amount in number.amounts.items():
        share = amount / middle.value
        spreads = (share - 1) / middle.spread
        yield host, ComparedValue(number.metric, number.kind, share, spreads, number.ranks[host])


def _slow_values(
    values: Sequence[tuple[str, ComparedValue]], compared: Mapping[str, ComparedNumber]
) -> dict[tuple[str, Kind], list[ComparedValue]]:
    """The values that are named, by the name of the node and the kind of number."""
    slow: dict[tuple[str, Kind], list[ComparedValue]] = {}
    for host, value in values:
        if 1 - value.share > compared[value.metric].least_difference:
            slow.setdefault((host, value.kind), []).append(value)
    return slow


def _finding(
    host: str,
    slow_values: Sequence[ComparedValue],
    compared: Mapping[str, ComparedNumber],
    limit: PeerLimit,
    excuses: Excuses,
) -> Finding:
    """The finding about the slow numbers of one kind of a node: it names the slowest, and counts the others."""
    in_order = sorted(slow_values, key=lambda value: value.share)
    slowest = in_order[0]
    others = tuple(value.metric for value in in_order[1:])
    number = compared[slowest.metric]
    excuse = excuses.of(host)
    reason = _describe(slowest, number)
    if others:
        reason += f", and {len(others)} more"
    action = Action.LOOK
    if slowest.share >= limit.drain_below:
        reason += f"; {_SOUND_TOO.get(slowest.kind, _SOUND_CHIPS_TOO)}"
    elif excuse:
        reason += f"; not drained for that: {excuse}"
    else:
        action = Action.DRAIN
    return Finding(host, action, number.source, reason, number.run, slowest, others)


def _describe(value: ComparedValue, number: ComparedNumber) -> str:
    """`memory_bandwidth of rank 5: 30 % below the middle of 59 nodes, 126 times their spread of 0.24 %`."""
    name = value.metric
    if value.rank is not None:
        name = f"{name} of rank {value.rank}"
    slower = f"{100 * (1 - value.share):.1f} %"
    spread = f"{100 * number.spread:.2g} %"
    if number.source is Source.LAST_RUN:
        return (
            f"{name}: {slower} slower than its own last run, less the change of all {number.nodes} nodes; "
            f"{-value.spreads:.1f} times their spread of {spread}"
        )
    return (
        f"{name}: {slower} below the middle of {number.nodes} nodes, {-value.spreads:.1f} times their spread "
        f"of {spread}"
    )
