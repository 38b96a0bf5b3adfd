"""Chooses the environment variables of the caller that a container gets, and reads which node this is from them."""

from __future__ import annotations

from collections.abc import Mapping

from flagbench.manifests.stack import Stack

_PREFIXES = ("NCCL_", "TORCH_NCCL_", "MCCL_", "GLOO_", "NVTE_", "PYTORCH_", "CUDA_DEVICE_")
"""Settings of collectives, of the framework and of kernel launches. Others of CUDA_* have paths of the host."""
_RANKS = ("FLAGBENCH_NODE_RANK", "JOB_COMPLETION_INDEX", "PET_NODE_RANK", "SLURM_NODEID", "SKYPILOT_NODE_RANK")
"""The variables in which a platform says which node this is, in the order in which the image reads them."""
_MASTERS = (
    "FLAGBENCH_MASTER",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SKYPILOT_NODE_IPS",
)
"""The variables in which a platform says where node 0 is."""


def passed_on(environment: Mapping[str, str], stack: Stack, nodes: int) -> dict[str, str]:
    """The caller's variables that a container of this stack gets, sorted by name.

    Only variables that are listed here are passed on, because the caller's environment contains secrets.
    """
    names = {"OMP_NUM_THREADS"}
    for name in environment:
        # The container of a single node has its own network, without the interfaces of the host.
        names_host_interface = nodes == 1 and name.endswith("_SOCKET_IFNAME")
        if name.startswith(_PREFIXES) and not names_host_interface:
            names.add(name)
    if nodes > 1:
        names.update(_RANKS)
        names.update(_MASTERS)
    if stack.device.visibility_variable is not None:
        names.add(stack.device.visibility_variable)
    return {name: environment[name] for name in sorted(names) if name in environment}


def is_another_node(node_rank: int | None, environment: Mapping[str, str]) -> bool:
    """Whether this is certainly not node 0, which alone prints the record.

    `node_rank`: the value of --node-rank; None: the variables of the platform decide.
    """
    if node_rank is not None:
        return node_rank > 0
    for name in _RANKS:
        if name in environment:
            rank = environment[name].strip()
            return rank.isdecimal() and int(rank) > 0
    return False
