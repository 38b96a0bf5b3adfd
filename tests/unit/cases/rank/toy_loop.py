"""A workload that lets time pass and nothing else, on a clock that moves only when told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from flagbench_cases.contract import Evaluation, TrainWorkload, Work
from flagbench_cases.rank.rank_group import Job
from flagbench_cases.rank.stopwatch import HostClock
from flagbench_cases.rank.train_loop import TrainLoop, TrainPlan
from flagbench_cases.shared.spool import RankSpool, SpoolReader

WINDOW = TrainPlan(max_epochs=10, warmup_steps=2, window_steps=5, target_acc=0.9, initial_evaluation=True)
FULL = TrainPlan(max_epochs=3, warmup_steps=2, window_steps=None, target_acc=0.9, initial_evaluation=True)


class Time:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Device:
    """Counts how often the loop waits for it."""

    def __init__(self, clock: Any = None) -> None:
        self.clock = clock if clock is not None else HostClock()
        self.waits: list[str] = []
        self.where = "outside a step"

    def synchronize(self) -> None:
        self.waits.append(self.where)
        if hasattr(self.clock, "finish"):
            self.clock.finish()


def job_of(rank: int, world: int) -> Job:
    """A job of ranks that have a process group already, or of one rank, which needs none."""
    job = Job.__new__(Job)
    job.rank, job.world, job.control = rank, world, dist.group.WORLD
    return job


class Toy(TrainWorkload):
    """Four steps an epoch that do nothing but let time pass."""

    def __init__(self, time: Time | None = None, accuracies: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8)) -> None:
        self.time = time or Time()
        self.accuracies = list(accuracies)
        self.epochs: list[int] = []
        self.last: list[bool] = []
        self.trained: list[tuple[int, int]] = []
        self.made = 0
        self.device: Device | None = None
        self.probe: Any = None
        self.per_epoch = 4

    def setup(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {}

    def steps_per_epoch(self) -> int:
        return self.per_epoch

    def batches(self, epoch: int) -> Iterator[int]:
        self.epochs.append(epoch)
        for number in range(self.per_epoch):
            self.time.seconds += 1.0
            self.made += 1
            yield number

    def to_device(self, batch: int) -> int:
        self.time.seconds += 0.5
        return batch

    def step(self, batch: int) -> float:
        self.trained.append((self.epochs[-1], batch))
        if self.device is not None:
            self.device.where = "in a step"
        self.time.seconds += 0.25
        if self.probe is not None:
            self.probe.backward(self.time)
        if self.device is not None:
            self.device.where = "outside a step"
        return 2.0

    def work(self, batch: int) -> Work:
        self.time.seconds += 8.0  # bookkeeping, which no column may count
        return Work(3, 4, 30, 20, 600.0, 400.0)

    def evaluate(self, last: bool) -> Evaluation:
        self.time.seconds += 16.0
        self.last.append(last)
        accuracy = self.accuracies.pop(0)
        return Evaluation(accuracy, accuracy + 0.01, 872, stop_accuracy=accuracy)


class NoCollectives:
    """One rank: there is nothing to mark."""

    def take_gradients(self) -> None:
        return None

    def take_syncs(self) -> list[Any]:
        return []

    def take_passes(self) -> list[Any]:
        return []

    def take_micro_batches(self) -> list[Any]:
        return []


def train(
    folder: Path,
    workload: Toy,
    plan: TrainPlan,
    device: Device | None = None,
    probe: Any = None,
    checkpoint: Callable[[int], None] | None = None,
) -> tuple[dict[str, Any], SpoolReader]:
    spool = RankSpool(str(folder), 0)
    spool.reserve(plan.capacity(workload.steps_per_epoch()))
    timing = TrainLoop(workload, plan, spool, device or Device(), probe or NoCollectives(), checkpoint).run()
    return timing, SpoolReader(str(folder), 0)
