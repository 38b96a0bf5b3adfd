"""Where a rank's own work ends and waiting for the others begins, seen from DDP's gradient buckets.

Synchronous training hides a slow rank: every rank shows the same step time. The time until a rank hands its
first gradients to a collective is its own; the time from its last bucket to the end of the backward pass is
spent waiting for the slowest.
"""

from typing import Any, Optional

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


class CollectiveProbe:
    """Marks of one step: the first bucket, the last bucket, the end of the backward pass."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.first: Optional[Any] = None
        self.last: Optional[Any] = None
        self.done: Optional[Any] = None

    def attach(self, module: Any) -> None:
        """Watch a DistributedDataParallel module; its reduction stays the plain averaged all-reduce."""
        module.register_comm_hook(dist.group.WORLD, self._hook)

    def _hook(self, group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        mark = self._clock.mark()
        if self.first is None:
            self.first = mark
        else:
            if self.last is not None:
                self._clock.release([self.last])
            self.last = mark
        return allreduce_hook(group, bucket)

    def backward_done(self) -> None:
        """Called by the step right after its backward pass."""
        if self.first is not None:
            self.done = self._clock.mark()

    def take(self) -> Any:
        """The marks (first, last, done) of the step just done, and begin the next; None without collectives."""
        if self.first is None or self.done is None:
            self.first = self.last = self.done = None
            return None
        marks = (self.first, self.last if self.last is not None else self.first, self.done)
        self.first = self.last = self.done = None
        return marks
