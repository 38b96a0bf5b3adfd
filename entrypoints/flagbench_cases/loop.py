"""The one training loop, and the only place that measures. What is trained comes from a Workload.

Definitions (the publisher's, FlagPerf training/benchmarks/distilbert and glm; ours where it says so):
  p_whole  samples / (train end - train start), evaluations and bookkeeping included
  p_train  samples / sum of (data wait + hand-over to the device + step)
  p_core   samples / sum of device step times (ours: event-timed, maximum over ranks, warm-up left out)
  p_core_host  the publisher's p_core: host clock around the step, whatever the device still has to do
The device is synchronised at phase borders only: init end, train start, evaluation start and end, train end.
"""

import math
from collections import deque
from typing import Any, Deque, Dict, Iterable, NamedTuple, Optional, Tuple

from flagbench_cases.clock import now
from flagbench_cases.collectives import CollectiveProbe
from flagbench_cases.errors import DataError
from flagbench_cases.spool import RankSpool, Step

# Device times are asked for at least this often, so that a killed run keeps all but the last of them.
DRAIN_SECONDS = 1.0
NAN = float("nan")


class Work(NamedTuple):
    """What one batch of one rank is worth."""

    samples: int
    published_samples: int
    tokens: int
    tokens_useful: int
    flops_executed: float
    flops_useful: float


class Evaluation(NamedTuple):
    """The result of one evaluation, equal on all ranks; `deciding` is the accuracy that the stop rule looks at."""

    accuracy: float
    published_accuracy: float
    counted: int
    deciding: float


class Workload:
    """What differs between cases. `setup` runs under init; the others are called by the loop only."""

    # The model itself, a torch.nn.Module that `setup` makes: its parameters must be equal on all ranks at the end.
    module: Any

    def setup(self) -> None:
        """Load the data, build model and optimizer on the device."""
        raise NotImplementedError

    def steps_per_epoch(self) -> int:
        """Steps of one epoch on this rank, the same on all ranks."""
        raise NotImplementedError

    def batches(self, epoch: int) -> Iterable[Any]:
        """The batches of an epoch in the case's order, on the host."""
        raise NotImplementedError

    def to_device(self, batch: Any) -> Any:
        """Hand a batch to the device."""
        raise NotImplementedError

    def step(self, batch: Any) -> float:
        """One whole step: forward, backward, update. Returns the loss."""
        raise NotImplementedError

    def work(self, batch: Any) -> Work:
        """What a host batch is worth."""
        raise NotImplementedError

    def evaluate(self) -> Evaluation:
        """Evaluate on the whole evaluation set."""
        raise NotImplementedError

    def describe(self) -> Dict[str, Any]:
        """What the record says of this case: `conditions` a claim is compared by, `data` facts, `parameters`."""
        raise NotImplementedError


class Plan(NamedTuple):
    """How long to train. `window_steps` None is the published run: epochs until the target or the limit."""

    max_epochs: int
    warmup_steps: int
    window_steps: Optional[int]
    target_acc: Optional[float]
    initial_evaluation: bool

    def capacity(self, steps_per_epoch: int) -> int:
        """The largest number of steps this plan takes."""
        if self.window_steps is not None:
            return self.warmup_steps + self.window_steps
        return self.max_epochs * steps_per_epoch


class Loop:
    """One rank's run: `run()` trains a workload and leaves what it measured in the spool."""

    def __init__(self, workload: Workload, plan: Plan, spool: RankSpool, device: Any, probe: CollectiveProbe) -> None:
        self.workload = workload
        self.plan = plan
        self.spool = spool
        self.device = device
        self.clock = device.clock
        self.probe = probe
        self.steps = 0
        self.eval_seconds = 0.0
        self._drained = now()
        self._pending: Deque[Tuple[int, Any, Any, Any]] = deque()

    def run(self) -> Dict[str, Any]:
        """Train. Returns seconds of train and evaluation, and whether the target was reached."""
        plan, per_epoch = self.plan, self.workload.steps_per_epoch()
        if per_epoch < 1:
            raise DataError("an epoch has no step on this rank", "use a smaller batch_size or more data")
        initial = 0.0
        if plan.initial_evaluation and plan.window_steps is None:
            self._evaluate(epoch=-1)
            initial = self.eval_seconds
        self.spool.phase("warmup", plan.capacity(per_epoch))
        self.device.synchronize()
        start = now()
        converged: Optional[bool] = None
        if plan.window_steps is not None:
            epoch = 0
            while self._epoch(epoch):
                epoch += 1
        else:
            converged = False
            for epoch in range(plan.max_epochs):
                self._epoch(epoch)
                evaluation = self._evaluate(epoch)
                if plan.target_acc is not None and evaluation.deciding >= plan.target_acc:
                    converged = True
                    break
                self.spool.phase("train", plan.capacity(per_epoch))
        self.device.synchronize()
        train = now() - start
        self._drain(everything=True)
        evaluation = self.eval_seconds - initial
        return {"train": train, "eval": evaluation, "eval_initial": initial, "converged": converged}

    def _epoch(self, epoch: int) -> bool:
        """Train one epoch; False when the window is full."""
        limit = self.plan.capacity(self.workload.steps_per_epoch())
        mark = now()
        for batch in self.workload.batches(epoch):
            mark = self._step(batch, mark)
            if self.steps >= limit:
                return False  # before another batch is made that nobody needs
            if self.steps == self.plan.warmup_steps:
                self.spool.phase("train", limit)
                mark = now()
        return True

    def _step(self, batch: Any, mark: float) -> float:
        """One step between its marks; returns when its bookkeeping ended."""
        ready = now()
        on_device = self.workload.to_device(batch)
        start = self.clock.mark()
        begun = now()
        loss = self.workload.step(on_device)
        ended = now()
        end = self.clock.mark()
        work = self.workload.work(batch)
        self.spool.step(Step(ready - mark, begun - ready, ended - begun, NAN, NAN, NAN, loss, *work))
        self._pending.append((self.steps, start, end, self.probe.take()))
        self.steps += 1
        if len(self._pending) >= self.clock.drain_every or ended - self._drained > DRAIN_SECONDS:
            self._drain()
            self._drained = ended
        return now()

    def _drain(self, everything: bool = False) -> None:
        """Write down the device times that are there; `everything` only after a synchronisation."""
        clock = self.clock
        while self._pending and (everything or clock.reached(self._pending[0][2])):
            index, start, end, marks = self._pending.popleft()
            first = wait = NAN
            if marks is not None:
                first = clock.seconds(start, marks[0])
                wait = clock.seconds(marks[1], marks[2])
                clock.release(list(marks))
            self.spool.device_times(index, clock.seconds(start, end), first, wait)
            clock.release([start, end])

    def _evaluate(self, epoch: int) -> Evaluation:
        """One evaluation between synchronised borders."""
        self.spool.phase("eval")
        self.device.synchronize()
        start = now()
        evaluation = self.workload.evaluate()
        self.device.synchronize()
        seconds = now() - start
        self.eval_seconds += seconds
        if not math.isfinite(evaluation.accuracy):
            raise FloatingPointError("evaluation after epoch %d gave no finite accuracy" % epoch)
        self.spool.fact(
            "evaluation",
            epoch=epoch,
            steps=self.steps,
            accuracy=evaluation.accuracy,
            published_accuracy=evaluation.published_accuracy,
            counted=evaluation.counted,
            seconds=seconds,
        )
        return evaluation
