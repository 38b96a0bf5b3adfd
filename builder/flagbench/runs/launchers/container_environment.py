"""Which of the caller's environment variables enter a container."""

from __future__ import annotations

from collections.abc import Mapping

from flagbench.manifests.stack import Stack

# Settings of collectives, of the framework and of kernel launches. Not all of CUDA_*, which has the host's paths.
_PREFIXES = ("NCCL_", "TORCH_NCCL_", "MCCL_", "GLOO_", "NVTE_", "PYTORCH_", "CUDA_DEVICE_")
# Where a platform says which node this is, in the order in which the image reads them, and where node 0 is.
_RANKS = ("FLAGBENCH_NODE_RANK", "JOB_COMPLETION_INDEX", "PET_NODE_RANK", "SLURM_NODEID", "SKYPILOT_NODE_RANK")
_MASTERS = (
    "FLAGBENCH_MASTER",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SKYPILOT_NODE_IPS",
)


def passed_on(environment: Mapping[str, str], stack: Stack, nodes: int) -> dict[str, str]:
    """The caller's variables that a container of this stack gets, sorted by name.

    An allow-list, because the caller's environment contains secrets.
    """
    names = {name for name in environment if name.startswith(_PREFIXES)} | {"OMP_NUM_THREADS"}
    if nodes > 1:
        names |= {*_RANKS, *_MASTERS}
    else:
        # A container on a network of its own does not have the host's interfaces.
        names = {name for name in names if not name.endswith("_SOCKET_IFNAME")}
    if stack.device.visibility_variable is not None:
        names.add(stack.device.visibility_variable)
    return {name: environment[name] for name in sorted(names) if name in environment}


def is_another_node(node_rank: int | None, environment: Mapping[str, str]) -> bool:
    """Whether this is known to be another node than node 0, which alone prints the record."""
    if node_rank is not None:
        return node_rank > 0
    rank = next((environment[name] for name in _RANKS if name in environment), "0")
    return rank.strip().isdecimal() and int(rank) > 0
