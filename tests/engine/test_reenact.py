"""The publisher's loops written a second time (tests/reenact) do the work of the cases and are compared with them."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the publisher's models")
pytest.importorskip("peft", reason="the publisher's adapters")

from flagbench_cases.shared.config import load_case, load_stack, merge, resolve
from workloads import set_up, train

pytestmark = [pytest.mark.image, pytest.mark.slow]

CASES = ("distilbert", "glm", "llama2-7b-lora")
STEPS = 10
# No dropout, two epochs in ten steps, and every setting of the optimizer is felt.
CHANGED: dict[str, dict[str, Any]] = {
    "distilbert": {"train": {"weight_decay": 2.0, "max_epochs": 3}, "data": {"train_examples": 64}},
    "glm": {
        "model": {"recompute": True},
        "train": {"batch_size": 2, "weight_decay": 2.0, "clip_norm": 4.0, "decay_steps": 12, "loss_scale": 2.0**20},
        "data": {"train_examples": 12, "sequence_length": 24},
    },
    "llama2-7b-lora": {
        "model": {"lora": {"dropout": 0.0}},
        "train": {"weight_decay": 2.0, "gamma": 0.5, "memory_monitor": False},
        "data": {"train_blocks": 26, "sequence_length": 32},
    },
}


@pytest.fixture(autouse=True)
def _same_rounding() -> Iterator[None]:
    """torch compiles GLM's scripted GELU after it has seen it run some times, and then rounds otherwise."""
    with torch.jit.optimized_execution(False):
        yield


def configured(case: str, precision: str) -> dict[str, Any]:
    """The tiny preset on synthetic data, as CHANGED has it."""
    options = {"nodes": 1, "gpus": 1, "preset": "tiny", "division": "faithful", "source": "synthetic", "steps": STEPS}
    unset = dict.fromkeys(("precision", "seed", "max_samples"))
    config = resolve(load_case(case), load_stack("cpu"), weights=False, full=False, settings=[], **options, **unset)
    return merge(config, merge(CHANGED[case], {"precision": precision}))


@functools.lru_cache(maxsize=None)
def case_run(case: str, precision: str = "fp32") -> tuple[dict[str, Any], list[float]]:
    """The initial weights of the case's own workload, and its losses from there."""
    module = importlib.import_module("flagbench_cases.cases.%s.workload" % case.replace("-", "_"))
    with tempfile.TemporaryDirectory() as folder:
        work = set_up(module.build, configured(case, precision), Path(folder))
        weights = copy.deepcopy(work.module.state_dict())
        return weights, train(work, STEPS)[0]


def reenacted(case: str, config: dict[str, Any], weights: dict[str, Any]) -> list[float]:
    """The losses of the publisher's loop from the same weights."""
    loop = importlib.import_module("reenact." + case.replace("-", "_"))
    losses = loop.steps(config, torch.device("cpu"), weights)
    assert next(losses) is None
    return list(itertools.islice(losses, STEPS))


@pytest.mark.parametrize("case", CASES)
def test_the_same_losses_from_the_same_weights(case: str) -> None:
    weights, losses = case_run(case)
    config = configured(case, "fp32")
    if case == "llama2-7b-lora":
        config = merge(config, {"train": {"memory_monitor": True}})  # here alone: it takes most of the time
    assert reenacted(case, config, weights) == pytest.approx(losses, abs=5e-5)


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="a processor has had no fp16 products before torch 2")
@pytest.mark.parametrize("case", ["glm", "llama2-7b-lora"])
def test_the_same_losses_in_fp16(case: str) -> None:
    weights, losses = case_run(case, "fp16")
    config = configured(case, "fp16")
    assert reenacted(case, config, weights) == pytest.approx(losses, abs=5e-5)
    faster = merge(config, {"train": {"learning_rate": 0.1}})  # not all updates were skipped
    assert reenacted(case, faster, weights) != pytest.approx(losses, abs=5e-4)
