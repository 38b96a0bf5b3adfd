"""A rank of a small model by the installed Megatron-Core."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from flagbench_cases.contract import Context
from flagbench_cases.engines.megatron import open_engine, parts
from flagbench_cases.engines.megatron.shape import shape_of
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.shared.layout import Layout

MODEL = {
    "name": "small",
    "layers": 3,
    "dim": 64,
    "heads": 8,
    "kv_heads": 2,
    "ffn": 96,
    "vocab_size": 96,
    "positions": 128,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "initializer_range": 0.15,
    "norm_init": 1.0,
    "vocab_multiple": 8,
}
SHAPE = shape_of(MODEL)
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOKENS = torch.randint(SHAPE.vocab_size, (2, SHAPE.positions + 1), generator=torch.Generator().manual_seed(7))


def read(names: list[str]) -> Any:
    """The same weights for every layout: name and tensor, fp32."""
    shapes = weights_format.shapes(MODEL)
    return parts.random_tensors(SHAPE, shapes, 5, torch.device("cpu"), lambda: None)(names)


def all_weights() -> dict[str, torch.Tensor]:
    """Every tensor by its Hugging Face name."""
    return dict(read(sorted(weights_format.shapes(MODEL))))


def told(_folder: Path, rank: int, tp: int) -> dict[str, Any]:
    """What a rank of the model computes: its part of the logits of TOKENS, by the name of the precision, and the
    losses of the tokens in fp32."""
    device: Any = SimpleNamespace(kind="cpu", backend="gloo", torch=torch.device("cpu"))
    nothing: Any = None
    context = Context({"seed": 1}, device, rank, Layout(tp=tp), rank, nothing, nothing, None, None)
    engine = open_engine()
    engine.start(context)
    length = SHAPE.positions
    mask = torch.ones(1, 1, length, length).tril() < 0.5
    positions = torch.arange(length).expand(len(TOKENS), length)
    found: dict[str, Any] = {"module": engine.__name__}
    for name, dtype in PRECISIONS.items():
        model = engine.build(context, SHAPE, dtype, of_2023=True)
        parts.fill(model, parts.parts_of(SHAPE, context.layout, context.layout.coordinates(rank)), read)
        model.eval()
        with torch.no_grad():
            logits = model(TOKENS[:, :-1].contiguous(), positions, mask).contiguous().float()
            found[name] = logits.clone()
            found[name + " losses"] = engine.token_losses(logits, TOKENS[:, 1:].contiguous())
    return found
