"""FLOPs of the matrix products of a model: one function a formula, whose id the manifest of a case names.

A multiply-accumulate is 2 FLOPs, and attention is counted in full. Sources are the shapes of the models; each formula
equals torch.utils.flop_counter.FlopCounterMode with eager attention (tests). A run counts its batches with them, and
the host counts the same from the record's tokens.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple

Sizes = Mapping[str, Any]
"""The `model` section of a configuration."""


class Batch(NamedTuple):
    """Sequences of T tokens each; with padding for executed work, without it for useful work."""

    sequences: int
    tokens: int
    """The sum of T."""
    pairs: int
    """The sum of T * T."""
    predictions: int
    """Positions that are projected onto the vocabulary."""


def batch_of(sequences: int, length: int) -> Batch:
    """Sequences of one length, whose positions are all projected onto the vocabulary."""
    return Batch(sequences, sequences * length, sequences * length**2, sequences * length)


def padded_vocabulary(size: int, multiple: int, tp: int) -> int:
    """Rows of the embeddings and of the output layer over all of `tp` tensor-parallel ranks."""
    return -(-size // (multiple * tp)) * multiple * tp


def padded(model: Sizes, tp: int) -> Sizes:
    """The sizes with the rows that pad the vocabulary of `tp` tensor-parallel ranks, if the model pads it."""
    multiple = model.get("vocab_multiple")
    if multiple is None:
        return model
    return {**model, "vocab_size": padded_vocabulary(model["vocab_size"], multiple, tp)}


class Flops(NamedTuple):
    """What a model computes for a batch, and what the usual estimates of it need."""

    forward: int
    backward: int
    layers: int
    """Of `forward`, those of the layers, which recomputation repeats."""
    weights: int
    """Parameters of the matrices of all products, adapters aside."""
    embeddings: int
    """Further parameters, which are looked up."""
    causal: bool = False
    """Whether a mask leaves half of the attention."""

    @property
    def executed(self) -> int:
        """Of a step, without recomputation."""
        return self.forward + self.backward


def distilbert(model: Sizes, batch: Batch) -> Flops:
    """A classifier on the first position. Backward is twice forward: each factor of a product has a gradient."""
    dim, layers = model["dim"], model["layers"]
    layer = 4 * dim**2 + 2 * dim * model["hidden_dim"]
    head = dim**2 + dim * model["labels"]
    inner = layers * (2 * layer * batch.tokens + 4 * dim * batch.pairs)
    forward = inner + 2 * head * batch.sequences
    embeddings = (model["vocab_size"] + model["positions"]) * dim
    return Flops(forward, 2 * forward, inner, layers * layer + head, embeddings)


def glm(model: Sizes, batch: Batch) -> Flops:
    """Its output layer is the embedding."""
    dim, layers, vocabulary = model["dim"], model["layers"], model["vocab_size"]
    inner = layers * (24 * dim**2 * batch.tokens + 4 * dim * batch.pairs)
    forward = inner + 2 * dim * vocabulary * batch.predictions
    return Flops(forward, 2 * forward, inner, 12 * layers * dim**2, (vocabulary + 2 * model["positions"]) * dim)


def llama(model: Sizes, batch: Batch) -> Flops:
    """A model of the Llama family that is trained; `vocab_size`: the rows of the output layer."""
    flops = llama_forward(model, batch)
    return flops._replace(backward=2 * flops.forward)


def llama_forward(model: Sizes, batch: Batch) -> Flops:
    """The forward pass alone, of inference."""
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
    """Adapters of q, k, v and o below frozen weights.

    Backward: the input gradients of all frozen matrices, and the gradients of both factors of scores, context and
    adapter products. Nothing below the adapters of the first layer needs a gradient: its q, k and v projections have
    none, its adapters' A only that of the weight, and its scores only that of the queries.
    """
    dim, kv, ffn, layers, rank = model["dim"], _kv_dim(model), model["ffn"], model["layers"], model["lora"]["r"]
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
    """Adapters of every projection of the layers, in the places that `lora.projections` names.

    Backward as in `llama_lora`, but every adapter needs the gradient of its input, in the first layer all except
    those of q, k and v.
    """
    dim, kv, ffn, layers, rank = model["dim"], _kv_dim(model), model["ffn"], model["layers"], model["lora"]["r"]
    into_attention = dim * dim + 2 * dim * kv
    after = dim * dim + 3 * dim * ffn
    frozen = 2 * batch.tokens * (into_attention + after)
    scores = 2 * batch.pairs * dim
    places = model["lora"]["projections"].split("+")
    adapters = 2 * batch.tokens * rank * sum(_widths_of_adapter(model, place) for place in places)
    table = dim * model["vocab_size"]
    head = 2 * batch.predictions * table
    inner = layers * (frozen + 2 * scores + adapters)
    adapters_before_attention = len([place for place in places if place in ("q", "k", "v", "qkv")])
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
"""By id."""
