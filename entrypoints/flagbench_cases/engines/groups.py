"""The process groups of a job: along each axis of its layout, or of a single rank for libraries that need one."""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed as dist

from flagbench_cases.shared.parallel_layout import AXES, Layout


def make_groups(layout: Layout, rank: int, limit: datetime.timedelta) -> dict[str, Any]:
    """This rank's process group along each axis; empty if replicas are not split. Must be called by every rank.

    `limit` is the timeout of a collective.
    """
    groups: dict[str, Any] = {}
    if layout.ranks_per_replica == 1:
        return groups
    for axis in AXES:
        for ranks in layout.groups(axis):
            group = dist.new_group(ranks, timeout=limit)
            if rank in ranks:
                groups[axis] = group
    return groups


def ensure_group(backend: str) -> None:
    """Create a single-rank group unless one exists. With several ranks it exists before a workload is built."""
    if not dist.is_initialized():
        # An in-process store opens no port.
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
