"""The format llama-safetensors/v1: a folder with the weights of a model of the Llama family, written by `prepare` and
read by runs with any layout.

weights-0000k.safetensors   tensors with their Hugging Face names and dtypes, at most 4 GiB per file
index.json                  {tensor: file}
                            may list PADDING, the rows of a padded output layer after the vocabulary
config.json                 Hugging Face's keys, with rope_theta where both transformers 4 and 5 find it
"""

from __future__ import annotations

from typing import Any

from flagbench_cases.shared.errors import DataError

FORMAT = "llama-safetensors/v1"
PADDING = "lm_head.padding.weight"
"""The name of an optional tensor [rows, dim]: rows of the output layer after those of the vocabulary.

It is not a tensor of the model, but its logits are in the denominator of the publisher's loss.
"""
POSITIONS = "model.embed_positions.weight"
"""The name of a tensor [positions, dim] of models with learned positions, which Llama itself does not have."""
CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "intermediate_size": "ffn",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "rms_norm_eps": "norm_eps",
    "rope_theta": "rope_theta",
}
"""Keys of config.json, each with the key of the manifest's `model` section whose value it must have."""


def sizes(section: dict[str, Any]) -> dict[str, Any]:
    """Return the values that config.json must have for a `model` section."""
    return {key: section[name] for key, name in CONFIG_KEYS.items()}


def check_config(folder: str, config: dict[str, Any], wanted: dict[str, Any], name: str) -> None:
    """Raise DataError if a config.json does not have the `wanted` values of the model called `name`."""
    for key, value in wanted.items():
        if config.get(key) != value:
            raise DataError(
                f"{folder}/config.json has {key} = {config.get(key)}, but this model has {value}",
                f"use the weights of {name}",
            )


def shapes(section: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a `model` section's model, by name."""
    dim = section["dim"]
    ffn = section["ffn"]
    vocabulary = section["vocab_size"]
    kv_dim = dim // section["heads"] * section["kv_heads"]
    shape_of: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, dim),
        "model.norm.weight": (dim,),
    }
    if not section.get("tied"):
        shape_of["lm_head.weight"] = (vocabulary, dim)
    if section.get("position_embedding") == "learned":
        shape_of[POSITIONS] = (section["positions"], dim)
    for layer in range(section["layers"]):
        for name, shape in (
            ("self_attn.q_proj", (dim, dim)),
            ("self_attn.k_proj", (kv_dim, dim)),
            ("self_attn.v_proj", (kv_dim, dim)),
            ("self_attn.o_proj", (dim, dim)),
            ("mlp.gate_proj", (ffn, dim)),
            ("mlp.up_proj", (ffn, dim)),
            ("mlp.down_proj", (dim, ffn)),
            ("input_layernorm", (dim,)),
            ("post_attention_layernorm", (dim,)),
        ):
            shape_of[f"model.layers.{layer}.{name}.weight"] = shape
            if section.get("bias") and len(shape) == 2:
                shape_of[f"model.layers.{layer}.{name}.bias"] = shape[:1]
    return shape_of
