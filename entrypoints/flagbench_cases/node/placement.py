"""The rank of this node and the address of node 0, from flags or from the platform's environment variables.

Bare RANK and WORLD_SIZE are never used: on some platforms they count nodes, on others processes.
"""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
from typing import Callable, Mapping, NamedTuple, Sequence

from flagbench_cases.shared.arguments import Parser
from flagbench_cases.shared.errors import UsageError

DEFAULT_PORT = 29400
RANK_VARIABLES = (
    "FLAGBENCH_NODE_RANK",
    "JOB_COMPLETION_INDEX",
    "PET_NODE_RANK",
    "SLURM_NODEID",
    "SKYPILOT_NODE_RANK",
)


class Placement(NamedTuple):
    """The position of this node in the job. `port` 0: any free port (single node only)."""

    nodes: int
    node_rank: int
    host: str
    port: int
    source: str


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse HOST[:PORT]; an IPv6 address with a port must be in brackets."""
    match = re.fullmatch(r"(?:\[(?P<six>[^\]\s]+)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>[0-9]{1,5}))?", text)
    if match is not None:
        port = int(match.group("port") or DEFAULT_PORT)
        if 1 <= port <= 65535 and _is_host(match.group("six"), match.group("host")):
            return match.group("six") or match.group("host"), port
    raise UsageError(f"{option} {text!r} is not HOST:PORT", f"for example {option} node-0:29400")


def _is_host(six: str | None, host: str | None) -> bool:
    """Whether an IPv6 address is valid, or a host name can be encoded for the resolver."""
    try:
        if six is not None:
            ipaddress.IPv6Address(six.partition("%")[0])
        else:
            (host or "").encode("idna")
    except ValueError:
        return False
    return True


def _address(host: str | None, port: str | None = None) -> str | None:
    """A platform's host and port as HOST:PORT."""
    if not host:
        return None
    address = host
    if ":" in host and not host.startswith("["):
        address = f"[{host}]"
    if port:
        address += f":{port}"
    return address


def _first_address(hosts: Sequence[str]) -> str | None:
    """The first host of a platform's list, which is that of node 0."""
    if not hosts:
        return None
    return _address(hosts[0])


def slurm_hosts(nodelist: str) -> list[str]:
    """The hosts of a Slurm node list, expanded by scontrol."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        raise UsageError(
            f"scontrol, which expands the node list {nodelist}, is not available",
            "set --master HOST:PORT; `scontrol show hostnames`, where it is, prints node 0's host first",
        ) from None
    return done.stdout.decode().split()


def _expand_nothing(nodelist: str) -> list[str]:
    return []


def _number(env: Mapping[str, str], key: str) -> int:
    try:
        return int(env[key])
    except ValueError:
        raise UsageError(
            f"{key}={env[key]!r} is not a number", "set it to the rank of the node, or unset it"
        ) from None


def _from_environment(
    env: Mapping[str, str], expand: Callable[[str], list[str]]
) -> tuple[int | None, str | None, str]:
    """Node rank, master address and the variable that identified the platform; the first platform found is used.

    FLAGBENCH_MASTER, which only a user sets, takes precedence over the platform's address of node 0.
    """
    master = env.get("FLAGBENCH_MASTER")
    if "FLAGBENCH_NODE_RANK" in env:
        return _number(env, "FLAGBENCH_NODE_RANK"), master, "FLAGBENCH_NODE_RANK"
    # An operator may use an Indexed Job, and say by PET_* where node 0 is.
    if "JOB_COMPLETION_INDEX" in env and (master or "PET_NODE_RANK" not in env):
        return _number(env, "JOB_COMPLETION_INDEX"), master, "JOB_COMPLETION_INDEX"
    if "PET_NODE_RANK" in env:
        master = master or _address(env.get("PET_MASTER_ADDR"), env.get("PET_MASTER_PORT"))
        return _number(env, "PET_NODE_RANK"), master, "PET_NODE_RANK"
    if "SLURM_NODEID" in env and "SLURM_JOB_NODELIST" in env:
        # SLURM_NODEID is relative to the step, which may use only some of the job's nodes.
        if not master:
            master = _first_address(expand(env.get("SLURM_STEP_NODELIST") or env["SLURM_JOB_NODELIST"]))
        return _number(env, "SLURM_NODEID"), master, "SLURM_NODEID"
    if "SKYPILOT_NODE_RANK" in env:
        master = master or _first_address(env.get("SKYPILOT_NODE_IPS", "").split())
        return _number(env, "SKYPILOT_NODE_RANK"), master, "SKYPILOT_NODE_RANK"
    return None, master, "default"


def locate_node(
    nodes: int,
    node_rank: int | None,
    master: str | None,
    env: Mapping[str, str] = os.environ,
    expand: Callable[[str], list[str]] = slurm_hosts,
) -> Placement:
    """Determine the placement of this node. Flags take precedence over the environment. Raises UsageError."""
    if nodes == 1:
        if node_rank:
            raise UsageError(f"--node-rank {node_rank} is out of range for 1 node", "set --nodes too")
        host, port = "127.0.0.1", 0
        if master:
            host, port = parse_address(master, "--master")
        return Placement(1, 0, host, port, "single node")
    source = "--node-rank"
    if node_rank is None or master is None:
        if master is not None:  # no list is expanded: a container has no scontrol
            expand = _expand_nothing
        platform_rank, platform_master, platform = _from_environment(env, expand)
        if node_rank is None:
            node_rank, source = platform_rank, platform
        if master is None:
            master = platform_master
    if node_rank is None:
        raise UsageError(
            f"--nodes {nodes} needs a node rank, and neither a flag nor the platform sets it",
            "set --node-rank and --master, or run under Kubernetes, Slurm or SkyPilot, which provide both",
        )
    if not 0 <= node_rank < nodes:
        raise UsageError(
            f"node rank {node_rank} is out of range for {nodes} nodes",
            f"use a rank from 0 to {nodes - 1}",
        )
    if not master:
        raise UsageError(
            f"--nodes {nodes} needs the address of node 0",
            "set --master HOST:PORT or FLAGBENCH_MASTER",
        )
    host, port = parse_address(master, "--master")
    return Placement(nodes, node_rank, host, port, source)


def likely_node(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> tuple[int, Placement | None]:
    """The node rank by arguments that may be invalid, 0 if they do not give it, and the placement among several
    nodes, if it is known. Never raises.

    A job with invalid arguments is rejected on every node, but only node 0 prints the record.
    """
    parser = Parser(add_help=False, allow_abbrev=False)
    for option in ("--nodes", "--node-rank", "--master"):
        parser.add_argument(option)
    number = 0
    try:
        options, _ = parser.parse_known_args(list(argv))
        rank = options.node_rank
        if rank is None and options.nodes not in (None, "1"):
            rank = _rank_of_platform(env)
        number = _small_number(rank)
        count = max(_small_number(options.nodes), number + 1)
        if count == 1:
            return number, None
        node_rank = None if rank is None else number
        return number, locate_node(count, node_rank, options.master, env)
    except UsageError:
        return number, None


def _rank_of_platform(env: Mapping[str, str]) -> str | None:
    for name in RANK_VARIABLES:
        if name in env:
            return env[name]
    return None


def _small_number(text: str | None) -> int:
    if text and re.fullmatch("[0-9]{1,9}", text):
        return int(text)
    return 0
