"""Training on several replicas: gradients averaged by torch's DistributedDataParallel."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from flagbench_cases.contract import Context


def data_parallel(
    module: torch.nn.Module, context: Context, watched: list[torch.nn.Parameter] | None = None
) -> torch.nn.Module:
    """`module` with its gradients averaged over the replicas; `module` itself if there is only one replica.

    The probe hooks the `watched` parameters (default: all), which must be in the order of the forward pass.
    """
    if context.layout.dp == 1:  # no gradients to reduce, and possibly no process group
        return module
    ids = None
    if context.device.torch_device.type == "cuda":
        ids = [context.local_rank]
    if watched is None:
        watched = list(module.parameters())
    network = DistributedDataParallel(module, device_ids=ids, process_group=context.groups.get("dp"))
    context.probe.attach(watched)
    if list(module.buffers()):
        context.probe.attach_buffers(network, module)
    return network
