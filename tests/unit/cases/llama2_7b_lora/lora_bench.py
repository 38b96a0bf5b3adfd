"""A small Llama on a synthetic set, one rank or several, for the tests of this folder and the golden losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from flagbench_cases.cases.llama2_7b_lora import model as llama
from flagbench_cases.cases.llama2_7b_lora.workload import LlamaLoraWorkload
from flagbench_cases.shared.manifests import load_case
from flagbench_core.config import merge
from workloads import set_up

CASE = load_case("llama2-7b-lora")
REFERENCE = CASE["presets"]["reference"]
SMALL = {
    "layers": 2,
    "dim": 32,
    "heads": 4,
    "kv_heads": 4,
    "ffn": 48,
    "vocab_size": 96,
    "positions": 64,
    "initializer_range": 0.1,
    "lora": {"r": 4, "alpha": 16, "dropout": 0.0},
}
LENGTH = 24
CHANGED = {
    "model": SMALL,
    "data": {
        "source": "synthetic",
        "sequence_length": LENGTH,
        "train_blocks": 24,
        "validation_blocks": 5,
        "mmlu_items": 7,
        "workers": 0,
    },
    "train": {"batch_size": 2, "learning_rate": 1e-3, "window_steps": None, "memory_monitor": False},
    "precision": "fp32",
    "weights": "random",
    "seed": 42,
    "nodes": 1,
    "gpus": 1,
}


def small_shape(**changes: Any) -> llama.LlamaShape:
    """Sizes of the small model, some changed."""
    return llama.shape_from(merge(merge(REFERENCE["model"], SMALL), changes))


def configured(**changes: dict[str, Any] | Any) -> dict[str, Any]:
    """The configuration of the small model; `changes` replace keys section by section."""
    config = merge(merge(REFERENCE, CHANGED), changes)
    config["data"].pop("default")
    return config


def fixed_weights(named: dict[str, torch.Tensor]) -> None:
    """Fill tensors with numbers that depend on their names and shapes alone: torch's generators change."""
    generator = np.random.RandomState(0)
    with torch.no_grad():
        for name in sorted(named):
            centre = 1.0 if named[name].dim() == 1 else 0.0
            drawn = generator.normal(centre, 0.1, tuple(named[name].shape))
            named[name].copy_(torch.from_numpy(drawn.astype(np.float32)))


class Fixed(LlamaLoraWorkload):
    """The workload with weights that no generator of torch decides, B's of the adapters among them."""

    def _make_model(self) -> None:
        super()._make_model()
        frozen = self.module.named_parameters()
        fixed_weights({name.replace(".base_layer", ""): p for name, p in frozen if ".lora_" not in name})
        fixed_weights(dict(self.parameters))


def workload(folder: Path, rank: int = 0, world: int = 1, kind: Any = Fixed, **changes: Any) -> LlamaLoraWorkload:
    """A rank's workload, set up on the processor."""
    return set_up(kind, configured(**changes), folder, rank, world)


def train(work: LlamaLoraWorkload, steps: int, first: int = 0) -> list[float]:
    """The losses of steps `first` to `steps` in the case's own order."""
    losses: list[float] = []
    epoch, skip = divmod(first, work.steps_per_epoch())
    while first + len(losses) < steps:
        for index, batch in enumerate(work.batches(epoch)):
            if index < skip:
                continue
            losses.append(work.step(work.to_device(batch)))
            work.context.probe.take_gradients()
            if first + len(losses) >= steps:
                break
        epoch, skip = epoch + 1, 0
    return losses
