"""What the loop itself costs: CPU microseconds a step around a step that does nothing. Bound: 25."""

import sys
import tempfile
import time

from flagbench_cases.contract import Evaluation, TrainWorkload, Work
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.stopwatch import HostClock
from flagbench_cases.rank.train_loop import TrainLoop, TrainPlan
from flagbench_cases.shared.spool import RankSpool

STEPS = 100_000
REPEATS = 5
BOUND_US = 25.0


class Nothing(TrainWorkload):
    """A step that does nothing, a batch that is nothing."""

    work_done = Work(1, 1, 1, 1, 1.0, 1.0)

    def setup(self):
        pass

    def describe(self):
        return {}

    def steps_per_epoch(self):
        return STEPS

    def batches(self, epoch):
        return range(STEPS)

    def to_device(self, batch):
        return batch

    def step(self, batch):
        return 0.5

    def work(self, batch):
        return self.work_done

    def evaluate(self, last: bool):
        return Evaluation(1.0, 1.0, 1, stop_accuracy=1.0)


class Host:
    """The processor as a device."""

    clock = HostClock()

    def synchronize(self):
        pass


def measure(folder):
    """CPU seconds of one whole run of the loop."""
    spool = RankSpool(folder, 0)
    spool.reserve(STEPS)
    loop = TrainLoop(Nothing(), TrainPlan(1, 0, STEPS, None, False), spool, Host(), CollectiveProbe(Host.clock))
    start = time.process_time()
    loop.run()
    return time.process_time() - start


def main():
    """Best of several; exit 1 over the bound."""
    costs = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            costs.append(measure(folder))
    cost = min(costs) / STEPS * 1e6
    text = "harness: %.1f us of CPU a step (best of %d x %d empty steps; at most %.0f)"
    print(text % (cost, REPEATS, STEPS, BOUND_US))
    return int(cost > BOUND_US)


if __name__ == "__main__":
    sys.exit(main())
