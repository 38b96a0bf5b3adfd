"""Times the steps of the training and inference loops, and writes host times, device times and work to the spool.

Host times and work are written right after a step. Device times are known only when the device has finished the step,
so they are written later, by `StepTimer.drain`: waiting for them would slow the run down.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Callable, NamedTuple

import torch

from flagbench_cases.contract import Work, Workload
from flagbench_cases.rank.probe import CollectiveProbe, GradientMarks
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.spool import RankSpool, Step

DRAIN_SECONDS = 1.0
"""Device times are read at least this often, so that a killed run loses only the last ones."""
NAN = float("nan")
"""A time or loss that is not yet known, or does not exist."""
COUNTED_ELSEWHERE = Work(0, 0, 0, 0, 0.0, 0.0)
"""The work of a rank whose replica is counted by another rank."""


class PendingStep(NamedTuple):
    """A step whose device times are not written yet. Its marks are points on the device's timeline."""

    number: int
    start: Any
    """The mark of the start of the step."""
    end: Any
    """The mark of its end."""
    gradients: GradientMarks | None
    """The marks of its first and last gradient; None if the step has no collectives."""
    syncs: list[Any]
    """The marks of its waits for buffers: start and end in turn."""
    passes: list[Any]
    """The marks of the passes of its micro-batches in a pipeline: start and end in turn."""
    micro_batches: list[Any]
    """The marks of the starts of its micro-batches, and of the end of the last one."""
    loss: torch.Tensor | None
    """A loss that the device copies to the host; valid once `end` is reached. None if the host has the loss."""


class Stretch(NamedTuple):
    """Consecutive steps of a window, which the device runs without interruption."""

    first_step: int
    start: Any
    """The mark of the start of the first step."""


class StepLoss(NamedTuple):
    """The loss of one step."""

    step: int
    loss: float


def do_nothing() -> None:
    """The default for `after`: the publisher does no work after its clock has stopped."""


