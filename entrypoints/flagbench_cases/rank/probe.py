"""Separates a rank's own work from waiting for other ranks, by the times of its gradients.

Synchronous training hides a slow rank, since every rank has the same step time. The time until a rank's first
gradient is ready, and with it the first collective, is the rank's own. The time from its last gradient to the end of
the backward pass is spent waiting for the slowest rank.

In a pipeline of stages, a rank also waits for other stages between the passes of its micro-batches, so the passes are
marked too.
"""

from typing import Any, List, Optional, Tuple

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
        self._passes: List[Any] = []

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

    def pass_begins(self) -> None:
        """Mark the start of the forward or backward pass of a micro-batch."""
        self._passes.append(self._clock.mark())

    def pass_ends(self) -> None:
        """Mark the end of the pass."""
        self._passes.append(self._clock.mark())

    def take_passes(self) -> List[Any]:
        """Return and reset the marks of the last step's passes: start and end in turn. Empty if none were marked."""
        passes, self._passes = self._passes, []
        return passes

    def pass_seconds(self, passes: List[Any]) -> Tuple[float, float]:
        """The sum of the passes' durations, and the time from the first start to the last end, seconds. The marks
        must have been reached."""
        seconds = self._clock.seconds
        computing = sum(seconds(start, end) for start, end in zip(passes[::2], passes[1::2]))
        return computing, seconds(passes[0], passes[-1])
