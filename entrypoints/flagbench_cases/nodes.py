"""Which node this is and where node 0 listens, from flags or from what the platform sets.

Never from bare RANK or WORLD_SIZE: on some platforms they count nodes, on others processes.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from typing import Callable, List, Mapping, Optional, Tuple

from flagbench_cases.errors import UsageError

DEFAULT_PORT = 29400


@dataclass(frozen=True)
class Placement:
    """This node's place in the job. `port` 0 means: any free port (one node only)."""

    nodes: int
    node_rank: int
    host: str
    port: int
    source: str


def parse_address(text: str, option: str) -> Tuple[str, int]:
    """HOST[:PORT] as a pair; an IPv6 address stands in brackets where a port follows."""
    match = re.match(r"^(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:\s]+))(?::(?P<port>\d{1,5}))?$", text)
    if match is None or int(match.group("port") or 1) > 65535 or match.group("port") == "0":
        raise UsageError("%s %r is not HOST:PORT" % (option, text), "for example %s node-0:29400" % option)
    return match.group("six") or match.group("host"), int(match.group("port") or DEFAULT_PORT)


def slurm_hosts(nodelist: str) -> List[str]:
    """The hosts of a Slurm node list, by Slurm's own tool."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        raise UsageError(
            "scontrol, which names the first node of %s, did not answer" % nodelist,
            "give --master HOST:PORT, or mount scontrol into the container",
        ) from None
    return done.stdout.decode().split()


def _number(env: Mapping[str, str], key: str) -> int:
    try:
        return int(env[key])
    except ValueError:
        raise UsageError("%s=%r is not a number" % (key, env[key]), "unset it or set the node's rank") from None


def _from_environment(
    env: Mapping[str, str], expand: Callable[[str], List[str]]
) -> Tuple[Optional[int], Optional[str], str]:
    """Node rank, master address and the platform they came from; the first platform found decides."""
    if "FLAGBENCH_NODE_RANK" in env:
        return _number(env, "FLAGBENCH_NODE_RANK"), env.get("FLAGBENCH_MASTER"), "FLAGBENCH_NODE_RANK"
    if "JOB_COMPLETION_INDEX" in env:
        return _number(env, "JOB_COMPLETION_INDEX"), env.get("FLAGBENCH_MASTER"), "JOB_COMPLETION_INDEX"
    if "PET_NODE_RANK" in env:
        master = env.get("PET_MASTER_ADDR")
        if master and "PET_MASTER_PORT" in env:
            master = "%s:%s" % (master, env["PET_MASTER_PORT"])
        return _number(env, "PET_NODE_RANK"), master, "PET_NODE_RANK"
    if "SLURM_NODEID" in env and "SLURM_JOB_NODELIST" in env:
        master = env.get("FLAGBENCH_MASTER") or expand(env["SLURM_JOB_NODELIST"])[0]
        return _number(env, "SLURM_NODEID"), master, "SLURM_NODEID"
    if "SKYPILOT_NODE_RANK" in env:
        hosts = env.get("SKYPILOT_NODE_IPS", "").split()
        return _number(env, "SKYPILOT_NODE_RANK"), hosts[0] if hosts else None, "SKYPILOT_NODE_RANK"
    return None, env.get("FLAGBENCH_MASTER"), "default"


def place(
    nodes: int,
    node_rank: Optional[int],
    master: Optional[str],
    env: Mapping[str, str] = os.environ,
    expand: Callable[[str], List[str]] = slurm_hosts,
) -> Placement:
    """Where this node stands. Flags beat the environment; what contradicts is a usage error."""
    if nodes == 1:
        if node_rank:
            raise UsageError("--node-rank %d does not exist among 1 node" % node_rank, "give --nodes too")
        host, port = parse_address(master, "--master") if master else ("127.0.0.1", 0)
        return Placement(1, 0, host, port, "single node")
    source = "--node-rank"
    if node_rank is None or master is None:
        found_rank, found_master, platform = _from_environment(env, expand)
        source = source if node_rank is not None else platform
        node_rank = found_rank if node_rank is None else node_rank
        master = found_master if master is None else master
    if node_rank is None:
        raise UsageError(
            "%d nodes were asked for and nothing says which one this is" % nodes,
            "give --node-rank, or run under Kubernetes, Slurm or SkyPilot, which say it",
        )
    if not 0 <= node_rank < nodes:
        raise UsageError(
            "node rank %d does not exist among %d nodes" % (node_rank, nodes), "it runs from 0 to %d" % (nodes - 1)
        )
    if not master:
        raise UsageError(
            "%d nodes were asked for and nothing says where node 0 is" % nodes,
            "give --master HOST:PORT or set FLAGBENCH_MASTER",
        )
    host, port = parse_address(master, "--master")
    return Placement(nodes, node_rank, host, port, source)
