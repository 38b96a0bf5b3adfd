"""Several ranks that are late in turn: p_core >= p_train >= p_whole."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from flagbench_cases.record import checks
from flagbench_cases.shared.spool import Step
from unit.cases.record.runs import evidence_of, metrics_of, step

pytestmark = pytest.mark.image

STEP = step()._replace(data_wait=0.0, to_device=0.0, host=0.5, device=0.5, samples=4.0, published_samples=4.0)


class Job(NamedTuple):
    """The steps of each rank, and each rank's seconds from the start of training to its end."""

    ranks: dict[int, list[Step]]
    trained: list[float]


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
            taken = STEP._replace(data_wait=wait, to_device=handed, host=host, after=after)
            ranks[r].append(taken._replace(device=done - started[r]))
            hosts[r] = begun[r] + host + after
            devices[r] = done
    return Job(ranks, [host + evaluation for host in hosts])


def in_order(job: Job, first: int = 0) -> bool:
    record_evidence = evidence_of(job.ranks, first, job.trained)
    all_steps = checks.TimedSteps(record_evidence.step_range(), record_evidence.durations.get("train", []))
    window = checks.TimedSteps(record_evidence.step_range("train", "window"), [])
    return checks.compare_times([all_steps, window]).ok


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_the_rates_of_late_ranks_are_in_order(unit: str) -> None:
    for seed in range(200):
        job = synchronous_job(seed)
        found = metrics_of(evidence_of(job.ranks, 0, job.trained), unit=unit, replicas=len(job.ranks))
        count = len(job.ranks[0])
        core, train, whole = (found[name]["value"] for name in ("p_core", "p_train", "p_whole"))
        assert max(train / core, whole / train) <= 1 + 1 / count, seed
        assert all(in_order(job, first) for first in range(count)), seed


def turns(changes: dict[str, float], trained: float, slow: int = 0) -> Job:
    """Two ranks of which one is late by half a second in turn, and waits for nobody: 40 steps of 0.5 s or 1 s.

    `slow`: steps of a warm-up that wait long for data.
    """
    late = STEP._replace(data_wait=0.5)
    warm_up = [STEP._replace(data_wait=100.0)] * slow
    ranks = {
        rank: warm_up + [(late if number % 2 == rank else STEP)._replace(**changes) for number in range(40)]
        for rank in (0, 1)
    }
    return Job(ranks, [trained, trained] if trained else [])


@pytest.mark.parametrize(
    ("job", "first", "ok"),
    [
        (turns({}, 30.0), 0, True),
        (turns({"device": 0.9}, 30.0), 0, False),  # device times longer than all of the host's time
        (turns({"data_wait": 0.5, "after": 0.2}, 30.0), 0, False),  # steps longer than training
        (turns({}, 30.0 - 0.7), 0, True),  # training shorter than its steps, by less than one
        (turns({}, 30.0 - 1.5), 0, False),  # and by more
        (turns({"device": 0.9}, 0.0, slow=2), 2, False),  # a slow warm-up does not hide the window
    ],
)
def test_times_out_of_order_fail_the_check(job: Job, first: int, ok: bool) -> None:
    assert in_order(job, first) is ok
