"""Judges the nodes of a fleet together, from what their runs say: each by itself, then compared with the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flagbench.fleet.differences import difference_findings, find_differences, runs_to_compare
from flagbench.fleet.node_run import CONFIGURATION, NodeRun
from flagbench.fleet.own_checks import OwnChecks, without_drain
from flagbench.fleet.peers import Comparison, Excuses, compare_with_last_runs, compare_with_peers
from flagbench.fleet.result import (
    SOURCES,
    Action,
    ComparedNumber,
    ComparedValue,
    Difference,
    Finding,
    Fleet,
    NodeResult,
    Source,
)
from flagbench.manifests.limits import FleetLimits


@dataclass
class FleetRuns:
    """The runs of a fleet that are judged, and the earlier ones that they are compared with."""

    runs: list[NodeRun] = field(default_factory=list)
    """Those since the time from which records are judged: of each node, case and settings the newest."""
    earlier: list[NodeRun] = field(default_factory=list)
    """The newest before that time, of the same nodes, cases and settings."""
    own_checks: dict[str, OwnChecks] = field(default_factory=dict)
    """What the records of each node say about it, by the name of the node."""
    expected: Sequence[str] = ()
    """The names of the nodes that should have answered."""
    last_run_at: dict[str, str] = field(default_factory=dict)
    """The time of the newest record of each node in the store, older ones included."""
    store: str = ""
    """The address of the store that the records are from."""
    since: str = ""
    """The time from which records are judged, UTC."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, in sentences."""


def judge_fleet(fleet: FleetRuns, limits: FleetLimits) -> Fleet:
    """Judge the nodes of a fleet; `limits` are those of manifests/limits.yaml."""
    findings = [*_missing_nodes(fleet), *_missing_runs(fleet.runs)]
    differences: list[Difference] = []
    compared: list[ComparedNumber] = []
    slowest: dict[str, ComparedValue] = {}
    notes = list(fleet.notes)
    for runs in _by_family(fleet.runs):
        chosen = runs_to_compare(runs)
        differences_of_runs = find_differences(chosen)
        different = difference_findings(differences_of_runs, len(chosen), limits)
        comparisons = _compare_speed(chosen, different, fleet, limits)
        findings += different
        for difference in differences_of_runs:
            if difference.name != CONFIGURATION:  # other settings are a finding, and need no row of their digests
                differences.append(difference)
        for comparison in comparisons:
            findings += comparison.findings
            compared += comparison.compared
            if comparison.source is Source.PEERS:
                _add_slowest(slowest, comparison.values)
        if not any(comparison.compared for comparison in comparisons):
            notes.append(_not_compared(runs, limits))
    findings += _own_findings(fleet, findings)
    nodes = _node_results(fleet, findings, slowest)
    return Fleet(fleet.store, fleet.since, tuple(nodes), tuple(differences), tuple(compared), tuple(notes))


def _missing_nodes(fleet: FleetRuns) -> Iterator[Finding]:
    """The nodes that should have answered and did not."""
    answered = {run.host for run in fleet.runs}
    for host in fleet.expected:
        if host in answered:
            continue
        reason = "no record: its run was not started, was cut off, or could not be stored"
        last = fleet.last_run_at.get(host)
        if last is not None:
            reason = f"no record since {fleet.since}; its newest is of {last}"
            if last >= fleet.since:
                reason = f"its record of {last} cannot be judged; a note says why"
        yield Finding(host, Action.MISSING, Source.NO_RECORD, reason)


def _missing_runs(runs: Sequence[NodeRun]) -> Iterator[Finding]:
    """The nodes that lack the run of a case that more than half of the nodes of their model have."""
    hosts_by_device: dict[str, set[str]] = {}
    hosts_by_run: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        hosts_by_device.setdefault(run.device, set()).add(run.host)
        hosts_by_run.setdefault((run.device, run.run), set()).add(run.host)
    for (device, name), hosts in hosts_by_run.items():
        of_model = hosts_by_device[device]
        if 2 * len(hosts) <= len(of_model):
            continue
        for host in sorted(of_model - hosts):
            reason = f"no record of {name}, which {len(hosts)} of {len(of_model)} nodes have"
            yield Finding(host, Action.MISSING, Source.NO_RECORD, reason, run=name)


