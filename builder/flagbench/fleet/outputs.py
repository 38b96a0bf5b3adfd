"""Writes the result of a fleet for other programs: JUnit XML, OpenMetrics text, and commands that drain nodes.

Names and reasons come from records of a shared store, so anybody may have written them. Reasons are quoted, and a
command is printed only for a name that a node can have.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import timezone
from enum import Enum

from flagbench.console.terminal import brief
from flagbench.fleet.hosts import NODE_NAME
from flagbench.fleet.result import Action, Fleet
from flagbench.report.junit import JUnitCase, Kind, junit_xml
from flagbench.system.clock import parse_utc

_REASON_LENGTH = 200
"""The most characters of a reason in a command. That of one number has about 150."""
_ANNOTATION = "flagbench/reason"
"""The annotation of a Kubernetes node with the reason."""
_KINDS: dict[Action, Kind | None] = {
    Action.DRAIN: "failure",
    Action.MISSING: "error",
    Action.LOOK: "error",
    Action.NOTHING: None,
}
"""How a node is shown in JUnit."""


class DrainTool(str, Enum):
    """The program whose commands drain a node."""

    SLURM = "slurm"
    KUBECTL = "kubectl"


def drain_commands(fleet: Fleet, tool: DrainTool) -> list[str]:
    """Return a command for each node to drain, with the reason; nodes without a usable name are left out."""
    commands = []
    for node in fleet.nodes:
        if node.action is not Action.DRAIN or not NODE_NAME.fullmatch(node.host):
            continue
        reason = shlex.quote(f"flagbench: {brief(node.reason, _REASON_LENGTH)}")
        if tool is DrainTool.SLURM:
            commands.append(f"scontrol update nodename={node.host} state=drain reason={reason}")
        else:
            commands.append(f"kubectl cordon {node.host}")
            commands.append(f"kubectl annotate --overwrite node {node.host} {_ANNOTATION}={reason}")
    return commands


def unusable_names(fleet: Fleet) -> list[str]:
    """Return the names of nodes to drain for which no command is printed, because no node can have such a name."""
    return [host for host in fleet.hosts(Action.DRAIN) if not NODE_NAME.fullmatch(host)]


def junit_of_fleet(fleet: Fleet) -> bytes:
    """Return the fleet as a suite of checks, one for each node, in the order of their names."""
    cases = []
    for node in sorted(fleet.nodes, key=lambda node: node.host):
        reasons = "\n".join(finding.reason for finding in node.findings)
        cases.append(JUnitCase(node.host, reasons, _KINDS[node.action], node.reason))
    return junit_xml("flagbench fleet", cases)


def openmetrics_of_fleet(fleet: Fleet) -> bytes:
    """Return the fleet as OpenMetrics text, for the textfile collector of Prometheus' node_exporter.

    No sample has a timestamp, which that collector would refuse.
    """
    return ("\n".join(_openmetrics_lines(fleet)) + "\n").encode()


def _openmetrics_lines(fleet: Fleet) -> Iterator[str]:
    numbers = ", ".join(f"{action.severity} {action.value}" for action in reversed(Action))
    yield "# TYPE flagbench_node_state gauge"
    yield f"# HELP flagbench_node_state What to do with a node: {numbers}."
    for node in fleet.nodes:
        yield f'flagbench_node_state{{node="{_label(node.host)}"}} {node.action.severity}'
    yield "# TYPE flagbench_node_slowest_share gauge"
    yield "# HELP flagbench_node_slowest_share The number furthest below the other nodes, over their middle."
    for node in fleet.nodes:
        if node.slowest is not None:
            labels = f'node="{_label(node.host)}",metric="{_label(node.slowest.metric)}"'
            yield f"flagbench_node_slowest_share{{{labels}}} {node.slowest.share:.5f}"
    yield "# TYPE flagbench_node_last_run_timestamp_seconds gauge"
    yield "# HELP flagbench_node_last_run_timestamp_seconds When the newest record of a node was made."
    for node in fleet.nodes:
        if node.last_run_at is not None:
            made_at = parse_utc(node.last_run_at).replace(tzinfo=timezone.utc)
            labels = f'node="{_label(node.host)}"'
            yield f"flagbench_node_last_run_timestamp_seconds{{{labels}}} {made_at.timestamp():.0f}"
    yield "# EOF"


def _label(text: str) -> str:
    """The value of a label: backslashes, quotes and line breaks are escaped."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
