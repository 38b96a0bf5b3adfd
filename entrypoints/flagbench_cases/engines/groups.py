"""The process groups of a layout: one along each of its axes."""

import datetime
from typing import Any, Dict

import torch.distributed as dist

from flagbench_cases.shared.layout import AXES, Layout


def make_groups(layout: Layout, rank: int, limit: datetime.timedelta) -> Dict[str, Any]:
    """This rank's process group along each axis; none where replicas are not split. Called by every rank.

    `limit` is how long a collective may take.
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
