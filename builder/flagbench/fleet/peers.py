"""Compares the speed of nodes with each other, and the change since their own last run with that of the others.

Nodes are peers if they ran the same case on the same stack and device model, with the same settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flagbench.fleet.node_run import NodeRun, NodeValue
from flagbench.fleet.result import Action, ComparedNumber, ComparedValue, Finding, Source
from flagbench.fleet.spread import clipped_middle, limit_in_spreads
from flagbench.manifests.limits import FleetLimits, Kind

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

    def find_excuse(self, host: str) -> str:
        """Return the excuse of a node; empty if it has none."""
        return self.disturbances.get(host) or self.differences.get(host, "")


@dataclass(frozen=True)
class Comparison:
    """The numbers that were compared between nodes, and what was found."""

    source: Source
    """What they were compared with: PEERS or LAST_RUN."""
    compared: tuple[ComparedNumber, ...]
    findings: tuple[Finding, ...]
    values: Mapping[str, Sequence[ComparedValue]]
    """The numbers of each node, by its name."""


def compare_with_peers(runs: Mapping[str, NodeRun], excuses: Excuses, limits: FleetLimits) -> Comparison:
    """Compare nodes with each other; `runs` has one sound run of each node, all of the same settings."""
    numbers: dict[str, dict[str, NodeValue]] = {}
    for host, run in runs.items():
        for metric, value in run.values.items():
            numbers.setdefault(metric, {})[host] = value
    return _compare(numbers, next(iter(runs.values())), Source.PEERS, excuses, limits)


def compare_with_last_runs(
    runs: Mapping[str, NodeRun], earlier: Sequence[NodeRun], excuses: Excuses, limits: FleetLimits
) -> Comparison:
    """Compare the change of each node since its last run with the change of the others.

    What all nodes changed by, such as after an update, is not held against one of them.

    Args:
        runs: one sound run of each node, all of the same settings.
        earlier: the earlier runs of these and other nodes, of these and other settings.
        excuses: why nodes may be slow.
        limits: those of manifests/limits.yaml.
    """
    last_runs = _last_runs(runs, earlier)
    updated = [host for host, last in last_runs.items() if last.properties != runs[host].properties]
    differences = dict(excuses.differences)
    if 2 * len(updated) <= len(last_runs):  # otherwise most nodes were updated, and the change of all includes it
        for host in updated:
            differences[host] = "its software or hardware has changed since"
    changes: dict[str, dict[str, NodeValue]] = {}
    for host, last in last_runs.items():
        for metric, before in last.values.items():
            now = runs[host].values.get(metric)
            if now is not None and before.amount > 0:
                change = NodeValue(now.kind, now.amount / before.amount, now.rank)
                changes.setdefault(metric, {})[host] = change
    return _compare(
        changes, next(iter(runs.values())), Source.LAST_RUN, Excuses(excuses.disturbances, differences), limits
    )


def _last_runs(runs: Mapping[str, NodeRun], earlier: Sequence[NodeRun]) -> dict[str, NodeRun]:
    """The last sound run of each node before this one, with the same settings on the same devices."""
    last_runs: dict[str, NodeRun] = {}
    for last in sorted(earlier, key=lambda run: run.created_at):
        run = runs.get(last.host)
        if run is None or not last.is_sound:
            continue
        same_run = (last.run, last.device, last.configuration) == (run.run, run.device, run.configuration)
        if same_run and last.machine == run.machine:
            last_runs[last.host] = last
    return last_runs


def _compare(
    numbers: Mapping[str, Mapping[str, NodeValue]],
    run: NodeRun,
    source: Source,
    excuses: Excuses,
    limits: FleetLimits,
) -> Comparison:
    """Compare numbers between nodes: where each is far enough below their middle to be named.

    Numbers of a kind that is not compared, and those of too few nodes, are left out.

    Args:
        numbers: by the name of a number, its value on each node, by the name of the node.
        run: the run of one of the nodes, for what they have in common.
        source: what the values are compared with.
        excuses: why nodes may be slow.
        limits: those of manifests/limits.yaml.
    """
    compared: dict[str, ComparedNumber] = {}
    values: dict[str, list[ComparedValue]] = {}
    for metric, of_nodes in sorted(numbers.items()):
        kind = next(iter(of_nodes.values())).kind
        limit = limits.limit(kind, processor=run.on_processor)
        peers = [value.amount for host, value in of_nodes.items() if host not in excuses.differences]
        if limit is None or len(peers) < limits.min_nodes:
            continue
        middle = clipped_middle(peers, limit.least_spread)
        if middle is None:
            continue
        in_spreads = limit_in_spreads(len(peers), len(numbers), limits.false_alarms)
        if any(value.rank is not None for value in of_nodes.values()):
            in_spreads *= limits.slowest_of_several  # the slowest of several devices has a longer lower tail
        compared[metric] = ComparedNumber(
            run=run.run,
            device=run.device,
            source=source,
            metric=metric,
            kind=kind,
            nodes=len(peers),
            middle=middle.value,
            spread=middle.spread,
            limit=in_spreads,
            least_difference=max(in_spreads * middle.spread, 1 - limit.look_below),
            drain_difference=1 - limit.drain_below,
        )
        for host, value in of_nodes.items():
            share = value.amount / middle.value
            spreads = (share - 1) / middle.spread
            values.setdefault(host, []).append(ComparedValue(metric, kind, share, spreads, value.rank))
    findings: list[Finding] = []
    for host, of_host in values.items():
        findings += _speed_findings(host, of_host, compared, excuses.find_excuse(host))
    return Comparison(source, tuple(compared.values()), tuple(findings), values)


def _speed_findings(
    host: str, values: Sequence[ComparedValue], compared: Mapping[str, ComparedNumber], excuse: str
) -> Iterator[Finding]:
    """A finding for each kind of number in which a node is slow: of the slowest, and how many others."""
    slow: dict[Kind, list[ComparedValue]] = {}
    for value in sorted(values, key=lambda value: value.spreads):
        if 1 - value.share > compared[value.metric].least_difference:
            slow.setdefault(value.kind, []).append(value)
    for kind, of_kind in slow.items():
        slowest, *others = of_kind
        number = compared[slowest.metric]
        reason = _describe(slowest, number)
        if others:
            reason += f", and {len(others)} more"
        action = Action.LOOK
        if 1 - slowest.share <= number.drain_difference:
            reason += f"; {_SOUND_TOO.get(kind, _SOUND_CHIPS_TOO)}"
        elif excuse:
            reason += f"; not drained for that: {excuse}"
        else:
            action = Action.DRAIN
        yield Finding(host, action, number.source, reason, number.run, slowest)


def _describe(value: ComparedValue, number: ComparedNumber) -> str:
    """`memory_bandwidth of rank 5: 30 % below the middle of 59 nodes, 126 times their spread of 0.24 %`."""
    name = value.metric
    if value.rank is not None:
        name = f"{name} of rank {value.rank}"
    slower = f"{100 * (1 - value.share):.1f} %"
    in_spreads = f"{-value.spreads:.1f} times their spread of {100 * number.spread:.2g} %"
    if number.source is Source.PEERS:
        return f"{name}: {slower} below the middle of {number.nodes} nodes, {in_spreads}"
    change = f"less the change of all {number.nodes} nodes"
    return f"{name}: {slower} slower than its own last run, {change}; {in_spreads}"
