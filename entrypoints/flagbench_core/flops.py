"""Counts the FLOPs of a model's matmuls: one function per formula, whose id is in the manifest of a case.

A multiply-accumulate is 2 FLOPs, and attention is counted in full, even if a mask leaves half of it. The formulas
follow from the shapes of the models; tests compare each with torch.utils.flop_counter.FlopCounterMode and eager
attention. A run counts its batches with them, and the host counts the same from the tokens in the record.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, NamedTuple

Sizes = Mapping[str, Any]
"""The `model` section of a configuration."""


class Batch(NamedTuple):
    """The sequences of a batch. T is the length of one: with padding for executed work, without for useful work."""

    sequences: int
    tokens: int
    """The sum of T over the sequences."""
    pairs: int
    """The pairs of positions that attention computes scores for: the sum of T * T over the sequences, except in
    `generation`."""
    predictions: int
    """The number of positions that are projected onto the vocabulary."""


def batch_of(sequences: int, length: int) -> Batch:
    """Sequences of one length, whose positions are all projected onto the vocabulary."""
    return Batch(sequences, sequences * length, sequences * length**2, sequences * length)


def generation(sequences: int, prompt: int, output: int) -> Batch:
    """Sequences that generate `output` tokens each after `prompt` tokens, with the keys and values of all in a cache.

    The prompt runs at once and gives the first token. Each further token is one more position, which attends to the
    prompt, to the tokens generated before it and to itself. The last token is not an input.
    """
    further_tokens = output - 1
    positions_seen = further_tokens * prompt + further_tokens * output // 2  # the sum of prompt + t for t = 1, 2, ...
    pairs = prompt**2 + positions_seen
    return Batch(sequences, sequences * (prompt + further_tokens), sequences * pairs, sequences * output)


def padded_vocabulary(size: int, multiple: int, tp: int) -> int:
    """The rows of a vocabulary of `size` entries, padded to a multiple of `multiple` on each tensor-parallel rank."""
    rows_per_step = multiple * tp
    return math.ceil(size / rows_per_step) * rows_per_step


def padded(model: Sizes, tp: int) -> Sizes:
    """The sizes of a model with its padded vocabulary on `tp` tensor-parallel ranks, if the model pads it."""
    multiple = model.get("vocab_multiple")
    if multiple is None:
        return model
    return {**model, "vocab_size": padded_vocabulary(model["vocab_size"], multiple, tp)}


class Flops(NamedTuple):
    """The FLOPs of a model for a batch, and the parameters that the usual estimates of FLOPs use."""

    forward: int
    """FLOPs of the forward pass."""
    backward: int
    """FLOPs of the backward pass, without recomputation."""
    layers: int
    """The part of `forward` that is in the layers, which recomputation repeats."""
    weights: int
    """The parameters of all matrices that are multiplied, without those of adapters."""
    embeddings: int
    """Further parameters, which are looked up."""
    causal: bool = False
    """Whether a mask leaves half of the attention."""

    @property
    def executed(self) -> int:
        """The FLOPs of a step, without recomputation."""
        return self.forward + self.backward


def distilbert(model: Sizes, batch: Batch) -> Flops:
    """A classifier on the first position. Backward is twice forward: both factors of a matmul have a gradient."""
    dim, layers = model["dim"], model["layers"]
    layer = 4 * dim**2 + 2 * dim * model["hidden_dim"]
    head = dim**2 + dim * model["labels"]
    inner = layers * (2 * layer * batch.tokens + 4 * dim * batch.pairs)
    forward = inner + 2 * head * batch.sequences
    embeddings = (model["vocab_size"] + model["positions"]) * dim
    return Flops(forward, 2 * forward, inner, layers * layer + head, embeddings)


def glm(model: Sizes, batch: Batch) -> Flops:
    """A GLM, whose output layer is the table of its embeddings."""
    dim, layers, vocabulary = model["dim"], model["layers"], model["vocab_size"]
    inner = layers * (24 * dim**2 * batch.tokens + 4 * dim * batch.pairs)
    forward = inner + 2 * dim * vocabulary * batch.predictions
    return Flops(forward, 2 * forward, inner, 12 * layers * dim**2, (vocabulary + 2 * model["positions"]) * dim)


def llama(model: Sizes, batch: Batch) -> Flops:
    """The training of a model of the Llama family. `vocab_size` is the number of rows of the output layer."""
    flops = llama_forward(model, batch)
    return flops._replace(backward=2 * flops.forward)


def llama_forward(model: Sizes, batch: Batch) -> Flops:
    """Inference with a model of the Llama family: the forward pass alone."""
    dim, layers = model["dim"], model["layers"]
    table = dim * model["vocab_size"]
    layer = 2 * dim * (dim + _kv_dim(model)) + 3 * dim * model["ffn"]
    inner = layers * (2 * layer * batch.tokens + 4 * dim * batch.pairs)
    looked_up = table
    if model.get("tied"):  # the output layer is the table of embeddings, too
        looked_up = 0
    if model.get("position_embedding") == "learned":
        looked_up += model["positions"] * dim
    return Flops(inner + 2 * table * batch.predictions, 0, inner, layers * layer + table, looked_up, causal=True)


def llama_lora(model: Sizes, batch: Batch) -> Flops:
    """LoRA fine-tuning of a model of the Llama family: adapters of q, k, v and o next to frozen weights.

    Backward: the input gradients of all frozen matrices, and the gradients of both factors of scores, context and
    adapter products. Nothing below the adapters of the first layer needs a gradient: its q, k and v projections have
    none, its adapters' A only that of the weight, and its scores only that of the queries.
    """
    dim, kv, ffn = model["dim"], _kv_dim(model), model["ffn"]
    layers, rank = model["layers"], model["lora"]["r"]
    into_attention = dim * dim + 2 * dim * kv
    after = dim * dim + 3 * dim * ffn
    frozen = 2 * batch.tokens * (into_attention + after)
    scores = 2 * batch.pairs * dim  # q k^T; the context product has as many
    lora_a = 4 * batch.tokens * rank * dim
    lora_b = 2 * batch.tokens * rank * (dim + kv)
    table = dim * model["vocab_size"]
    head = 2 * batch.predictions * table
    inner = layers * (frozen + 2 * scores + lora_a + lora_b)
    backward = layers * (frozen + 4 * scores + 2 * (lora_a + lora_b))
    unneeded = 2 * batch.tokens * into_attention + scores + lora_a
    weights = layers * (into_attention + after) + table
    return Flops(inner + head, backward - unneeded + head, inner, weights, table, causal=True)


def llama_lora_all(model: Sizes, batch: Batch) -> Flops:
    """LoRA fine-tuning with adapters of several projections of the layers, which `lora.projections` names.

    Backward as in `llama_lora`, but every adapter needs the gradient of its input, in the first layer all except
    those of q, k and v.
    """
    dim, kv, ffn = model["dim"], _kv_dim(model), model["ffn"]
    layers, rank = model["layers"], model["lora"]["r"]
    into_attention = dim * dim + 2 * dim * kv
    after = dim * dim + 3 * dim * ffn
    frozen = 2 * batch.tokens * (into_attention + after)
    scores = 2 * batch.pairs * dim
    places = model["lora"]["projections"].split("+")
    adapters = 2 * batch.tokens * rank * sum(_widths_of_adapter(model, place) for place in places)
    table = dim * model["vocab_size"]
    head = 2 * batch.predictions * table
    inner = layers * (frozen + 2 * scores + adapters)
    adapters_before_attention = sum(place in ("q", "k", "v", "qkv") for place in places)
    unneeded = 2 * batch.tokens * (into_attention + adapters_before_attention * rank * dim)
    backward = layers * (frozen + 4 * scores + 2 * adapters) - unneeded
    weights = layers * (into_attention + after) + table
    return Flops(inner + head, backward + head, inner, weights, table, causal=True)


def _widths_of_adapter(model: Sizes, place: str) -> int:
    """The width of a projection's input and that of its output, added up. Raises KeyError for an unknown one."""
    dim, kv, ffn = model["dim"], _kv_dim(model), model["ffn"]
    widths = {
        "q": dim + dim,
        "k": dim + kv,
        "v": dim + kv,
        "qkv": dim + dim + 2 * kv,
        "o": dim + dim,
        "gate": dim + ffn,
        "up": dim + ffn,
        "gate_up": dim + 2 * ffn,
        "down": ffn + dim,
    }
    return int(widths[place])


def _kv_dim(model: Sizes) -> int:
    """The width of keys and values."""
    return int(model["dim"] // model["heads"] * model["kv_heads"])


Formula = Callable[[Sizes, Batch], Flops]
FORMULAS: dict[str, Formula] = {
    "distilbert-matmul/v1": distilbert,
    "glm-matmul/v1": glm,
    "llama-matmul/v1": llama,
    "llama-forward-matmul/v1": llama_forward,
    "llama-lora-matmul/v1": llama_lora,
    "llama-lora-all-linear-matmul/v1": llama_lora_all,
}
"""The formulas by their id, as manifests and records have it."""
