"""Checkpoints of Megatron-LM for tests, in the layout that its save_checkpoint writes."""

from __future__ import annotations

import argparse
import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flagbench_cases.prepare.llama import weights_format

SECTION: dict[str, Any] = {
    "name": "aquila-test",
    "layers": 2,
    "dim": 16,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 24,
    "vocab_size": 29,
    "positions": 32,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "initializer_range": 0.02,
    "norm_init": 0.3,
    "vocab_multiple": 4,
}
ROWS = 32  # of the vocabulary, padded for 1, 2 or 4 ranks of four
ITERATION = "iter_0135000"


def state(dtype: torch.dtype = torch.bfloat16, section: dict[str, Any] = SECTION) -> dict[str, torch.Tensor]:
    """All tensors of the model by their Hugging Face names, each with numbers of its own."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator).to(dtype)
        for name, shape in weights_format.shapes(section).items()
    }


def padded(matrix: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return matrix if rows is None else torch.cat([matrix, rows.to(matrix.dtype)])


def split(
    tensors: dict[str, torch.Tensor],
    tp: int,
    rows: torch.Tensor | None = None,
    section: dict[str, Any] = SECTION,
) -> list[dict[str, Any]]:
    """The `language_model` of each rank. `rows` follow the vocabulary in the output layer; -1 in the embedding."""
    heads, groups = section["heads"], section["kv_heads"]
    words = padded(tensors["model.embed_tokens.weight"], None if rows is None else torch.full(rows.shape, -1.0))
    logits = padded(tensors["lm_head.weight"], rows)
    ranks: list[dict[str, Any]] = [
        {
            "embedding": {"word_embeddings": OrderedDict(weight=a.clone())},
            "encoder": OrderedDict(),
            "output_layer": OrderedDict(weight=b.clone()),
        }
        for a, b in zip(words.chunk(tp), logits.chunk(tp))
    ]
    for layer in range(section["layers"]):
        ours, theirs = "layers.%d." % layer, "model.layers.%d." % layer
        get = {name: tensors[theirs + name + ".weight"] for name in NAMES}
        queries = get["self_attn.q_proj"].chunk(heads)
        keys, values = get["self_attn.k_proj"].chunk(groups), get["self_attn.v_proj"].chunk(groups)
        own = heads // groups
        qkv = [torch.cat([*queries[g * own : (g + 1) * own], keys[g], values[g]]) for g in range(groups)]
        gates, ups = get["mlp.gate_proj"].chunk(tp), get["mlp.up_proj"].chunk(tp)
        for rank, here in enumerate(ranks):
            mine = slice(rank * groups // tp, (rank + 1) * groups // tp)
            here["encoder"].update(
                {
                    ours + "input_layernorm.weight": get["input_layernorm"],
                    ours + "self_attention.query_key_value.weight": torch.cat(qkv[mine]),
                    ours + "self_attention.dense.weight": get["self_attn.o_proj"].chunk(tp, 1)[rank].clone(),
                    ours + "post_attention_layernorm.weight": get["post_attention_layernorm"],
                    ours + "mlp.dense_h_to_4h.weight": torch.cat([gates[rank], ups[rank]]),
                    ours + "mlp.dense_4h_to_h.weight": get["mlp.down_proj"].chunk(tp, 1)[rank].clone(),
                }
            )
    for here in ranks:
        here["encoder"]["final_layernorm.weight"] = tensors["model.norm.weight"]
    return ranks


NAMES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "input_layernorm",
    "post_attention_layernorm",
)


def save(folder: Path, ranks: list[dict[str, Any]], iteration: str = ITERATION, tracker: str = "135000") -> Path:
    """A checkpoint folder, with what a training program keeps beside the model."""
    for rank, model in enumerate(ranks):
        path = shard(folder, rank, iteration)
        path.parent.mkdir(parents=True)
        content = {
            "args": argparse.Namespace(tensor_model_parallel_size=len(ranks), lr=1e-4, data_path=["a", "b"]),
            "checkpoint_version": 3.0,
            "iteration": 135000,
            "model": {"language_model": model},
            "optimizer": {"step": 1, "state": OrderedDict(moment=torch.ones(3))},
            "rng_state": [{"random": random.Random(0).getstate(), "numpy": np.random.RandomState(0).get_state()}],
        }
        torch.save(content, str(path))
    (folder / "latest_checkpointed_iteration.txt").write_text(tracker, encoding="ascii")
    return folder


def shard(folder: Path, rank: int, iteration: str = ITERATION) -> Path:
    return folder / iteration / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"
