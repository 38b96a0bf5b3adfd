"""The training loop. It runs a TrainWorkload; each step is timed by a StepTimer.

Our metrics: each rank sums its own times, and the job's time is the maximum of these sums:
  p_whole  samples / (train end - train start), evaluations included
  p_train  samples / sum of (data wait + copy to device + step + after): without evaluations and checkpoints
  p_core   samples / sum of device step times, by events; warm-up excluded
So p_core >= p_train >= p_whole over the same steps: a rank's device times lie within its host times.
The publisher's metrics (FlagPerf, training/benchmarks): rank 0's host clock, batches counted as full:
  p_whole_published_count  train end - train start
  p_train_published_count  sum of (data wait + copy to device + step); `after` is in none of the publisher's clocks
  p_core_host              sum of host step times, even if the device has not finished
The device is synchronised only at phase boundaries (init end, train start, evaluation start and end, train end) and
where the publisher synchronises, in `step` and `after_step`.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from flagbench_cases.contract import Evaluation, TrainWorkload
from flagbench_cases.rank.evaluation import report
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.step_timer import StepTimer, is_finite
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.errors import CaseError, DataError
from flagbench_cases.shared.spool import RankSpool
from flagbench_core.evidence.section import TRAIN
from flagbench_core.exit_codes import ExitCode

MAX_SKIPPED = 3
"""Training fails after this many consecutive steps without a finite loss, even if the loss scaler skips them."""


class Plan(NamedTuple):
    """How long to train. `window_steps` None: the published run, epochs until the target or the limit.

    Evaluates every `evaluate_every` steps, or after each epoch if it is None. `max_steps` may end training within an
    epoch, with an evaluation there and after every step from `evaluate_from` on. `first_step` is the step of the
    checkpoint to resume from, `checkpoint_every` the number of steps between checkpoints.
    """

    max_epochs: int
    warmup_steps: int
    window_steps: int | None
    target_acc: float | None
    initial_evaluation: bool
    evaluate_every: int | None = None
    max_steps: int | None = None
    evaluate_from: int | None = None
    first_step: int = 0
    checkpoint_every: int | None = None

    def last_step(self, steps_per_epoch: int) -> int:
        """The last step, counted from the start of the published run."""
        if self.window_steps is not None:
            return self.first_step + self.warmup_steps + self.window_steps
        steps = self.max_epochs * steps_per_epoch
        if self.max_steps is None:
            return steps
        return min(steps, self.max_steps)

    def capacity(self, steps_per_epoch: int) -> int:
        """The maximum number of steps of this run."""
        return max(0, self.last_step(steps_per_epoch) - self.first_step)


class TrainLoop:
    """Trains a workload on one rank and writes the measurements to the spool."""

    def __init__(
        self,
        workload: TrainWorkload,
        plan: Plan,
        spool: RankSpool,
        device: Any,
        probe: CollectiveProbe,
        checkpoint: Callable[[int], None] | None = None,
        resume: Callable[[], None] | None = None,
        counts: bool = True,
    ) -> None:
        """`checkpoint` writes a checkpoint after the given step, `resume` restores the generators of a resumed run,
        `counts`: whether this rank counts its replica's work."""
        self.workload = workload
        self.plan = plan
        self.spool = spool
        self.device = device
        self.timer = StepTimer(
            workload, lambda batch: workload.step(batch), spool, device, probe, counts, workload.after_step
        )
        self.checkpoint = checkpoint
        self.resume = resume
        self.eval_seconds = 0.0
        self.checkpoint_seconds = 0.0
        self.per_epoch = 0
        self._finished: float | None = None
        """When the last step ended, by the host's clock; None until it has."""
        self._skipped = 0
        """The number of consecutive steps without a finite loss."""

    @property
    def steps(self) -> int:
        """Steps done by this run; plan.first_step must be added for the number in the published run."""
        return self.timer.count

    def run(self) -> dict[str, Any]:
        """Train. Returns the seconds spent in training and evaluation, and whether the target was reached."""
        plan = self.plan
        self.per_epoch = self.workload.steps_per_epoch()
        if self.per_epoch < 1:
            raise DataError("an epoch has no steps on this rank", "use a smaller batch_size or more data")
        initial = 0.0
        if plan.initial_evaluation and plan.window_steps is None and plan.first_step == 0:
            self._evaluate(epoch=-1, last=False)
            initial = self.eval_seconds
        self.spool.phase("warmup", plan.capacity(self.per_epoch))
        if plan.warmup_steps == 0:
            self.timer.enter(TRAIN)
        self.device.synchronize()
        start = now()
        converged = self._train()
        finished = self._finished
        if finished is None:
            finished = self._finish()
        train = finished - start - self.checkpoint_seconds
        self.timer.drain(everything=True)
        evaluation = self.eval_seconds - initial
        return {
            "train": train,
            "eval": evaluation,
            "eval_initial": initial,
            "checkpoint": self.checkpoint_seconds,
            "converged": converged,
        }

    def _finish(self) -> float:
        """End the last step once the device has finished it. Returns the time."""
        self.timer.settle()
        self._finished = now()
        return self._finished

    def _train(self) -> bool | None:
        """Train until the window is complete, the target is reached or the last step is done; returns whether it
        converged."""
        plan = self.plan
        end = plan.last_step(self.per_epoch)
        epoch, skip = divmod(plan.first_step, self.per_epoch)
        while plan.first_step + self.steps < end:
            before = self.steps
            if self._epoch(epoch, skip, end):
                return True
            if self.steps == before:
                raise DataError(f"epoch {epoch} has no batches", "use more data")
            epoch += 1
            skip = 0
        if plan.window_steps is not None or plan.target_acc is None:
            return None
        return False

    def _epoch(self, epoch: int, skip: int, end: int) -> bool:
        """Train one epoch from batch `skip` on, with the evaluations due; returns whether the target was reached."""
        plan = self.plan
        capacity = plan.capacity(self.per_epoch)
        at = plan.first_step + self.steps
        mark = self.timer.until_now()
        if skip == 0:
            self._resume()
        for index, batch in enumerate(self.workload.batches(epoch)):
            if index < skip:
                mark = self.timer.until_now()
                continue
            self._resume()
            mark = self._step(batch, mark)
            at += 1
            if self.steps == plan.warmup_steps:
                self.spool.phase("train", capacity)
                self.timer.enter(TRAIN)
                mark = self.timer.until_now()
            if self._within_epoch_due(at, end):
                if self._reached(self._evaluate(epoch, last=at >= end)):
                    return True
                self.spool.phase("train", capacity)
                mark = self.timer.until_now()
            if at % self.per_epoch != 0 and self._save_if_due(at):
                mark = self.timer.until_now()
            if at >= end and (plan.window_steps is not None or at % self.per_epoch != 0):
                if at % self.per_epoch == 0:
                    self._save_if_due(at)
                self._finish()  # before the loader ends: the end of its workers is not part of the last step
                return False  # before the loader prepares another batch
        if plan.window_steps is None and plan.evaluate_every is None:
            if self._reached(self._evaluate(epoch, last=at >= end)):
                return True
            self.spool.phase("train", capacity)
        self._save_if_due(at)
        return False

    def _within_epoch_due(self, at: int, end: int) -> bool:
        """Whether an evaluation is due after step `at`, other than that at the end of an epoch."""
        plan = self.plan
        if plan.window_steps is not None:
            return False
        if plan.evaluate_every is None:
            return at >= end and at % self.per_epoch != 0
        if at % plan.evaluate_every == 0 or at >= end:
            return True
        return at >= (plan.evaluate_from or end)

    def _resume(self) -> None:
        """Restore the generators of the checkpoint, once. A loader draws a seed at the start of an epoch, so this
        happens before its first batch, or, within an epoch, after the skipped batches."""
        if self.resume is not None:
            self.resume()
            self.resume = None

    def _reached(self, evaluation: Evaluation | None) -> bool:
        target = self.plan.target_acc
        if target is None or evaluation is None or evaluation.deciding is None:
            return False
        return evaluation.deciding >= target

    def _save_if_due(self, at: int) -> bool:
        """Write a checkpoint after step `at` if one is due. Its time is excluded: it is not the publisher's work."""
        every = self.plan.checkpoint_every
        if self.checkpoint is None or every is None or at % every != 0:
            return False
        self.timer.settle()
        start = now()
        self.checkpoint(at)
        self.checkpoint_seconds += now() - start
        return True

    def _step(self, batch: Any, mark: float) -> float:
        """Run one step; returns the time at which its bookkeeping ended."""
        loss, ended = self.timer.step(batch, mark)
        if loss is None or is_finite(loss):
            self._skipped = 0
            if not self.workload.scaler_skipped():
                return ended
            self.spool.fact("skipped", step=self.steps - 1)
            return self.timer.until_now()
        self._not_finite(loss)
        return self.timer.until_now()

    def _not_finite(self, loss: float) -> None:
        """Raise CaseError (12), unless the loss scaler skipped the step and not too many in a row were skipped."""
        self._skipped += 1
        if self.workload.scaler_skipped() and self._skipped < MAX_SKIPPED:
            self.spool.fact("skipped", step=self.steps - 1)
            return
        self.timer.drain()
        raise CaseError(
            f"the loss of step {self.plan.first_step + self.steps - 1} is {loss}",
            "see the preceding losses in the record; a smaller --set learning_rate or another --precision may help",
            ExitCode.INVALID,
        )

    def _evaluate(self, epoch: int, last: bool) -> Evaluation | None:
        """Evaluate, synchronised at start and end."""
        self.timer.settle()
        self.spool.phase("eval")
        start = now()
        evaluation = self.workload.evaluate(last)
        self.device.synchronize()
        seconds = now() - start
        self.eval_seconds += seconds
        if evaluation is not None:
            report(self.spool, evaluation, seconds, epoch=epoch, steps=self.plan.first_step + self.steps)
        return evaluation
