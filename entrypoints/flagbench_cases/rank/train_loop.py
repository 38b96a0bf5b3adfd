"""The training loop: runs a TrainWorkload, with its evaluations and checkpoints; a StepTimer times each step.

rank/run.py creates the loop. The metrics below are computed from what it writes to the spool.

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
from flagbench_cases.rank.evaluation import write_evaluation
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.step_timer import StepTimer, is_finite
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.errors import CaseError, DataError
from flagbench_cases.shared.spool import RankSpool
from flagbench_core.case_kinds import TRAIN
from flagbench_core.exit_codes import ExitCode

MAX_SKIPPED = 3
"""Training fails after this many consecutive steps without a finite loss, even if the loss scaler skips them."""


class TrainPlan(NamedTuple):
    """How long to train, and when to evaluate and to write checkpoints."""

    max_epochs: int
    """The number of epochs after which the published run ends."""
    warmup_steps: int
    """The number of steps before the measured window."""
    window_steps: int | None
    """The number of steps to measure, without evaluations. None: the published run, until the target or its end."""
    target_acc: float | None
    """The accuracy, a fraction, that ends the published run; None if the case has no target."""
    initial_evaluation: bool
    """Whether the published run evaluates before its first step."""
    evaluate_every: int | None = None
    """The number of steps between evaluations; None: evaluate after each epoch."""
    max_steps: int | None = None
    """The step after which the published run ends, with an evaluation, even within an epoch; None: no such step."""
    evaluate_from: int | None = None
    """The step from which on every step is evaluated; None: only the last one. Used with `evaluate_every`."""
    first_step: int = 0
    """The step of the checkpoint from which training resumes; 0 for a run from the beginning."""
    checkpoint_every: int | None = None
    """The number of steps between checkpoints; None: write none."""

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
        plan: TrainPlan,
        spool: RankSpool,
        device: Any,
        probe: CollectiveProbe,
        checkpoint: Callable[[int], None] | None = None,
        resume: Callable[[], None] | None = None,
        counts: bool = True,
    ) -> None:
        """Prepare to train.

        Args:
            workload: the model, its data and its step.
            plan: how long to train.
            spool: receives the measurements.
            device: synchronised at phase boundaries.
            probe: marks gradients within a step.
            checkpoint: writes the checkpoint of the step with the given number.
            resume: restores the random generators of a resumed run.
            counts: whether this rank counts its replica's work.
        """
        self.workload = workload
        self.plan = plan
        self.spool = spool
        self.device = device
        # Looked up at each step: a test replaces the method of a workload while it trains.
        self.timer = StepTimer(
            workload, lambda batch: workload.step(batch), spool, device, probe, counts, workload.after_step
        )
        self.write_checkpoint = checkpoint
        self.restore_generators = resume
        self.eval_seconds = 0.0
        self.checkpoint_seconds = 0.0
        self.steps_per_epoch = 0
        self._finished: float | None = None
        """When the last step ended, host seconds; None until it has."""
        self._skipped = 0
        """The number of consecutive steps without a finite loss."""

    @property
    def steps(self) -> int:
        """The number of steps that this run has done."""
        return self.timer.count

    @property
    def published_steps(self) -> int:
        """The number of steps since the start of the published run: includes those before the checkpoint."""
        return self.plan.first_step + self.timer.count

    def run(self) -> dict[str, Any]:
        """Train.

        Returns:
            `train`, `eval`, `eval_initial` and `checkpoint`: the seconds spent in each. `train` includes evaluations,
            but neither checkpoints nor the initial evaluation. `converged`: what `_train` returns.
        """
        plan = self.plan
        self.steps_per_epoch = self.workload.steps_per_epoch()
        if self.steps_per_epoch < 1:
            raise DataError("an epoch has no steps on this rank", "use a smaller batch_size or more data")
        initial = 0.0
        if plan.initial_evaluation and plan.window_steps is None and plan.first_step == 0:
            self._evaluate(epoch=-1, last=False)
            initial = self.eval_seconds
        self.spool.phase("warmup", plan.capacity(self.steps_per_epoch))
        if plan.warmup_steps == 0:
            self.timer.enter(TRAIN)
        self.device.synchronize()
        start = now()
        converged = self._train()
        finished = self._finished
        if finished is None:
            finished = self._finish()
        self.timer.drain(everything=True)
        return {
            "train": finished - start - self.checkpoint_seconds,
            "eval": self.eval_seconds - initial,
            "eval_initial": initial,
            "checkpoint": self.checkpoint_seconds,
            "converged": converged,
        }

    def _finish(self) -> float:
        """Wait until the device has finished the last step. Returns the time, host seconds, and notes it."""
        self.timer.settle()
        self._finished = now()
        return self._finished

    def _train(self) -> bool | None:
        """Train until the window is complete, the target is reached or the last step is done.

        Returns whether the target was reached; None for a window, and for a case without a target.
        """
        plan = self.plan
        end = plan.last_step(self.steps_per_epoch)
        epoch, skip = divmod(plan.first_step, self.steps_per_epoch)
        while self.published_steps < end:
            before = self.steps
            if self._train_epoch(epoch, skip, end):
                return True
            if self.steps == before:
                raise DataError(f"epoch {epoch} has no batches", "use more data")
            epoch += 1
            skip = 0
        if plan.window_steps is not None or plan.target_acc is None:
            return None
        return False

    def _train_epoch(self, epoch: int, skip: int, end: int) -> bool:
        """Train one epoch until step `end` at most, with the evaluations and checkpoints that are due.

        The first `skip` batches were trained before the checkpoint and are read only. Returns whether the target was
        reached.
        """
        plan = self.plan
        requested = self.timer.end_bookkeeping()
        if skip == 0:
            self._restore_generators_once()
        for index, batch in enumerate(self.workload.batches(epoch)):
            if index < skip:
                requested = self.timer.end_bookkeeping()
                continue
            self._restore_generators_once()
            requested = self._step(batch, requested)
            if self.steps == plan.warmup_steps:
                self._enter_training()
                self.timer.enter(TRAIN)
                requested = self.timer.end_bookkeeping()
            if self._is_evaluation_due(end):
                if self._evaluate_for_target(epoch, end):
                    return True
                self._enter_training()
                requested = self.timer.end_bookkeeping()
            # The checkpoint of the last step of an epoch follows the evaluation of the epoch, below.
            if not self._is_epoch_complete() and self._save_if_due():
                requested = self.timer.end_bookkeeping()
            if self._ends_within_loader(end):
                if self._is_epoch_complete():
                    self._save_if_due()
                self._finish()  # before the loader ends: the end of its workers is not part of the last step
                return False  # before the loader prepares another batch
        if plan.window_steps is None and plan.evaluate_every is None:
            if self._evaluate_for_target(epoch, end):
                return True
            self._enter_training()
        self._save_if_due()
        return False

    def _enter_training(self) -> None:
        """Enter the phase of training, after the warm-up or an evaluation."""
        self.spool.phase("train", self.plan.capacity(self.steps_per_epoch))

    def _is_epoch_complete(self) -> bool:
        return self.published_steps % self.steps_per_epoch == 0

    def _is_evaluation_due(self, end: int) -> bool:
        """Whether an evaluation is due after the last step, other than that at the end of an epoch."""
        plan = self.plan
        step = self.published_steps
        if plan.window_steps is not None:
            return False
        if plan.evaluate_every is None:
            return step >= end and not self._is_epoch_complete()
        if step % plan.evaluate_every == 0 or step >= end:
            return True
        return step >= (plan.evaluate_from or end)

    def _ends_within_loader(self, end: int) -> bool:
        """Whether the run ends before the loader does: after a window, or within an epoch."""
        if self.published_steps < end:
            return False
        return self.plan.window_steps is not None or not self._is_epoch_complete()

    def _restore_generators_once(self) -> None:
        """Restore the random generators of the checkpoint, the first time that this is called.

        A loader draws a seed at the start of an epoch, so this happens before its first batch, or, within an epoch,
        after the skipped batches.
        """
        if self.restore_generators is not None:
            self.restore_generators()
            self.restore_generators = None

    def _evaluate_for_target(self, epoch: int, end: int) -> bool:
        """Evaluate. Returns whether the target was reached."""
        evaluation = self._evaluate(epoch, last=self.published_steps >= end)
        target = self.plan.target_acc
        if target is None or evaluation is None or evaluation.stop_accuracy is None:
            return False
        return evaluation.stop_accuracy >= target

    def _save_if_due(self) -> bool:
        """Write a checkpoint after the last step if one is due. Returns whether one was written.

        Its time is excluded from that of training: it is not the publisher's work.
        """
        step = self.published_steps
        every = self.plan.checkpoint_every
        if self.write_checkpoint is None or every is None or step % every != 0:
            return False
        self.timer.settle()
        start = now()
        self.write_checkpoint(step)
        self.checkpoint_seconds += now() - start
        return True

    def _step(self, batch: Any, requested: float) -> float:
        """Run one step on a batch that was requested at the time `requested`. Returns when its bookkeeping ended."""
        loss, ended = self.timer.step(batch, requested)
        if is_finite(loss):
            self._skipped = 0
            if not self.workload.scaler_skipped():
                return ended
            self.spool.fact("skipped", step=self.steps - 1)
            return self.timer.end_bookkeeping()
        self._handle_not_finite(loss)
        return self.timer.end_bookkeeping()

    def _handle_not_finite(self, loss: float | None) -> None:
        """Raise CaseError (INVALID), unless the loss scaler skipped the step, and few steps before it in a row."""
        self._skipped += 1
        if self.workload.scaler_skipped() and self._skipped < MAX_SKIPPED:
            self.spool.fact("skipped", step=self.steps - 1)
            return
        self.timer.drain()
        raise CaseError(
            f"the loss of step {self.published_steps - 1} is {loss}",
            "see the preceding losses in the record; a smaller --set learning_rate or another --precision may help",
            ExitCode.INVALID,
        )

    def _evaluate(self, epoch: int, last: bool) -> Evaluation | None:
        """Evaluate, with the device synchronised at start and end. `last`: whether no step follows."""
        self.timer.settle()
        self.spool.phase("eval")
        start = now()
        evaluation = self.workload.evaluate(last)
        self.device.synchronize()
        seconds = now() - start
        self.eval_seconds += seconds
        if evaluation is not None:
            write_evaluation(self.spool, evaluation, seconds, epoch=epoch, steps=self.published_steps)
        return evaluation
