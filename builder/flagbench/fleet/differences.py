"""Finds where the software and hardware of nodes differs that should be alike, and who is in the minority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flagbench.console.terminal import brief
from flagbench.fleet.node_run import CONFIGURATION, DEVICES, NodeRun
from flagbench.fleet.result import Action, Difference, Finding, PropertyValue, Source
from flagbench.manifests.limits import FleetLimits

LONGEST_VALUE = 40
"""The characters of a version or a digest that a finding or a row of a table shows; --json has all."""
_MISSING = "not set"
"""The value of a property, such as a variable, that a record does not list."""


def runs_to_compare(runs: Sequence[NodeRun]) -> dict[str, NodeRun]:
    """Choose one run of each node, by name, among sound runs of one case, stack and device model.

    It is the newest with the settings that most nodes have: a node may have been examined with other settings, too.
    But a newest run with fewer devices is chosen in any case, as a device may have been lost since.
    """
    newest: dict[str, NodeRun] = {}
    by_settings: dict[tuple[str, str], NodeRun] = {}
    for run in sorted(runs, key=lambda run: run.created_at):
        newest[run.host] = run
        by_settings[run.host, run.configuration] = run
    settings = Counter(configuration for _, configuration in by_settings)
    usual = settings.most_common(1)[0][0]
    chosen = {}
    for host, run in newest.items():
        usual_run = by_settings.get((host, usual), run)
        if run.devices >= usual_run.devices:
            run = usual_run
        chosen[host] = run
    return chosen


def find_differences(runs: Mapping[str, NodeRun]) -> list[Difference]:
    """The properties in which nodes differ; `runs` has one run of each node, of one case, stack and device model."""
    names: dict[str, None] = {}
    for run in runs.values():
        names.update(dict.fromkeys(run.properties))
    first = next(iter(runs.values()))
    differences = []
    for name in names:
        hosts_by_value: dict[str, list[str]] = {}
        for host, run in sorted(runs.items()):
            hosts_by_value.setdefault(run.properties.get(name, _MISSING), []).append(host)
        if len(hosts_by_value) == 1:
            continue
        (usual, hosts), *others = sorted(hosts_by_value.items(), key=lambda item: -len(item[1]))
        values = [PropertyValue(usual, len(hosts), ())]
        for value, hosts in others:
            values.append(PropertyValue(value, len(hosts), tuple(hosts)))
        differences.append(Difference(first.run, first.device, name, tuple(values)))
    return differences


def difference_findings(differences: Sequence[Difference], nodes: int, limits: FleetLimits) -> list[Finding]:
    """A finding for each node and property, where more than half of the nodes have another value.

    Args:
        differences: those of one case, stack and device model.
        nodes: how many nodes have a run of it.
        limits: how many nodes must agree on the number of devices, so that one with fewer is drained.
    """
    findings = []
    with_other_count: set[str] = set()
    for difference in differences:
        name = difference.name
        usual, *others = difference.values
        if 2 * usual.nodes <= nodes:
            continue
        for value in others:
            judgement = _judge_value(name, value, usual, nodes, limits)
            if judgement is None:
                continue
            reason = (
                f"{name} {brief(value.value, LONGEST_VALUE)}; {usual.nodes} of {nodes} nodes have "
                f"{brief(usual.value, LONGEST_VALUE)}{judgement.remark}"
            )
            for host in value.hosts:
                if name == CONFIGURATION and host in with_other_count:  # the count is one of the settings
                    continue
                findings.append(Finding(host, judgement.action, Source.DIFFERENCE, reason, run=difference.run))
            if name == DEVICES:
                with_other_count.update(value.hosts)
    return findings


class _Judgement(NamedTuple):
    """What follows from a property that is not as on most nodes."""

    action: Action
    remark: str = ""
    """What the reason adds."""


def _judge_value(
    name: str, value: PropertyValue, usual: PropertyValue, nodes: int, limits: FleetLimits
) -> _Judgement | None:
    """Judge a value of a property that is not the usual one.

    None if nodes with other settings or another number of devices are enough to be compared among themselves.
    """
    if name == CONFIGURATION:
        if value.nodes >= limits.min_nodes:
            return None
        return _Judgement(Action.LOOK, ", so its numbers were not compared")
    if name != DEVICES:
        return _Judgement(Action.LOOK)
    # If almost all nodes have the same number of devices, the others have lost some, however many they are.
    almost_all_agree = usual.nodes >= limits.drain_fewer_devices * nodes
    if value.nodes >= limits.min_nodes and not almost_all_agree:
        return None
    # A record only lists the devices of its run: half of them are rather `--gpus 4` than that many lost devices.
    if 2 * int(value.value) <= int(usual.value):
        return _Judgement(Action.LOOK, "; its run may have been asked to use fewer")
    if almost_all_agree and int(value.value) < int(usual.value):
        return _Judgement(Action.DRAIN)
    return _Judgement(Action.LOOK)
