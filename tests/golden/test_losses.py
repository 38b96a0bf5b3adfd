"""Losses of the cases, held to four decimals over versions of Python, torch, the publishers' libraries
and this code.

Tiny models without dropout, in fp32, in each case's own order of the data, on one gloo rank and on two. The sizes of
DistilBERT and GLM are here and those of Llama2-7B LoRA in lora_bench.py, with weights from numpy (torch's generators
may change between versions) and random data. Aquila, Llama2-70B and Llama-3 8B run their tiny presets on their
shipped sets, on one rank: tests of each case and of two nodes have the same losses where the model is split. A change
of these numbers is a change of the mathematics, of the order of the data or of the shipped files. If it is intended,
update them and say why in the commit:

    PYTHONPATH=entrypoints:tests python tests/golden/test_losses.py --update CASE
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flagbench_cases.rank.train_loop import TrainPlan
from flagbench_cases.shared.manifests import load_case
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import Step
from flagbench_core.config import merge
from running import need_imports
from workloads import on_ranks, set_up, train

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


def of_torch(case: str, sizes: dict, folder: Path, rank: int, world: int) -> list[float]:
    """The first steps of a rank."""
    config = merge(merge(load_case(case)["presets"]["reference"], COMMON), sizes)
    config["train"]["batch_size"] = BATCH // world
    module = importlib.import_module("flagbench_cases.cases.%s.workload" % case)
    workload = set_up(module.build, config, folder, rank, world)
    workload.module.load_state_dict(fixed_weights(workload.module))
    return train(workload, STEPS)[0]


def of_lora(folder: Path, rank: int, world: int) -> list[float]:
    """The first steps of a rank; they pass from one epoch to the next, and its lower learning rate."""
    from unit.cases.llama2_7b_lora import lora_bench

    changes = {"model": {"rope_theta": 5000.0}, "train": {"batch_size": 4 // world, "learning_rate": 3e-4}}
    return lora_bench.train(lora_bench.workload(folder, rank, world, **changes), STEPS)


def of_aquila(folder: Path, rank: int, world: int) -> list[float]:
    """Each of the 64 sentences, and their mean."""
    from unit.cases.aquila_33b.aquila_bench import scored

    found = scored(folder, rank, Layout())
    mean = found["evaluation"]["extra"][0]["value"]
    return [*(Step(*step).loss for step in found["steps"]), mean]


def of_llama(changes: dict[str, Any], folder: Path, rank: int, world: int) -> list[float]:
    """The first ten steps."""
    from unit.cases.llama2_70b.llama70_bench import trained

    plan = TrainPlan(1, warmup_steps=5, window_steps=5, target_acc=None, initial_evaluation=False)
    return [Step(*step).loss for step in trained(folder, rank, Layout(), plan, **changes)["steps"]]


CASES: dict[str, Callable[[Path, int, int], list[float]]] = {
    "aquila_33b": of_aquila,
    "distilbert": functools.partial(of_torch, "distilbert", DISTILBERT),
    "glm": functools.partial(of_torch, "glm", GLM),
    "llama2_70b": functools.partial(of_llama, {}),
    "llama3_8b": functools.partial(of_llama, {"case": "llama3-8b", "model": {"dropout": 0.0}}),
    "llama2_7b_lora": of_lora,
}
MEGATRON = ("aquila_33b", "llama2_70b", "llama3_8b")
"""Their losses do not depend on the number of ranks, and are on record for one."""
RUNS = [(case, 1) for case in CASES] + [(case, 2) for case in CASES if case not in MEGATRON]
"""Each case, and the ranks that it runs on."""


def golden(case: str) -> Path:
    """The file of a case's losses."""
    return FOLDER / f"{case}_losses.json"


@pytest.mark.parametrize(("case", "world"), RUNS)
def test_losses_are_those_on_record(tmp_path: Path, case: str, world: int) -> None:
    need_imports(case.replace("_", "-"))
    recorded = json.loads(golden(case).read_text())
    for rank, losses in enumerate(on_ranks(world, tmp_path, CASES[case])):
        expected = recorded["losses"] if case in MEGATRON else recorded[f"ranks-{world}"][rank]
        assert losses == pytest.approx(expected, abs=5e-5)


def update(case: str) -> None:
    """Write the losses of this version down as the golden ones of a case."""
    content: dict[str, list] = {}
    for world in (world for name, world in RUNS if name == case):
        with tempfile.TemporaryDirectory() as folder:
            found = on_ranks(world, Path(folder) / "ranks", CASES[case])
        content[f"ranks-{world}"] = [[round(loss, 6) for loss in losses] for losses in found]
    if case in MEGATRON:
        content = {"losses": content["ranks-1"][0]}
    golden(case).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--update" or sys.argv[2] not in CASES:
        sys.exit("this is a test; run it with pytest, or with --update and one of %s" % ", ".join(sorted(CASES)))
    update(sys.argv[2])
