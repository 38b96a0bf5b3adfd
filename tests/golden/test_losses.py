"""Losses of the faithful divisions, held to four decimals over versions of Python, torch and this code.

Tiny models without dropout, in fp32, with weights from numpy (torch's generators may change between versions) on
fixed synthetic sets in each case's own order: 20 steps on one rank, and on two gloo ranks. All sizes are written
here, so that tuning a tiny preset changes nothing: a change of these numbers is a change of the mathematics or of
the order of the data. If it is intended, update them and say why in the commit:

    PYTHONPATH=entrypoints:tests python tests/golden/test_losses.py --update CASE
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from flagbench_cases.shared.config import load_case, merge
from workloads import on_ranks, set_up

pytestmark = pytest.mark.image

FOLDER = Path(__file__).parent
STEPS = 20
BATCH = 8  # over all ranks
DISTILBERT = {
    "model": {
        "layers": 2,
        "dim": 64,
        "heads": 2,
        "hidden_dim": 128,
        "vocab_size": 1024,
        "positions": 128,
        "labels": 2,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "classifier_dropout": 0.0,
    },
    "data": {
        "sequence_length": 32,
        "train_examples": 64,
        "eval_examples": 8,
        "synthetic": {"mean_length": 13.3, "sigma": 0.6, "min_length": 3, "max_length": 32},
    },
    "train": {"gradient_accumulation_steps": 1, "learning_rate": 1e-3, "weight_decay": 0.0, "max_epochs": 4},
}
GLM = {
    "model": {
        "layers": 2,
        "dim": 32,
        "heads": 4,
        "vocab_size": 256,
        "positions": 33,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "recompute": True,
    },
    "data": {
        "sequence_length": 32,
        "train_examples": 64,
        "eval_examples": 8,
        "synthetic": {
            "mean_context": 16,
            "sigma_context": 0.35,
            "min_context": 6,
            "mean_answer": 2.7,
            "sigma_answer": 0.5,
            "max_answer": 8,
            "mean_choices": 4,
            "sigma_choices": 0.5,
            "min_choices": 2,
            "max_choices": 6,
        },
    },
    # The peak of the learning rate is reached on the way.
    "train": {"learning_rate": 1e-3, "weight_decay": 0.1, "clip_norm": 1.0, "decay_steps": 40, "warmup_share": 0.2},
}
CASES = {"distilbert": DISTILBERT, "glm": GLM}
COMMON = {
    "data": {"source": "synthetic", "workers": 0},
    "train": {"batch_size": BATCH},
    "precision": "fp32",
    "weights": "random",
    "seed": 0,
}


def fixed_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights that depend on the names and shapes of the parameters only."""
    generator = np.random.RandomState(0)
    state = {}
    for name, tensor in sorted(module.state_dict().items()):
        centre = 1.0 if name.lower().endswith("norm.weight") else 0.0
        state[name] = torch.from_numpy(generator.normal(centre, 0.1, tuple(tensor.shape)).astype(np.float32))
    return state


def train(case: str, folder: Path, rank: int, world: int) -> list[float]:
    """The losses of one rank's first steps, in the case's own order of the data."""
    config = merge(merge(load_case(case)["presets"]["reference"], COMMON), CASES[case])
    config["train"]["batch_size"] = BATCH // world
    module = importlib.import_module("flagbench_cases.cases.%s.workload" % case.replace("-", "_"))
    workload = set_up(module.build, config, folder, rank, world)
    workload.module.load_state_dict(fixed_weights(workload.module))
    losses: list[float] = []
    epoch = 0
    while len(losses) < STEPS:
        for batch in workload.batches(epoch):
            losses.append(workload.step(workload.to_device(batch)))
            workload.context.probe.take()
        epoch += 1
    return losses[:STEPS]


def run(case: str, folder: str, world: int) -> list[list[float]]:
    """The losses of `world` ranks, a list for each."""
    return on_ranks(world, Path(folder), functools.partial(train, case))


def golden(case: str) -> Path:
    """The file of a case's losses."""
    return FOLDER / f"{case}_losses.json"


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("case", sorted(CASES))
def test_losses_are_those_on_record(tmp_path: Path, case: str, world: int) -> None:
    expected = json.loads(golden(case).read_text())[f"ranks-{world}"]
    losses = run(case, str(tmp_path), world)
    assert len(losses) == len(expected) == world
    for measured, recorded in zip(losses, expected):
        assert len(recorded) == STEPS
        assert measured == pytest.approx(recorded, abs=5e-5)


def update(case: str) -> None:
    """Write the losses of this version down as the golden ones of a case."""
    content = {}
    for world in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            content[f"ranks-{world}"] = [[round(loss, 6) for loss in losses] for losses in run(case, folder, world)]
    golden(case).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--update" or sys.argv[2] not in CASES:
        sys.exit("this is a test; run it with pytest, or with --update and one of %s" % ", ".join(sorted(CASES)))
    update(sys.argv[2])