class StepTimer:
    """Times and numbers (from 0) the steps of a workload on this rank."""

    def __init__(
        self,
        workload: Workload,
        run: Callable[[Any], float | torch.Tensor | None],
        spool: RankSpool,
        device: Any,
        probe: CollectiveProbe,
        counts: bool = True,
        after: Callable[[], None] = do_nothing,
    ) -> None:
        """Time the steps of `workload`.

        Args:
            workload: copies batches to the device and counts their work.
            run: runs one step on a batch on the device; returns the loss, if there is one.
            spool: receives the measurements.
            device: its clock gives the marks.
            probe: marks gradients and passes within a step.
            counts: whether this rank counts its replica's work.
            after: does the work that the publisher does after its clock has stopped.
        """
        self.workload = workload
        self.run = run
        self.after = after
        self.spool = spool
        self.device = device
        self.clock = device.clock
        self.probe = probe
        self.counts = counts
        self.count = 0
        self._drained = now()
        """When device times were last read, host seconds."""
        self._ended: float | None = None
        """When the last step ended, host seconds; None while something other than a step runs."""
        self._window: str | None = None
        """The phase whose window is being measured; None during the warm-up."""
        self._stretch: Stretch | None = None
        """The steps of the window since the last interruption; None before the first of them."""
        self._pending: deque[PendingStep] = deque()
        self.not_finite: StepLoss | None = None
        """The first step whose loss was read from the device by `drain` and is not finite; None if all are finite."""

    def step(self, batch: Any, requested: float) -> tuple[float | None, float]:
        """Run one step on a batch that was requested at time `requested`, host seconds.

        Returns:
            The loss, or None if the step has none or left it on the device, where `drain` reads it; and the time at
            which the bookkeeping of the step ended, from which the wait for the next batch counts.
        """
        ready = now()
        on_device = self.workload.to_device(batch)
        if self._window is not None and self._stretch is None:
            self._stretch = Stretch(self.count, self.clock.mark())
        start = self.clock.mark()
        begun = now()
        loss = self.run(on_device)
        ended = now()
        loss_on_host: float | None = None
        loss_copy: torch.Tensor | None = None
        if isinstance(loss, torch.Tensor):
            loss_copy = self.clock.copy(loss)  # before the mark of the end: the copy is valid once that is reached
        else:
            loss_on_host = loss
        end = self.clock.mark()
        self._ended = ended
        self.after()
        work = COUNTED_ELSEWHERE
        if self.counts:
            work = self.workload.work(batch)
        number = _number(loss_on_host)
        self.spool.step(Step(ready - requested, begun - ready, ended - begun, NAN, NAN, NAN, 0.0, number, *work))
        pending = PendingStep(
            self.count,
            start,
            end,
            self.probe.take_gradients(),
            self.probe.take_syncs(),
            self.probe.take_passes(),
            self.probe.take_micro_batches(),
            loss_copy,
        )
        self._pending.append(pending)
        self.count += 1
        if len(self._pending) >= self.clock.drain_every or ended - self._drained > DRAIN_SECONDS:
            self.drain()
            self._drained = ended
        return loss_on_host, self.end_bookkeeping()

    def end_bookkeeping(self) -> float:
        """Write the time from the end of the last step until now as its `after`. Returns the current time."""
        current = now()
        if self._ended is not None:
            self.spool.update(self.count - 1, after=current - self._ended)
        return current

    def enter(self, window: str | None) -> None:
        """Let the next step belong to the window of the phase `window`; None: to the warm-up."""
        self._window = window
        self._stretch = None

    def settle(self) -> None:
        """Synchronise the device before something other than a step. The wait counts as the last step's `after`."""
        end = None
        if self._stretch is not None:
            end = self.clock.mark()
        self.device.synchronize()
        self.end_bookkeeping()
        self._ended = None
        if self._stretch is not None:
            self._write_stretch(self._stretch, end)
            self._stretch = None

    def _write_stretch(self, stretch: Stretch, end: Any) -> None:
        """Write the number of steps of a stretch that ends at the mark `end`, and the seconds that they took.

        The seconds are those of the device's clock, since the host may have started the first step while the device
        was still in the warm-up.
        """
        seconds = self.clock.seconds(stretch.start, end)
        self.clock.release([stretch.start, end])
        self.spool.fact("window", name=self._window, steps=self.count - stretch.first_step, seconds=seconds)

    def drain(self, everything: bool = False) -> None:
        """Write the available device times and losses to the spool; use `everything` only after a synchronisation."""
        while self._pending:
            if not everything and not self.clock.reached(self._pending[0].end):
                break
            self._write_device_times(self._pending.popleft())

    def _write_device_times(self, step: PendingStep) -> None:
        """Write the device times and the loss of a step that the device has finished, and return its marks."""
        clock = self.clock
        first_collective = NAN
        collective_wait = NAN
        if step.gradients is not None:
            # Ranks also wait for one another while buffers are made equal, which happens before the first gradient.
            sync_seconds = self.probe.total_seconds(step.syncs)
            first_collective = clock.seconds(step.start, step.gradients.first) - sync_seconds
            collective_wait = clock.seconds(step.gradients.last, step.gradients.done) + sync_seconds
            clock.release(list(step.gradients))
        clock.release(step.syncs)
        self.spool.update(
            step.number,
            device=clock.seconds(step.start, step.end),
            first_collective=first_collective,
            collective_wait=collective_wait,
        )
        clock.release([step.start, step.end])
        if step.passes:
            times = self.probe.pass_times(step.passes)
            self.spool.update(step.number, computing=times.computing, pipeline=times.pipeline)
            clock.release(step.passes)
        if step.micro_batches:
            pairs = zip(step.micro_batches, step.micro_batches[1:])
            seconds = [clock.seconds(start, end) for start, end in pairs]
            self.spool.fact("micro_batches", step=step.number, seconds=seconds)
            clock.release(step.micro_batches)
        if step.loss is not None:
            self._write_loss(step.number, float(step.loss))

    def _write_loss(self, number: int, loss: float) -> None:
        """Write a loss that was read from the device, and note the first one that is not finite."""
        self.spool.update(number, loss=loss)
        if self.not_finite is None and not is_finite(loss):
            self.not_finite = StepLoss(number, loss)


def _number(loss: float | None) -> float:
    """The loss as the spool stores it: NaN for None."""
    if loss is None:
        return NAN
    return loss


def is_finite(loss: float | None) -> bool:
    """Whether a loss is finite; True for None."""
    return loss is None or math.isfinite(loss)
