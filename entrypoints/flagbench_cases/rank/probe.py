"""Where a rank's own work ends and waiting for the others begins, seen from its gradients.

Synchronous training hides a slow rank: every rank shows the same step time. The time until a rank's first gradient
is ready, and with it the first collective, is its own; the time from its last gradient to the end of the backward
pass is spent waiting for the slowest.
"""

from typing import Any, List, Optional

import torch


class CollectiveProbe:
    """Marks of one step: the first gradient, the last gradient, the end of the backward pass.

    They are taken by hooks on two parameters, so that the reduction itself stays DistributedDataParallel's own: a
    communication hook would replace its fused averaging.
    """

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.first: Optional[Any] = None
        self.last: Optional[Any] = None
        self.done: Optional[Any] = None

    def attach(self, parameters: List[torch.nn.Parameter]) -> None:
        """Watch the parameters of a module, in the order of its forward pass: gradients come in the reverse order."""
        parameters[-1].register_hook(self._first_gradient)
        parameters[0].register_hook(self._last_gradient)

    def _first_gradient(self, gradient: torch.Tensor) -> None:
        self.first = self._clock.mark()

    def _last_gradient(self, gradient: torch.Tensor) -> None:
        self.last = self._clock.mark()

    def backward_done(self) -> None:
        """Called by the step right after its backward pass."""
        if self.first is not None:
            self.done = self._clock.mark()

    def take(self) -> Any:
        """The marks (first, last, done) of the step just done, and begin the next; None where there are none."""
        marks = (self.first, self.last, self.done)
        self.first = self.last = self.done = None
        return None if None in marks else marks
