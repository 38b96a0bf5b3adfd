"""The process groups of a layout, one along each axis."""

import datetime
from typing import Any, Dict

import torch.distributed as dist

from flagbench_cases.shared.layout import AXES, Layout


def make_groups(layout: Layout, rank: int, limit: datetime.timedelta) -> Dict[str, Any]:
    """This rank's process group along each axis; empty if replicas are not split. Must be called by every rank.

    `limit` is the timeout of a collective.
    """
    groups: Dict[str, Any] = {}
    if layout.ranks_per_replica == 1:
        return groups
    for axis in AXES:
        for ranks in layout.groups(axis):
            group = dist.new_group(ranks, timeout=limit)
            if rank in ranks:
                groups[axis] = group
    return groups
