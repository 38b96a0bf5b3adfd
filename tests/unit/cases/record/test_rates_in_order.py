"""Several ranks that are late in turn: p_core >= p_train >= p_whole."""

from __future__ import annotations

import dataclasses
import random

import pytest

from flagbench_cases.record import checks
from flagbench_cases.shared.spool import Step
from unit.cases.record.runs import metrics_of, section_of

pytestmark = pytest.mark.image

NAN = float("nan")
SAMPLES = 4.0
STEP = Step(0.0, 0.0, 0.5, 0.5, NAN, NAN, 0.0, 1.0, SAMPLES, SAMPLES, 8.0, 8.0, 1.0, 1.0, 0.0)


@dataclasses.dataclass
class Job:
    """The steps of each rank, and each rank's seconds from the start of training to its end."""

    ranks: dict[int, list[Step]]
    trained: dict[int, float]

    @property
    def count(self) -> int:
        return len(self.ranks[0])

    def measured(self, unit: str = "samples") -> dict[str, float]:
        section = section_of(self.ranks, 0, [self.trained[rank] for rank in sorted(self.trained)])
        found = metrics_of(section, unit=unit, replicas=len(self.ranks))
        return {name: entry["value"] for name, entry in found.items()}


def synchronous_job(seed: int) -> Job:
    """Ranks that wait for the slowest in each step, on a device that may be behind its host.

    The device begins a step when its host has handed over the batch and it is done with the last one; the step takes
    a rank its own time and then as long as the slowest. The host waits for the device in part of the step, and runs
    ahead of it in the rest; at the end it waits for the device.
    """
    drawn = random.Random(seed)
    world, count, evaluation = drawn.randint(1, 4), drawn.randint(1, 15), drawn.choice([0.0, 0.01, 5.0])
    # Some runs are all waiting, some all work, some even; a time is often nothing at all.
    most = [drawn.choice([0.0, 0.01, 0.1]) for _ in range(3)]
    hosts = [0.0] * world  # when each host may begin its next step
    devices = [0.0] * world  # when each device is done
    ranks: dict[int, list[Step]] = {rank: [] for rank in range(world)}
    for number in range(count):
        rows = [
            (
                drawn.uniform(0, most[0]),
                drawn.uniform(0, most[1]),
                drawn.choice([0.001, drawn.uniform(0.001, 0.1)]),
                drawn.uniform(0, most[2]),
                drawn.choice([0.1, 0.5, 1.0]),
            )
            for _ in range(world)
        ]
        begun = [hosts[r] + wait + handed for r, (wait, handed, *_) in enumerate(rows)]
        started = [max(begun[r], devices[r]) for r in range(world)]
        done = max(started[r] + rows[r][2] for r in range(world))
        for r, (wait, handed, _, bookkeeping, share) in enumerate(rows):
            host = share * (done - begun[r])
            after = bookkeeping
            if number == count - 1:
                after = max(bookkeeping, done - begun[r] - host)
            step = Step(
                wait, handed, host, done - started[r], NAN, NAN, after, 1.0, SAMPLES, SAMPLES, 8.0, 8.0, 1, 1, 0
            )
            ranks[r].append(step)
            hosts[r] = begun[r] + host + after
            devices[r] = done
    trained = {rank: hosts[rank] + evaluation for rank in range(world)}
    return Job(ranks, trained)


def in_order(job: Job, first: int = 0) -> bool:
    section = section_of(job.ranks, first, list(job.trained.values()))
    return checks.in_order(
        [section.stretch(), section.stretch("train", "window")], section.durations.get("train", [])
    )[0]


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_the_rates_of_late_ranks_are_in_order(unit: str) -> None:
    for seed in range(200):
        job = synchronous_job(seed)
        found = job.measured(unit=unit)
        allowed = 1 + 1 / job.count
        assert found["p_train"] <= found["p_core"] * allowed, seed
        assert found["p_whole"] <= found["p_train"] * allowed, seed
        assert all(in_order(job, first) for first in range(job.count)), seed


def turns(count: int) -> Job:
    """Two ranks of which one is late by half a second in turn, and waits for nobody."""
    late = STEP._replace(data_wait=0.5)
    ranks = {rank: [late if number % 2 == rank else STEP for number in range(count)] for rank in (0, 1)}
    return Job(ranks, {0: 0.75 * count, 1: 0.75 * count})


@pytest.mark.parametrize(
    ("change", "trained"),
    [
        ({"device": 0.9}, 30.0),  # device times longer than all of the host's time
        ({"device": 0.5}, 28.0),  # training shorter than its steps
        ({"data_wait": 0.5, "after": 0.2}, 30.0),  # steps longer than training
    ],
)
def test_times_out_of_order_fail_the_check(change: dict[str, float], trained: float) -> None:
    job = turns(40)
    assert in_order(job)
    ranks = {rank: [step._replace(**change) for step in steps] for rank, steps in job.ranks.items()}
    assert not in_order(Job(ranks, dict.fromkeys(ranks, trained)))


def test_one_step_is_tolerated_and_two_are_not() -> None:
    job = turns(40)
    assert in_order(dataclasses.replace(job, trained={0: 30.0 - 0.7, 1: 30.0 - 0.7}))
    assert not in_order(dataclasses.replace(job, trained={0: 30.0 - 1.5, 1: 30.0 - 1.5}))


def test_a_window_is_checked_by_itself() -> None:
    """A slow warm-up must not hide that the steps p_core is of are out of order."""
    job = turns(40)
    warm_up = [job.ranks[0][0]._replace(data_wait=100.0)] * 2
    broken = {rank: warm_up + [s._replace(device=0.9) for s in steps] for rank, steps in job.ranks.items()}
    assert not in_order(Job(broken, {}), first=2)
