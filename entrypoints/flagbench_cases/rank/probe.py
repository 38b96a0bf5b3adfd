"""Separates a rank's own work from waiting for other ranks, by the times of its gradients.

Synchronous training hides a slow rank, since every rank has the same step time. The time until a rank's first
gradient is ready, and with it the first collective, is the rank's own. The time from its last gradient to the end of
the backward pass is spent waiting for the slowest rank.
"""

from typing import Any, List, Optional

import torch


class CollectiveProbe:
    """Marks of one step: first gradient, last gradient, end of the backward pass.

    They are recorded by hooks on two parameters. A DistributedDataParallel communication hook would replace its fused
    averaging.
    """

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.first: Optional[Any] = None
        self.last: Optional[Any] = None
        self.done: Optional[Any] = None

    def attach(self, parameters: List[torch.nn.Parameter]) -> None:
        """Hook a module's parameters, given in the order of its forward pass: gradients arrive in reverse order."""
        parameters[-1].register_hook(self._first_gradient)
        parameters[0].register_hook(self._last_gradient)

    def _first_gradient(self, gradient: torch.Tensor) -> None:
        self.first = self._clock.mark()

    def _last_gradient(self, gradient: torch.Tensor) -> None:
        self.last = self._clock.mark()

    def backward_done(self) -> None:
        """Must be called by the step immediately after its backward pass."""
        if self.first is not None:
            self.done = self._clock.mark()

    def take(self) -> Any:
        """Return and reset the marks (first, last, done) of the last step; None if incomplete."""
        marks = (self.first, self.last, self.done)
        self.first = self.last = self.done = None
        return None if None in marks else marks
