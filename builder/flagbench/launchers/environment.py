"""The environment of a container: an allow-list, because the caller's own environment contains secrets."""

from __future__ import annotations

from collections.abc import Mapping

from flagbench.catalog.model import Stack

# Settings of collectives and of thread pools.
PREFIXES = ("NCCL_", "MCCL_", "GLOO_")
NAMES = ("OMP_NUM_THREADS",)
# Where a platform says which node this is, in the order in which the image reads them, and where node 0 is.
RANKS = ("FLAGBENCH_NODE_RANK", "JOB_COMPLETION_INDEX", "PET_NODE_RANK", "SLURM_NODEID", "SKYPILOT_NODE_RANK")
MASTERS = (
    "FLAGBENCH_MASTER",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SKYPILOT_NODE_IPS",
)


def passed_on(environment: Mapping[str, str], stack: Stack, nodes: int) -> dict[str, str]:
    """The caller's variables that a container of this stack gets, sorted by name."""
    names = {name for name in environment if name.startswith(PREFIXES)} | set(NAMES)
    if nodes > 1:
        names |= {*RANKS, *MASTERS}
    else:
        # A container on a network of its own does not have the host's interfaces.
        names = {name for name in names if not name.endswith("_SOCKET_IFNAME")}
    if stack.visibility_variable is not None:
        names.add(stack.visibility_variable)
    return {name: environment[name] for name in sorted(names) if name in environment}


def is_another_node(node_rank: int | None, environment: Mapping[str, str]) -> bool:
    """Whether this is known to be another node than node 0, which alone prints the record."""
    if node_rank is not None:
        return node_rank > 0
    rank = next((environment[name] for name in RANKS if name in environment), "0")
    return rank.strip().isdecimal() and int(rank) > 0
