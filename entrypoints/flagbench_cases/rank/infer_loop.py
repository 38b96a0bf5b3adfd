"""The one inference loop. What is run comes from an InferWorkload; each batch is a step, timed by a StepTimer.

Each rank sums its own times, and the job's time is the largest of these sums:
  p_infer_whole  samples / (end - start of the pass), the device synchronised at both
  p_infer_core   samples / sum of device step times, by events; warm-up left out
and p_val_whole and p_val_core of a pass over data with known answers. The publisher's (FlagPerf inference/), by rank
0's host clock and with batches counted as full, are p_infer_core_host and p_val_core_host.
"""

from typing import Any, Dict, NamedTuple, Optional, Sequence

from flagbench_cases.contract import INFER, InferWorkload
from flagbench_cases.rank.evaluation import report
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.step_timer import StepTimer, is_finite
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.errors import CaseError, DataError, ExitCode
from flagbench_cases.shared.spool import RankSpool


class InferPlan(NamedTuple):
    """How much to run. `window_steps` None: every pass of the workload, whole. Else INFER alone, for that many steps
    after the warm-up, from its beginning again where it is shorter."""

    warmup_steps: int
    window_steps: Optional[int]

    def passes(self, workload: InferWorkload) -> Sequence[str]:
        """The passes of this run, in order. Raises DataError for a pass without a batch."""
        names = workload.passes() if self.window_steps is None else (INFER,)
        for name in names:
            if workload.steps(name) < 1:
                raise DataError("the pass %s has no batch on this rank" % name, "use more data")
        return names

    def steps(self, workload: InferWorkload, name: str) -> int:
        """Steps of one pass."""
        return workload.steps(name) if self.window_steps is None else self.warmup_steps + self.window_steps


class InferLoop:
    """One rank's run: `run()` runs a workload's passes and leaves what it measured in the spool."""

    def __init__(
        self,
        workload: InferWorkload,
        plan: InferPlan,
        spool: RankSpool,
        device: Any,
        probe: CollectiveProbe,
        counts: bool = True,
    ) -> None:
        """`counts`: whether this rank counts what its replica did."""
        self.workload = workload
        self.plan = plan
        self.spool = spool
        self.device = device
        self.timer = StepTimer(workload, workload.infer, spool, device, probe, counts)

    def run(self) -> Dict[str, Any]:
        """Run every pass. Returns the seconds of each."""
        seconds: Dict[str, Any] = {}
        for name in self.plan.passes(self.workload):
            first = self.timer.count
            seconds[name] = self._pass(name, self.plan.steps(self.workload, name))
            steps = self.timer.count - first
            self.spool.fact("pass", name=name, first_step=first, steps=steps, seconds=seconds[name])
            if self.plan.window_steps is None:
                self._result(name, seconds[name])
        return seconds

    def _pass(self, name: str, steps: int) -> float:
        """One pass between synchronised borders; its seconds."""
        first = self.timer.count
        end = first + steps
        self.spool.phase("warmup", end)
        self.device.synchronize()
        start = mark = now()
        while self.timer.count < end:
            before = self.timer.count
            for batch in self.workload.batches(name):
                loss, mark = self.timer.step(batch, mark)
                if not is_finite(loss):
                    self._not_finite(loss)
                if self.timer.count - first == self.plan.warmup_steps:
                    self.spool.phase(name, end)
                    mark = self.timer.until_now()
                if self.timer.count == end:
                    break
            if self.timer.count == before:
                raise DataError("the pass %s gave no batch" % name, "give more data")
        self.timer.settle()
        seconds = now() - start
        self.timer.drain(everything=True)
        return seconds

    def _not_finite(self, loss: Optional[float]) -> None:
        self.timer.drain()
        raise CaseError(
            "the loss of step %d is %s" % (self.timer.count - 1, loss),
            "another --precision may help; without --weights the model is random",
            ExitCode.INVALID,
        )

    def _result(self, name: str, seconds: float) -> None:
        """What a whole pass found, outside of every clock."""
        self.spool.phase("eval")
        evaluation = self.workload.result(name)
        if evaluation is not None:
            report(self.spool, evaluation, seconds, **{"pass": name, "epoch": 0, "steps": self.timer.count})
