"""Separates a rank's own work from waiting for other ranks, by the times of its gradients.

Synchronous training hides a slow rank, since every rank has the same step time. The time until a rank's first
gradient is ready, and with it the first collective, is the rank's own. The time from its last gradient to the end of
the backward pass is spent waiting for the slowest rank. Where replicas have buffers, which are made equal before each
forward pass, ranks wait for the slowest one there, too.

In a pipeline of stages, a rank also waits for other stages between the passes of its micro-batches, so the passes are
marked too.
"""

from __future__ import annotations

from typing import Any

import torch


class CollectiveProbe:
    """Marks of one step: first gradient, last gradient, end of the backward pass.

    They are recorded by hooks on two parameters. A DistributedDataParallel communication hook would replace its fused
    averaging.
    """

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.first: Any | None = None
        self.last: Any | None = None
        self.done: Any | None = None
        self._passes: list[Any] = []
        self._micro_batches: list[Any] = []
        self._syncs: list[Any] = []

    def attach(self, parameters: list[torch.nn.Parameter]) -> None:
        """Hook a module's parameters, given in the order of its forward pass: gradients arrive in reverse order."""
        parameters[-1].register_hook(self._first_gradient)
        parameters[0].register_hook(self._last_gradient)

    def attach_buffers(self, network: torch.nn.Module, module: torch.nn.Module) -> None:
        """Hook a network that makes the buffers of its `module` equal on all ranks before it calls that."""
        network.register_forward_pre_hook(lambda *_: self._mark_sync(begins=True))
        module.register_forward_pre_hook(lambda *_: self._mark_sync(begins=False))

    def _mark_sync(self, begins: bool) -> None:
        """Mark the start or end of making buffers equal; not in evaluations, nor where the module alone is called."""
        if torch.is_grad_enabled() and begins == (len(self._syncs) % 2 == 0):
            self._syncs.append(self._clock.mark())

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
        if None in marks:
            return None
        return marks

    def take_syncs(self) -> list[Any]:
        """Return and reset the marks of the last step's waits for buffers: start and end in turn."""
        syncs, self._syncs = self._syncs, []
        return syncs

    def pass_begins(self) -> None:
        """Mark the start of the forward or backward pass of a micro-batch."""
        self._passes.append(self._clock.mark())

    def pass_ends(self) -> None:
        """Mark the end of the pass."""
        self._passes.append(self._clock.mark())

    def take_passes(self) -> list[Any]:
        """Return and reset the marks of the last step's passes: start and end in turn. Empty if none were marked."""
        passes, self._passes = self._passes, []
        return passes

    def micro_batch(self) -> None:
        """Mark the start of a micro-batch, or the end of the last one of a step."""
        self._micro_batches.append(self._clock.mark())

    def take_micro_batches(self) -> list[Any]:
        """Return and reset the marks of the last step's micro-batches. Empty if none were marked."""
        marks, self._micro_batches = self._micro_batches, []
        return marks

    def pass_seconds(self, passes: list[Any]) -> tuple[float, float]:
        """The sum of the passes' durations, and the time from the first start to the last end, seconds. The marks
        must have been reached."""
        return self.total_seconds(passes), self._clock.seconds(passes[0], passes[-1])

    def total_seconds(self, marks: list[Any]) -> float:
        """The sum of the times between each start and its end, seconds. The marks must have been reached."""
        return sum(self._clock.seconds(start, end) for start, end in zip(marks[::2], marks[1::2]))
