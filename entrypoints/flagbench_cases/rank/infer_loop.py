"""The inference loop: runs the passes of an InferWorkload; each batch is a step, timed by a StepTimer.

A pass goes through a data set once. rank/run.py creates the loop.

Each rank sums its own times, and the job's time is the maximum of these sums:
  p_infer_whole  samples / (end - start of the pass), the device synchronised at both
  p_infer_core   samples / sum of device step times, by events; warm-up excluded
and p_val_whole and p_val_core for a pass over data with known answers. The publisher's metrics (FlagPerf inference/),
by rank 0's host clock and with batches counted as full, are p_infer_core_host and p_val_core_host.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from flagbench_cases.contract import INFER, InferWorkload
from flagbench_cases.rank.evaluation import write_evaluation
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.step_timer import StepTimer, is_finite
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.errors import CaseError, DataError
from flagbench_cases.shared.spool import RankSpool
from flagbench_core.exit_codes import ExitCode


class InferPlan(NamedTuple):
    """How much of a workload to run."""

    warmup_steps: int
    """The number of steps at the start of a pass that are not part of its window."""
    window_steps: int | None
    """None: run every pass of the workload in full. Otherwise only the pass INFER is run, for this number of steps
    after the warm-up, and starts over if its data ends before."""

    def passes(self, workload: InferWorkload) -> Sequence[str]:
        """The passes of this run, in order. Raises DataError for an empty pass."""
        names: Sequence[str] = (INFER,)
        if self.window_steps is None:
            names = workload.passes()
        for name in names:
            if workload.steps(name) < 1:
                raise DataError(f"the pass {name} has no batches on this rank", "use more data")
        return names

    def steps(self, workload: InferWorkload, name: str) -> int:
        """The number of steps in the pass `name`."""
        if self.window_steps is None:
            return workload.steps(name)
        return self.warmup_steps + self.window_steps


class InferLoop:
    """Runs a workload's passes on one rank and writes the measurements to the spool."""

    def __init__(
        self,
        workload: InferWorkload,
        plan: InferPlan,
        spool: RankSpool,
        device: Any,
        probe: CollectiveProbe,
        counts: bool = True,
    ) -> None:
        """Prepare to run `workload` as `plan` says. `counts`: whether this rank counts its replica's work."""
        self.workload = workload
        self.plan = plan
        self.spool = spool
        self.device = device
        self.timer = StepTimer(workload, workload.infer, spool, device, probe, counts, workload.after_step)

    def run(self) -> dict[str, Any]:
        """Run every pass. Returns the duration of each, seconds."""
        seconds: dict[str, Any] = {}
        for name in self.plan.passes(self.workload):
            first = self.timer.count
            self.spool.fact("pass_begun", name=name, first_step=first)
            seconds[name] = self._run_pass(name, self.plan.steps(self.workload, name))
            steps = self.timer.count - first
            self.spool.fact("pass", name=name, first_step=first, steps=steps, seconds=seconds[name])
            if self.plan.window_steps is None:
                self._report_result(name, seconds[name])
        return seconds

    def _run_pass(self, name: str, steps: int) -> float:
        """Run one pass, synchronised at start and end. Returns its duration, seconds."""
        first = self.timer.count
        end = first + steps
        self.spool.phase("warmup", end)
        if self.plan.warmup_steps:
            self.timer.enter(None)
        else:
            self.timer.enter(name)
        self.device.synchronize()
        start = now()
        requested = start
        seconds = 0.0
        while self.timer.count < end:
            before = self.timer.count
            for batch in self.workload.batches(name):
                loss, requested = self.timer.step(batch, requested)
                if not is_finite(loss):
                    self._fail_not_finite(self.timer.count - 1, loss)
                self._check_device_losses()
                if self.timer.count - first == self.plan.warmup_steps:
                    self.spool.phase(name, end)
                    self.timer.enter(name)
                    requested = self.timer.end_bookkeeping()
                if self.timer.count == end:
                    self.timer.settle()  # before the loader ends: its workers are no part of the last step
                    seconds = now() - start
                    break
            if self.timer.count == before:
                raise DataError(f"the pass {name} has no batches", "use more data")
        self.timer.drain(everything=True)
        self._check_device_losses()
        return seconds

    def _check_device_losses(self) -> None:
        """Raise CaseError (INVALID) if a loss that was read from the device after its step is not finite."""
        not_finite = self.timer.not_finite
        if not_finite is not None:
            self._fail_not_finite(not_finite.step, not_finite.loss)

    def _fail_not_finite(self, step: int, loss: float | None) -> None:
        """Raise CaseError (INVALID) for the loss of `step`, after the device times so far are written."""
        self.timer.drain()
        raise CaseError(
            f"the loss of step {step} is {loss}",
            "another --precision may help; without --weights the model has random weights",
            ExitCode.INVALID,
        )

    def _report_result(self, name: str, seconds: float) -> None:
        """Write the result of a full pass to the spool. This is not timed."""
        self.spool.phase("eval")
        evaluation = self.workload.result(name)
        if evaluation is not None:
            position = {"pass": name, "epoch": 0, "steps": self.timer.count}  # `pass` is a keyword of Python
            write_evaluation(self.spool, evaluation, seconds, **position)
