"""What the result of a fleet looks like to other programs; names and reasons may come from anybody."""

from __future__ import annotations

import re
import shlex
from xml.etree import ElementTree

from flagbench.fleet.outputs import DrainTool, drain_commands, junit_of_fleet, openmetrics_of_fleet, unusable_names
from flagbench.fleet.result import Action, ComparedValue, Finding, Fleet, NodeResult, Source

SLOW = ComparedValue("matmul_bf16", "product", 0.8, -40.0, 5)
REASON = "it's slow; `reboot` $(reboot)\nreboot"


def fleet_of(**actions: Action) -> Fleet:
    """A fleet of nodes with these actions, by name; `_` is written `-`."""
    nodes = []
    for name, action in actions.items():
        nodes.append(result_of(name.replace("_", "-"), action))
    return Fleet("s3://b", "2026-11-20T00:00:00Z", tuple(nodes), (), (), ())


def result_of(host: str, action: Action) -> NodeResult:
    finding = Finding(host, action, Source.PEERS, REASON, value=SLOW)
    if action is Action.NOTHING:
        return NodeResult(host, action, "", (), None, None)
    return NodeResult(host, action, REASON, (finding,), SLOW, "2026-11-27T00:00:00Z")


FLEET = fleet_of(gpu_1=Action.DRAIN, gpu_2=Action.MISSING, gpu_3=Action.LOOK, gpu_4=Action.NOTHING)


def test_slurm_drains_with_a_quoted_reason() -> None:
    (line,) = drain_commands(FLEET, DrainTool.SLURM)

    words = shlex.split(line)
    assert words[:4] == ["scontrol", "update", "nodename=gpu-1", "state=drain"]
    assert words[4:] == ["reason=flagbench: it's slow; `reboot` $(reboot)\\nreboot"]


def test_kubectl_cordons_and_annotates() -> None:
    cordon, annotate = drain_commands(FLEET, DrainTool.KUBECTL)

    assert cordon == "kubectl cordon gpu-1"
    assert shlex.split(annotate)[:5] == ["kubectl", "annotate", "--overwrite", "node", "gpu-1"]
    assert len(shlex.split(annotate)) == 6


def test_a_name_that_no_node_can_have_is_not_printed_in_a_command() -> None:
    hosts = ["a b", "a;reboot", "$(reboot)", "a\nreboot", "-all", "a'", "ä", "ALL", "all", 300 * "a"]
    nodes = tuple(result_of(host, Action.DRAIN) for host in hosts)
    fleet = Fleet("s3://b", "2026-11-20T00:00:00Z", nodes, (), (), ())

    assert drain_commands(fleet, DrainTool.SLURM) == []
    assert drain_commands(fleet, DrainTool.KUBECTL) == []
    assert unusable_names(fleet) == hosts


def test_junit_has_a_check_for_each_node() -> None:
    root = ElementTree.fromstring(junit_of_fleet(FLEET))

    suite = root.find("testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "4",
        "failures": "1",
        "errors": "2",
    }
    assert [case.get("name") for case in suite.iter("testcase")] == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]


SAMPLE = re.compile(r'(flagbench_[a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\} (-?[0-9.]+)')
"""A sample of OpenMetrics text: the name, the labels and the value, without a timestamp."""


def test_openmetrics_has_the_state_of_each_node_without_timestamps() -> None:
    lines = openmetrics_of_fleet(FLEET).decode().splitlines()

    samples = [SAMPLE.fullmatch(line) for line in lines if not line.startswith("#")]
    states = [match[3] for match in samples if match and match[1] == "flagbench_node_state"]
    assert all(samples)
    assert states == ["3", "2", "1", "0"]
    assert (len(samples), lines[-1]) == (4 + 3 + 3, "# EOF")


def test_a_label_of_openmetrics_is_escaped() -> None:
    fleet = Fleet("s3://b", "2026-11-20T00:00:00Z", (result_of('a"\\\n', Action.LOOK),), (), (), ())

    lines = openmetrics_of_fleet(fleet).decode().splitlines()
    assert 'flagbench_node_state{node="a\\"\\\\\\n"} 1' in lines