def _by_family(runs: Sequence[NodeRun]) -> list[list[NodeRun]]:
    """The sound runs of each case, stack and device model, whose software and hardware should be alike."""
    families: dict[tuple[str, str], list[NodeRun]] = {}
    for run in runs:
        if run.is_sound:
            families.setdefault((run.run, run.device), []).append(run)
    return [families[key] for key in sorted(families)]


def _compare_speed(
    runs: Mapping[str, NodeRun], different: Sequence[Finding], fleet: FleetRuns, limits: FleetLimits
) -> list[Comparison]:
    """Compare the nodes with the same settings with each other, and with their own last runs.

    Args:
        runs: one run of each node, of one case, stack and device model.
        different: the nodes whose software or hardware differs from that of most.
        fleet: for the earlier runs, and for what disturbed a node.
        limits: those of manifests/limits.yaml.
    """
    disturbances = {host: own.disturbance for host, own in fleet.own_checks.items() if own.disturbance}
    excuses = Excuses(disturbances, {finding.host: finding.reason for finding in different})
    comparisons = []
    for settings in sorted({run.configuration for run in runs.values()}):
        peers = {host: run for host, run in runs.items() if run.configuration == settings}
        comparisons.append(compare_with_peers(peers, excuses, limits))
        comparisons.append(compare_with_last_runs(peers, fleet.earlier, excuses, limits))
    return comparisons


def _own_findings(fleet: FleetRuns, findings: Sequence[Finding]) -> Iterator[Finding]:
    """What the records of each node say about it; with other software, its speed is no reason to drain it."""
    different = {}
    for finding in findings:
        if finding.source is Source.DIFFERENCE:
            different[finding.host, finding.run] = finding.reason
    for own in fleet.own_checks.values():
        yield from own.findings
        for finding in own.speed_findings:
            yield without_drain(finding, different.get((finding.host, finding.run), ""))


def _not_compared(runs: Sequence[NodeRun], limits: FleetLimits) -> str:
    """Why the numbers of a case were not compared between nodes."""
    hosts = {run.host for run in runs}
    return (
        f"{runs[0].run} on {runs[0].device}: not compared; at least {limits.min_nodes} nodes with the same settings "
        f"and software are needed, and {len(hosts)} ran it"
    )


def _add_slowest(slowest: dict[str, ComparedValue], values: Mapping[str, Sequence[ComparedValue]]) -> None:
    """Add the values of each node to its number that is furthest below its peers, in spreads."""
    for host, of_host in values.items():
        for value in of_host:
            if host not in slowest or value.spreads < slowest[host].spreads:
                slowest[host] = value


def _node_results(
    fleet: FleetRuns, findings: Sequence[Finding], slowest: Mapping[str, ComparedValue]
) -> list[NodeResult]:
    """What to do with each node, the worst first."""
    findings_by_host: dict[str, list[Finding]] = {run.host: [] for run in fleet.runs}
    for finding in sorted(findings, key=_finding_order):
        findings_by_host.setdefault(finding.host, []).append(finding)
    nodes = []
    for host, of_host in findings_by_host.items():
        action = Action.NOTHING
        reason = ""
        if of_host:
            action = of_host[0].action
            reason = of_host[0].reason
        last_run_at = fleet.last_run_at.get(host)
        nodes.append(NodeResult(host, action, reason, tuple(of_host), slowest.get(host), last_run_at))
    return sorted(nodes, key=_worst_first)


def _finding_order(finding: Finding) -> tuple[int, int, float]:
    """A key that sorts findings, the most severe first: then by how they were found, and the slowest number first."""
    share = 0.0
    if finding.value is not None:
        share = finding.value.share
    return -finding.action.severity, SOURCES[finding.source], share


def _worst_first(node: NodeResult) -> tuple[int, float, str]:
    """A key that sorts nodes by what to do, then by their speed in spreads, then by name."""
    spreads = 0.0
    if node.slowest is not None:
        spreads = node.slowest.spreads
    return -node.action.severity, spreads, node.host
