"""The publisher's memory monitor: a thread beside the training steps, gone when they end, however they end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.cases.llama2_7b_lora.memory_monitor import monitored
from unit.cases.llama2_7b_lora.lora_bench import REFERENCE, train, workload

pytestmark = pytest.mark.image

ON = {"memory_monitor": True}


def monitors() -> int:
    """The monitors that are running."""
    return sum(thread.name == "memory-monitor" for thread in threading.enumerate())


def test_it_runs_from_the_first_batch_to_the_last() -> None:
    def made() -> Any:
        for _ in range(3):
            yield monitors()

    assert list(monitored(made())) == [1, 1, 1]
    assert monitors() == 0


def test_it_ends_with_a_step_that_fails() -> None:
    def steps() -> None:
        for _ in monitored(range(9)):
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        steps()
    assert monitors() == 0


def test_steps_are_monitored_and_evaluations_are_not(tmp_path: Path) -> None:
    work, seen = workload(tmp_path, train=ON), {"train": set(), "eval": set()}
    work.module.register_forward_pre_hook(lambda module, _: seen[phase].add(monitors()))
    phase = "train"
    train(work, 5)
    phase = "eval"
    work.evaluate(last=True)
    assert seen == {"train": {1}, "eval": {0}}


def test_it_is_on_as_published_and_belongs_to_the_torch_engine(tmp_path: Path) -> None:
    assert REFERENCE["train"]["memory_monitor"] is True
    work = workload(tmp_path, train=ON)
    assert work.describe()["conditions"]["memory_monitor"] is True
    work.config["engine"]["name"] = "deepspeed"
    assert type(work)(work.context).has_monitor is False
