"""A small model by Megatron-Core on gloo ranks, its weights, and the same model by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from flagbench_cases.contract import Context
from flagbench_cases.engines.megatron import open_engine, parts
from flagbench_cases.engines.megatron.shape import shape_of
from flagbench_cases.prepare.llama import convert, weights_format
from flagbench_cases.rank.device import CpuDevice
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import RankSpool

SMALL = {
    "name": "small",
    "layers": 4,
    "dim": 64,
    "heads": 16,
    "kv_heads": 8,
    "ffn": 96,
    "vocab_size": 99,
    "positions": 64,
    "norm_eps": 1.0e-5,
    "rope_theta": 500.0,
    "initializer_range": 0.1,
    "norm_init": 0.5,
    "vocab_multiple": 4,
}
"""The model has 99 tokens: 100 rows of the vocabulary on one rank, 104 on two and 112 on four."""


def weights_of(section: dict[str, Any], centre: float = 1.0) -> dict[str, torch.Tensor]:
    """Numbers that depend on names and shapes alone, by Hugging Face's names: norms around `centre`."""
    generator, made = np.random.RandomState(0), {}
    for name, shape in sorted(weights_format.shapes(section).items()):
        drawn = generator.normal(centre if len(shape) == 1 else 0.0, 0.1, shape)
        made[name] = torch.from_numpy(drawn.astype(np.float32))
    return made


def context_of(folder: Path, rank: int, layout: Layout, config: dict[str, Any], **given: Any) -> Context:
    """What a workload or an engine receives on a rank of the processor."""
    device = CpuDevice()
    probe, spool = CollectiveProbe(device.clock), RankSpool(str(folder), rank)
    data, weights, groups = (given.get(name) for name in ("data", "weights", "groups"))
    return Context(config, device, rank, layout, rank, probe, spool, data, weights, groups or {})


def start(folder: Path, rank: int, layout: Layout) -> tuple[Any, Context]:
    """The engine on a rank, started, and the rank's context."""
    engine, context = open_engine(), context_of(folder, rank, layout, {"seed": 1})
    engine.start(context)
    return engine, context


def build(
    engine: Any,
    context: Context,
    section: dict[str, Any] = SMALL,
    dtype: torch.dtype = torch.float32,
    of_2023: bool = False,
    padding: str = "zeros",
) -> Any:
    """The rank's part of the model with the weights of `weights_of`."""
    shape, weights = shape_of(section), weights_of(section)
    module = engine.build(context, shape, dtype, of_2023)
    mine = parts.parts_of(shape, context.layout, context.layout.coordinates(context.rank), padding)
    parts.fill(module, mine, lambda names: iter([(name, weights[name]) for name in names]))
    return module.eval()


def inputs_of(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, positions and causal mask, as the module takes them."""
    length = tokens.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]
    return tokens, torch.arange(length).expand_as(tokens), mask


def gathered(part: torch.Tensor) -> torch.Tensor:
    """The last dimension of all ranks, one after another."""
    found = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(found, part.contiguous())
    return torch.cat(found, dim=-1)


def transformers_model(section: dict[str, Any], weights: dict[str, torch.Tensor]) -> Any:
    """LlamaForCausalLM with these weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = convert.config_of(section)
    del config["architectures"], config["model_type"]
    model = LlamaForCausalLM(LlamaConfig(**config, attn_implementation="eager"))
    model.load_state_dict(weights)
    return model.eval()
