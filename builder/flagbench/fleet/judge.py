"""Judges the nodes of a fleet together, from what their runs say: each by itself, then compared with the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flagbench.fleet.differences import difference_findings, find_differences, runs_to_compare
from flagbench.fleet.node_run import CONFIGURATION, NodeRun
from flagbench.fleet.own_checks import OwnChecks
from flagbench.fleet.peers import Comparison, Excuses, compare_with_last_runs, compare_with_peers
from flagbench.fleet.result import (
    GRAVITY,
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


@dataclass(frozen=True)
class FleetRuns:
    """The runs of a fleet that are judged, and the earlier ones that they are compared with."""

    runs: Sequence[NodeRun]
    """Those since the time from which records are judged: of each node, case and settings the newest."""
    earlier: Sequence[NodeRun] = ()
    """Those before that time, one for each node, case and settings."""
    own_checks: Mapping[str, OwnChecks] = field(default_factory=dict)
    """What the records of each node say about it, by the name of the node."""
    expected: Sequence[str] = ()
    """The names of the nodes that should have answered; empty if that is not known."""
    last_run_at: Mapping[str, str] = field(default_factory=dict)
    """The time of the newest record of each node in the store, older ones included."""
    store: str = ""
    """The address of the store that the records are from."""
    since: str = ""
    """The time from which records are judged, UTC."""
    notes: Sequence[str] = ()
    """What could not be read, in sentences."""


def judge_fleet(fleet: FleetRuns, limits: FleetLimits) -> Fleet:
    """Judge the nodes of a fleet; `limits` are those of manifests/limits.yaml."""
    findings: list[Finding] = []
    for own in fleet.own_checks.values():
        findings += own.findings
    findings += _missing_nodes(fleet)
    findings += _missing_runs(fleet.runs)
    differences: list[Difference] = []
    compared: list[ComparedNumber] = []
    slowest: dict[str, ComparedValue] = {}
    notes = list(fleet.notes)
    for runs in _by_family(fleet.runs):
        family = _compare_family(runs, fleet, limits)
        findings += family.findings
        differences += family.differences
        for comparison in family.comparisons:
            findings += comparison.findings
            compared += comparison.compared
            _add_slowest(slowest, comparison)
        if not any(comparison.compared for comparison in family.comparisons):
            notes.append(_not_compared(runs, limits))
    findings_by_host: dict[str, list[Finding]] = {run.host: [] for run in fleet.runs}
    for finding in sorted(findings, key=_gravity):
        findings_by_host.setdefault(finding.host, []).append(finding)
    nodes = []
    for host, of_host in findings_by_host.items():
        nodes.append(_node_result(host, of_host, slowest.get(host), fleet.last_run_at.get(host)))
    nodes.sort(key=_worst_first)
    return Fleet(fleet.store, fleet.since, tuple(nodes), tuple(differences), tuple(compared), tuple(notes))


def _missing_nodes(fleet: FleetRuns) -> Iterator[Finding]:
    """The nodes that should have answered and did not; without a list, those that did before."""
    answered = {run.host for run in fleet.runs}
    for host in fleet.expected or sorted(fleet.last_run_at):
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


@dataclass(frozen=True)
class _Family:
    """What was found about the nodes that ran one case on one stack and device model."""

    findings: Sequence[Finding]
    differences: Sequence[Difference]
    comparisons: Sequence[Comparison]
    """With other nodes and with their own last runs, for each group of nodes with the same settings."""


def _compare_family(runs: Sequence[NodeRun], fleet: FleetRuns, limits: FleetLimits) -> _Family:
    """Compare the software and hardware of the nodes, then the speed of those with the same settings."""
    chosen = runs_to_compare(runs)
    differences = tuple(find_differences(chosen))
    findings = tuple(difference_findings(differences, len(chosen), limits))
    disturbances = {host: own.disturbance for host, own in fleet.own_checks.items() if own.disturbance}
    excuses = Excuses(disturbances, {finding.host: finding.reason for finding in findings})
    comparisons = []
    for settings in sorted({run.configuration for run in chosen.values()}):
        peers = {host: run for host, run in chosen.items() if run.configuration == settings}
        comparisons.append(compare_with_peers(peers, excuses, limits))
        last_runs = _last_runs(peers, fleet.earlier)
        if last_runs:
            comparisons.append(compare_with_last_runs(peers, last_runs, excuses, limits))
    # Runs of a few nodes with other settings are a finding, and differ in nothing else by necessity.
    listed = tuple(difference for difference in differences if difference.name != CONFIGURATION)
    return _Family(findings, listed, comparisons)


def _last_runs(runs: Mapping[str, NodeRun], earlier: Sequence[NodeRun]) -> dict[str, NodeRun]:
    """The earlier run of each node with the same settings on the same devices."""
    last_runs: dict[str, NodeRun] = {}
    for last in sorted(earlier, key=lambda run: run.created_at):
        run = runs.get(last.host)
        if run is None or not last.is_sound:
            continue
        same_run = (last.run, last.device, last.configuration) == (run.run, run.device, run.configuration)
        if same_run and last.machine == run.machine:
            last_runs[last.host] = last
    return last_runs


def _not_compared(runs: Sequence[NodeRun], limits: FleetLimits) -> str:
    """Why the numbers of a case were not compared between nodes."""
    hosts = {run.host for run in runs}
    return (
        f"{runs[0].run} on {runs[0].device}: not compared; at least {limits.min_nodes} nodes with the same settings "
        f"and software are needed, and {len(hosts)} ran it"
    )


def _add_slowest(slowest: dict[str, ComparedValue], comparison: Comparison) -> None:
    """Add to the number of each node that is furthest below its peers those of one more comparison."""
    for host, value in comparison.values:
        if host not in slowest or value.spreads < slowest[host].spreads:
            slowest[host] = value


def _node_result(
    host: str, findings: Sequence[Finding], slowest: ComparedValue | None, last_run_at: str | None
) -> NodeResult:
    """What to do with a node, according to its findings, the gravest first."""
    if not findings:
        return NodeResult(host, Action.NOTHING, "", (), slowest, last_run_at)
    return NodeResult(host, findings[0].action, findings[0].reason, tuple(findings), slowest, last_run_at)


def _gravity(finding: Finding) -> tuple[int, int, float]:
    """A key that sorts findings, the gravest first: then by how they were found, and the slowest number first."""
    share = 0.0
    if finding.value is not None:
        share = finding.value.share
    return GRAVITY[finding.action], SOURCES[finding.source], share


def _worst_first(node: NodeResult) -> tuple[int, float, str]:
    """A key that sorts nodes by what to do, then by their speed in spreads, then by name."""
    spreads = 0.0
    if node.slowest is not None:
        spreads = node.slowest.spreads
    return GRAVITY[node.action], spreads, node.host
