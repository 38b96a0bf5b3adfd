"""Finds where the software and hardware of nodes differs that should be alike, and who is in the minority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from flagbench.console.terminal import brief
from flagbench.fleet.node_run import CONFIGURATION, DEVICES, NodeRun
from flagbench.fleet.result import Action, Difference, Finding, PropertyValue, Source
from flagbench.manifests.limits import FleetLimits

_LONGEST_VALUE = 40
"""The characters of a version or a digest that a finding shows."""
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


def find_differences(runs: Mapping[str, NodeRun]) -> Iterator[Difference]:
    """The properties in which nodes differ; `runs` has one run of each node, of one case, stack and device model."""
    names: dict[str, None] = {}
    for run in runs.values():
        names.update(dict.fromkeys(run.properties))
    for name in names:
        hosts_by_value: dict[str, list[str]] = {}
        for host, run in sorted(runs.items()):
            hosts_by_value.setdefault(run.properties.get(name, _MISSING), []).append(host)
        if len(hosts_by_value) == 1:
            continue
        first = next(iter(runs.values()))
        in_order = sorted(hosts_by_value.items(), key=lambda item: -len(item[1]))
        values = []
        for place, (value, hosts) in enumerate(in_order):
            listed: tuple[str, ...] = ()
            if place > 0:
                listed = tuple(hosts)
            values.append(PropertyValue(value, len(hosts), listed))
        yield Difference(first.run, first.device, name, tuple(values))


def difference_findings(differences: Sequence[Difference], nodes: int, limits: FleetLimits) -> Iterator[Finding]:
    """A finding for each node and property, where more than half of the nodes have another value.

    Args:
        differences: those of one case, stack and device model.
        nodes: how many nodes have a run of it.
        limits: how many nodes must agree on the number of devices, so that one with fewer is drained.
    """
    other_count: set[str] = set()
    for difference in differences:
        usual = difference.values[0]
        if 2 * usual.nodes <= nodes:
            continue
        for value in difference.values[1:]:
            if _are_peers_of_their_own(difference.name, value, usual, nodes, limits):
                continue
            for host in value.hosts:
                if difference.name == CONFIGURATION and host in other_count:  # the count is one of the settings
                    continue
                if difference.name == DEVICES:
                    other_count.add(host)
                action = _action(difference.name, value, usual, nodes, limits)
                reason = (
                    f"{difference.name} {brief(value.value, _LONGEST_VALUE)}; {usual.nodes} of {nodes} nodes have "
                    f"{brief(usual.value, _LONGEST_VALUE)}"
                )
                if difference.name == CONFIGURATION:
                    reason += ", so its numbers were not compared"
                if difference.name == DEVICES and _may_have_been_asked_for(value, usual):
                    reason += "; its run may have been asked to use fewer"
                yield Finding(host, action, Source.DIFFERENCE, reason, run=difference.run)


def _are_peers_of_their_own(
    name: str, value: PropertyValue, usual: PropertyValue, nodes: int, limits: FleetLimits
) -> bool:
    """Whether nodes with other settings or another number of devices are enough to be compared among themselves.

    If almost all nodes have the same number of devices, the others have lost some, however many they are.
    """
    if value.nodes < limits.min_nodes:
        return False
    if name == DEVICES:
        return usual.nodes < limits.drain_fewer_devices * nodes
    return name == CONFIGURATION


def _action(name: str, value: PropertyValue, usual: PropertyValue, nodes: int, limits: FleetLimits) -> Action:
    """A few devices fewer than almost all nodes have are a reason to drain a node, other differences one to look."""
    if name != DEVICES or int(value.value) > int(usual.value):
        return Action.LOOK
    if usual.nodes < limits.drain_fewer_devices * nodes or _may_have_been_asked_for(value, usual):
        return Action.LOOK
    return Action.DRAIN


def _may_have_been_asked_for(value: PropertyValue, usual: PropertyValue) -> bool:
    """Whether a count is at most half of the usual one: rather a run with `--gpus 1` than that many lost devices.

    A record only lists the devices of its run, so it does not say how many more the node has.
    """
    return 2 * int(value.value) <= int(usual.value)
