"""A GLM workload in miniature, on sets made for the tests: what the tests of the workload share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch

from flagbench_cases.cases.glm import data as dataset
from flagbench_cases.cases.glm.model import GlmConfig
from flagbench_cases.cases.glm.ragged import Builder, RaggedExamples
from flagbench_cases.cases.glm.special_tokens import SpecialTokens
from flagbench_cases.cases.glm.workload import GlmWorkload, build
from flagbench_cases.shared.manifests import load_case
from flagbench_core.config import merge
from workloads import set_up

Result = TypeVar("Result")
PRESETS = load_case("glm")["presets"]
LENGTH = 16
SPECIAL = SpecialTokens(pad=0, cls=1, mask=2, sop=3, eop=4)
SMALL = {
    "model": {
        "name": "glm-test",
        "layers": 2,
        "dim": 16,
        "heads": 2,
        "vocab_size": 40,
        "positions": LENGTH + 1,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "initializer_range": 0.2,
    },
    "data": {"source": "shipped", "sequence_length": LENGTH, "workers": 0},
    "train": {"batch_size": 4, "learning_rate": 1e-2, "decay_steps": 20, "evaluate_every_samples": None},
    "eval": {"batch_size": 2},
    "precision": "fp32",
    "weights": "random",
    "seed": 0,
}


def examples(choices: list[int], seed: int) -> dataset.ClozeSet:
    """Random examples with so many choices; the first is right, and its answer [5] unless it is drawn otherwise."""
    generator, builder = torch.Generator().manual_seed(seed), Builder()

    def draw(low: int, high: int, count: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    for count in choices:
        context = [SPECIAL.cls, *draw(5, 40, *draw(2, 8, 1)), SPECIAL.mask, SPECIAL.pad]
        answers = [draw(5, 40, *draw(1, 4, 1)) for _ in range(count)]
        right, f1 = [c == 0 for c in range(count)], [1.0 if c == 0 else 0.25 for c in range(count)]
        builder.add([context] * count, [len(context) - 2] * count, answers, right, f1)
    return dataset.ClozeSet(RaggedExamples(builder.arrays()), LENGTH, SPECIAL)


TRAIN = [3, 4, 2, 3] * 5  # 20 examples
EVALUATION = [3, 2, 4, 2, 3, 2, 2]


def workload(
    folder: Path, rank: int = 0, world: int = 1, weights: str | None = None, sets: Any = None, **changed: Any
) -> GlmWorkload:
    """A workload that is set up, on `sets` or else on those above; `changed` replaces keys of sections."""
    config = merge(merge(PRESETS["reference"], SMALL), changed)
    made = sets or dataset.Sets(
        examples(TRAIN, 0), examples(EVALUATION, 1), "shipped", "4 at most, mean 3.0", "wordpieces"
    )
    with mock.patch.object(dataset, "load", return_value=made):
        return set_up(build, config, folder, rank, world, weights)


def settled(call: Callable[[], Result]) -> Result:
    """What a call returns the fourth time: torch compiles the scripted GELU after it has seen it run, and then rounds
    otherwise."""
    for _ in range(3):
        call()
    return call()


def parameter_count(config: GlmConfig) -> int:
    """Number of parameters; the head shares the word embedding."""
    dim = config.dim
    layer = 12 * dim**2 + (3 + 1 + 4 + 1) * dim + 4 * dim  # weights, biases, two norms
    return (config.vocab_size + 2 * config.positions) * dim + config.layers * layer + 2 * dim
