"""Separates the time in which a rank works from the time in which it waits for other ranks.

The step timer (step_timer.py) uses it; engines and workloads call its hooks within a step.

Synchronous training hides a slow rank, since every rank has the same step time. The time until a rank's first
gradient is ready, and with it the first collective, is the rank's own. The time from its last gradient to the end of
the backward pass is spent waiting for the slowest rank. Where replicas have buffers, which are made equal before each
forward pass, ranks wait for the slowest one there, too.

In a pipeline of stages, a rank also waits for other stages between the passes of its micro-batches, so the passes are
marked too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class GradientMarks(NamedTuple):
    """Marks of one step on the device's timeline."""

    first: Any
    """The first gradient is ready."""
    last: Any
    """The last gradient is ready."""
    done: Any
    """The backward pass has ended."""


class PassTimes(NamedTuple):
    """The times of the passes of one step in a pipeline, seconds."""

    computing: float
    """The sum of the durations of the passes."""
    pipeline: float
    """The time from the start of the first pass to the end of the last."""


class CollectiveProbe:
    """Collects the marks of the current step. Each `take_...` method returns those of the last step and forgets them.

    The marks of gradients are recorded by hooks on two parameters. A communication hook of DistributedDataParallel
    could record them, too, but would replace its fused averaging, and with it the work of the publisher.
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
        """Hook a `network` that makes the buffers of its `module` equal on all ranks before it calls the module."""
        network.register_forward_pre_hook(self._sync_begins)
        module.register_forward_pre_hook(self._sync_ends)

    def _sync_begins(self, *_: Any) -> None:
        """Mark that the network begins to make buffers equal, except in an evaluation."""
        if torch.is_grad_enabled() and not self._is_sync_open():
            self._syncs.append(self._clock.mark())

    def _sync_ends(self, *_: Any) -> None:
        """Mark that the buffers are equal, unless the module was called without its network."""
        if torch.is_grad_enabled() and self._is_sync_open():
            self._syncs.append(self._clock.mark())

    def _is_sync_open(self) -> bool:
        """Whether the last mark is a start without an end."""
        return len(self._syncs) % 2 == 1

    def _first_gradient(self, gradient: torch.Tensor) -> None:
        self.first = self._clock.mark()

    def _last_gradient(self, gradient: torch.Tensor) -> None:
        self.last = self._clock.mark()

    def backward_done(self) -> None:
        """Mark the end of the backward pass. A step must call this immediately after it."""
        if self.first is not None:
            self.done = self._clock.mark()

    def take_gradients(self) -> GradientMarks | None:
        """Return and reset the marks of the last step's gradients; None if one of them is missing."""
        marks = GradientMarks(self.first, self.last, self.done)
        self.first = None
        self.last = None
        self.done = None
        if None in marks:
            return None
        return marks

    def take_syncs(self) -> list[Any]:
        """Return and reset the marks of the last step's waits for buffers: start and end in turn."""
        syncs = self._syncs
        self._syncs = []
        return syncs

    def pass_begins(self) -> None:
        """Mark the start of the forward or backward pass of a micro-batch."""
        self._passes.append(self._clock.mark())

    def pass_ends(self) -> None:
        """Mark the end of the pass."""
        self._passes.append(self._clock.mark())

    def take_passes(self) -> list[Any]:
        """Return and reset the marks of the last step's passes: start and end in turn. Empty if none were marked."""
        passes = self._passes
        self._passes = []
        return passes

    def micro_batch(self) -> None:
        """Mark the start of a micro-batch, or the end of the last one of a step."""
        self._micro_batches.append(self._clock.mark())

    def take_micro_batches(self) -> list[Any]:
        """Return and reset the marks of the last step's micro-batches. Empty if none were marked."""
        marks = self._micro_batches
        self._micro_batches = []
        return marks

    def pass_times(self, passes: list[Any]) -> PassTimes:
        """The times of passes that `take_passes` returned. The device must have reached their marks."""
        return PassTimes(self.total_seconds(passes), self._clock.seconds(passes[0], passes[-1]))

    def total_seconds(self, marks: list[Any]) -> float:
        """The sum of the times between each start and its end, seconds. The device must have reached the marks."""
        return sum(self._clock.seconds(start, end) for start, end in zip(marks[::2], marks[1::2]))
