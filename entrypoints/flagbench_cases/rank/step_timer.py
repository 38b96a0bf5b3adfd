"""Times one step for both loops: host times, device times and work, written to the spool."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Callable

import torch

from flagbench_cases.contract import Work, Workload
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.spool import RankSpool, Step

DRAIN_SECONDS = 1.0
"""Device times are read at least this often, so that a killed run loses only the last ones."""
NAN = float("nan")
"""A time or loss that is not yet known, or does not exist."""
COUNTED_ELSEWHERE = Work(0, 0, 0, 0, 0.0, 0.0)
"""The work of a rank whose replica is counted by another rank."""


def nothing() -> None:
    """Do nothing; the default for `after`."""


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
        after: Callable[[], None] = nothing,
    ) -> None:
        """`run` is the step. `after` does the work that the publisher does after its clock has stopped. `counts`:
        whether this rank counts its replica's work."""
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
        self._ended: float | None = None
        """When the last step ended, host seconds; None while something other than a step runs."""
        self._window: str | None = None
        """The phase whose window is being measured; None during the warm-up."""
        self._stretch: tuple[int, Any] | None = None
        """The number of the first of consecutive steps of the window, and the mark of its start."""
        self._pending: deque[tuple[int, Any, Any, Any, list[Any], list[Any], list[Any], torch.Tensor | None]] = (
            deque()
        )
        self.not_finite: tuple[int, float] | None = None
        """The number and loss of the first step whose loss, read after the step, is not finite."""

    def step(self, batch: Any, mark: float) -> tuple[float | None, float]:
        """Run one step on a batch requested at time `mark`. Returns the loss, if this rank has it already, and the
        time at which the step's bookkeeping ended. A loss on the device is read by `drain`."""
        ready = now()
        on_device = self.workload.to_device(batch)
        if self._window is not None and self._stretch is None:
            self._stretch = (self.count, self.clock.mark())
        start = self.clock.mark()
        begun = now()
        loss = self.run(on_device)
        ended = now()
        loss_on_host = None if isinstance(loss, torch.Tensor) else loss
        late = self.clock.copy(loss) if isinstance(loss, torch.Tensor) else None
        end = self.clock.mark()
        self._ended = ended
        self.after()
        work = self.workload.work(batch) if self.counts else COUNTED_ELSEWHERE
        number = _number(loss_on_host)
        self.spool.step(Step(ready - mark, begun - ready, ended - begun, NAN, NAN, NAN, 0.0, number, *work))
        probe = self.probe
        micro = probe.take_micro_batches()
        of_rank = (probe.take(), probe.take_syncs(), probe.take_passes(), micro)
        self._pending.append((self.count, start, end, *of_rank, late))
        self.count += 1
        if len(self._pending) >= self.clock.drain_every or ended - self._drained > DRAIN_SECONDS:
            self.drain()
            self._drained = ended
        return loss_on_host, self.until_now()

    def until_now(self) -> float:
        """Attribute the time since the last step to its `after`; returns the current time."""
        at = now()
        if self._ended is not None:
            self.spool.update(self.count - 1, after=at - self._ended)
        return at

    def enter(self, window: str | None) -> None:
        """The next step belongs to the window of that phase, or (None) to the warm-up."""
        self._window = window
        self._stretch = None

    def settle(self) -> None:
        """Synchronise the device, attributing the time to the last step's `after`. What follows is not a step."""
        end = None
        if self._stretch is not None:
            end = self.clock.mark()
        self.device.synchronize()
        self.until_now()
        self._ended = None
        if self._stretch is not None:
            self._write_stretch(*self._stretch, end)
            self._stretch = None

    def _write_stretch(self, first: int, start: Any, end: Any) -> None:
        """Write that steps of the window end now, and the seconds since their start on the device.

        The seconds are those of the device's clock, since the host may have started the first step while the device
        was still in the warm-up.
        """
        seconds = self.clock.seconds(start, end)
        self.clock.release([start, end])
        self.spool.fact("window", name=self._window, steps=self.count - first, seconds=seconds)

    def drain(self, everything: bool = False) -> None:
        """Write the available device times and losses to the spool; use `everything` only after a synchronisation."""
        clock = self.clock
        while self._pending and (everything or clock.reached(self._pending[0][2])):
            index, start, end, marks, syncs, passes, micro, late = self._pending.popleft()
            first = wait = NAN
            if marks is not None:
                synced = self.probe.total_seconds(syncs)
                first = clock.seconds(start, marks[0]) - synced
                wait = clock.seconds(marks[1], marks[2]) + synced
                clock.release(list(marks))
            clock.release(syncs)
            self.spool.update(index, device=clock.seconds(start, end), first_collective=first, collective_wait=wait)
            clock.release([start, end])
            if passes:
                computing, pipeline = self.probe.pass_seconds(passes)
                self.spool.update(index, computing=computing, pipeline=pipeline)
                clock.release(passes)
            if micro:
                seconds = [clock.seconds(*pair) for pair in zip(micro, micro[1:])]
                self.spool.fact("micro_batches", step=index, seconds=seconds)
                clock.release(micro)
            if late is not None:
                loss = float(late)
                self.spool.update(index, loss=loss)
                if self.not_finite is None and not is_finite(loss):
                    self.not_finite = (index, loss)


def _number(loss: float | None) -> float:
    if loss is None:
        return NAN
    return loss


def is_finite(loss: float | None) -> bool:
    """Whether a loss is finite; True for None."""
    return loss is None or math.isfinite(loss)
