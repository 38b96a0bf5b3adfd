"""Which node this is and where node 0 listens: flags, then the platform, never a bare RANK."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from flagbench_cases.node.placement import DEFAULT_PORT, Placement, likely_node, locate_node, parse_address
from flagbench_cases.shared.errors import UsageError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

HOSTS = {"gpu[03-04]": ["gpu03", "gpu04"], "gpu[01-04]": ["gpu01", "gpu02", "gpu03", "gpu04"]}


def expand(nodelist: str) -> list[str]:
    return HOSTS[nodelist]


def never(nodelist: str) -> list[str]:
    raise AssertionError("scontrol was asked for %s" % nodelist)


KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "FLAGBENCH_MASTER": "job-0.svc:2222"}
PYTORCHJOB = {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "worker-0", "PET_MASTER_PORT": "23456"}
SLURM = {"SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[03-04]"}
SKYPILOT = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8\n"}


@pytest.mark.parametrize(
    ("env", "placement"),
    [
        (
            {"FLAGBENCH_NODE_RANK": "1", "FLAGBENCH_MASTER": "a:1"},
            Placement(2, 1, "a", 1, "FLAGBENCH_NODE_RANK"),
        ),
        (KUBERNETES, Placement(2, 1, "job-0.svc", 2222, "JOB_COMPLETION_INDEX")),
        (PYTORCHJOB, Placement(2, 1, "worker-0", 23456, "PET_NODE_RANK")),
        (
            {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "fd00::1", "PET_MASTER_PORT": "23456"},
            Placement(2, 1, "fd00::1", 23456, "PET_NODE_RANK"),
        ),
        # An operator whose pods are those of an Indexed Job, which has no address of node 0.
        ({**PYTORCHJOB, "JOB_COMPLETION_INDEX": "1"}, Placement(2, 1, "worker-0", 23456, "PET_NODE_RANK")),
        ({**PYTORCHJOB, **KUBERNETES}, Placement(2, 1, "job-0.svc", 2222, "JOB_COMPLETION_INDEX")),
        (SLURM, Placement(2, 1, "gpu03", DEFAULT_PORT, "SLURM_NODEID")),
        (
            # A step on a part of the job's nodes: SLURM_NODEID counts within the step.
            {"SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[01-04]", "SLURM_STEP_NODELIST": "gpu[03-04]"},
            Placement(2, 1, "gpu03", DEFAULT_PORT, "SLURM_NODEID"),
        ),
        (SKYPILOT, Placement(2, 1, "10.0.0.7", DEFAULT_PORT, "SKYPILOT_NODE_RANK")),
        (
            {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "fd00::7\nfd00::8"},
            Placement(2, 0, "fd00::7", DEFAULT_PORT, "SKYPILOT_NODE_RANK"),
        ),
    ],
    ids=[
        "flagbench",
        "kubernetes",
        "pytorchjob",
        "pytorchjob-ipv6",
        "trainjob",
        "trainjob-named",
        "slurm",
        "slurm-step",
        "skypilot",
        "sky-ipv6",
    ],
)
def test_placement_from_each_platform(env: dict[str, str], placement: Placement) -> None:
    assert locate_node(2, None, None, env, expand) == placement


@pytest.mark.parametrize("env", [KUBERNETES, PYTORCHJOB, SLURM, SKYPILOT], ids=["k8s", "pet", "slurm", "sky"])
@pytest.mark.parametrize("nodes", [["--nodes", "2"], ["--nodes=two"]])
def test_rank_from_the_platform_with_invalid_arguments(nodes: list[str], env: dict[str, str]) -> None:
    rank, placement = likely_node(["distilbert", "--no-such-option", *nodes], env)
    assert rank == 1
    assert placement is None or placement.node_rank == 1


@pytest.mark.parametrize(
    ("argv", "env", "rank"),
    [
        ([], KUBERNETES, 0),
        (["--nodes=2", "--node-rank=0"], KUBERNETES, 0),
        (["--nodes=2", "--node-rank", "1"], {}, 1),
        (["--node-rank", "x", "--nodes=2"], KUBERNETES, 0),
        (["--nodes=2"], {"RANK": "1"}, 0),
        (["--nodes=2", "--node-rank", "9" * 5000], {}, 0),
    ],
)
def test_unknown_rank_is_0(argv: list[str], env: dict[str, str], rank: int) -> None:
    assert likely_node(argv, env)[0] == rank


@pytest.mark.parametrize("env", [KUBERNETES, PYTORCHJOB, SLURM, SKYPILOT], ids=["k8s", "pet", "slurm", "sky"])
def test_flags_beat_the_platform(env: dict[str, str]) -> None:
    assert locate_node(2, 0, "flag:99", env, never) == Placement(2, 0, "flag", 99, "--node-rank")


@pytest.mark.parametrize("env", [PYTORCHJOB, SLURM, SKYPILOT], ids=["pet", "slurm", "sky"])
def test_flagbench_master_beats_the_platforms_own(env: dict[str, str]) -> None:
    found = locate_node(2, None, None, dict(env, FLAGBENCH_MASTER="mine:7"), never)
    assert (found.node_rank, found.host, found.port) == (1, "mine", 7)


def test_a_flag_and_the_platform_complete_each_other() -> None:
    assert locate_node(2, 0, None, KUBERNETES, never) == Placement(2, 0, "job-0.svc", 2222, "--node-rank")
    assert locate_node(2, None, "flag:5", KUBERNETES, never) == Placement(2, 1, "flag", 5, "JOB_COMPLETION_INDEX")
    assert locate_node(2, None, "flag:5", SLURM, never) == Placement(2, 1, "flag", 5, "SLURM_NODEID")
    assert locate_node(2, 1, None, {"FLAGBENCH_MASTER": "a"}, never) == Placement(
        2, 1, "a", DEFAULT_PORT, "--node-rank"
    )


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "other", "MASTER_PORT": "1"},
        {"OMPI_COMM_WORLD_RANK": "1", "NODE_RANK": "1", "LOCAL_RANK": "1"},
    ],
)
def test_bare_ranks_and_master_addresses_are_never_read(env: dict[str, str]) -> None:
    with refuses(UsageError, "--nodes 2"):
        locate_node(2, None, None, env, never)
    with refuses(UsageError, "node 0"):
        locate_node(2, 1, None, env, never)
    assert locate_node(2, 0, "here", env, never).host == "here"


def test_placement_of_one_node() -> None:
    assert locate_node(1, None, None, {}, never) == Placement(1, 0, "127.0.0.1", 0, "single node")
    assert locate_node(1, 0, None, dict(SLURM, **SKYPILOT), never) == Placement(1, 0, "127.0.0.1", 0, "single node")
    assert locate_node(1, None, "here:5", {}, never).port == 5


@pytest.mark.parametrize(
    ("arguments", "env", "named"),
    [
        ((1, 1, None), {}, "--node-rank 1"),
        ((2, 2, "a"), {}, "rank 2"),
        ((2, None, "a"), {"JOB_COMPLETION_INDEX": "5"}, "rank 5"),
        ((2, None, "a"), {"FLAGBENCH_NODE_RANK": "first"}, "FLAGBENCH_NODE_RANK='first'"),
        ((2, None, None), {"JOB_COMPLETION_INDEX": "1"}, "node 0"),
        ((2, None, None), {"SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "none"}, "node 0"),
    ],
)
def test_invalid_placements_are_refused(arguments: tuple[Any, Any, Any], env: dict[str, str], named: str) -> None:
    with refuses(UsageError, named):
        locate_node(*arguments, env, lambda nodelist: [])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node-0", ("node-0", DEFAULT_PORT)),
        ("node-0.svc.cluster.local:65535", ("node-0.svc.cluster.local", 65535)),
        ("10.0.0.1:29500", ("10.0.0.1", 29500)),
        ("[fd00::1]:29500", ("fd00::1", 29500)),
        ("[::1]", ("::1", DEFAULT_PORT)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "--master") == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":29500", "host:", "host:0", "host:65536", "host:-1"),
        *("host:port", "host:29500\n", "ho st:29500"),
        "fd00::1",  # where its address ends and a port begins, nobody can tell
        *("[fd00::1", "[host]:5"),
        "host..svc:5",  # no resolver takes an empty label
        "a" * 64 + ":5",
        "host:\u0665",
    ],
)
def test_invalid_addresses_are_refused(text: str) -> None:
    with refuses(UsageError, "--master", repr(text)):
        parse_address(text, "--master")


def test_slurm_without_scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **options: Any) -> None:
        raise FileNotFoundError("scontrol")

    monkeypatch.setattr(subprocess, "run", missing)
    with refuses(UsageError, "scontrol") as caught:
        locate_node(2, None, None, SLURM)
    assert "--master" in caught.value.remedy
