"""FLOPs of a sample or token by the formula of a case and the sizes of a model.

A multiply-accumulate is 2 FLOPs, and a backward pass is twice its forward pass. The conventions: every matrix product
with attention in full, as our own `mfu` counts; with half of it, as a causal mask leaves it; 6 FLOPs a parameter
and token (2 for inference, 4 for LoRA), with and without the embeddings (Chowdhery et al. 2022, PaLM, appendix B).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flagbench.catalog.model import Case

Sizes = Mapping[str, Any]


def flops_of_unit(case: Case, model: Sizes, length: int) -> dict[str, float] | None:
    """FLOPs of a sample, of one sequence, or of a token by the name of each convention, first that of our own `mfu`.

    None if the case's formula is not one of those below. Raises KeyError, TypeError or ArithmeticError for a model
    that lacks a size.
    """
    count = _FORMULAS.get(str(case.raw["flops"]["formula"]))
    return None if count is None else count(_numbers(model), length)


def _numbers(model: Sizes) -> dict[str, Any]:
    """The sizes that are numbers; a record may have a list, which a product would repeat."""
    found: dict[str, Any] = {}
    for name, value in model.items():
        if isinstance(value, Mapping):
            found[name] = _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = value
    return found


def _distilbert(model: Sizes, length: int) -> dict[str, float]:
    dim, ffn, layers = model["dim"], model["hidden_dim"], model["layers"]
    linear = layers * 2 * (4 * dim**2 + 2 * dim * ffn) * length
    attention = layers * 4 * dim * length**2
    head = 2 * (dim**2 + dim * model["labels"])
    inner = layers * (4 * dim**2 + 2 * dim * ffn) + dim**2 + dim * model["labels"]
    embeddings = (model["vocab_size"] + model["positions"]) * dim
    return _named(3 * (linear + attention + head), None, 6 * length, inner, embeddings)


def _glm(model: Sizes, length: int) -> dict[str, float]:
    dim, layers, vocabulary = model["dim"], model["layers"], model["vocab_size"]
    linear = layers * 24 * dim**2 * length
    attention = layers * 4 * dim * length**2
    logits = 2 * dim * vocabulary * length
    inner, embeddings = 12 * layers * dim**2, (vocabulary + 2 * model["positions"]) * dim
    return _named(3 * (linear + attention + logits), None, 6 * length, inner, embeddings)


def _llama(model: Sizes, length: int, passes: int = 3) -> dict[str, float]:
    inner, table, attention = _llama_sizes(model, length)
    full = passes * (2 * (inner + table) + attention)
    return _named(full, full - passes * attention / 2, 2 * passes, inner + table, table)


def _lora(model: Sizes, length: int) -> dict[str, float]:
    """Two passes over frozen weights, three over attention and adapters; none below the first layer's attention."""
    inner, table, attention = _llama_sizes(model, length)
    dim, rank = model["dim"], model["lora"]["r"]
    kv = dim // model["heads"] * model["kv_heads"]
    adapters = 2 * rank * (2 * dim + dim + kv)
    unneeded = 2 * (dim * dim + 2 * dim * kv) + 2 * length * dim + 4 * rank * dim
    full = 4 * (inner + table) + 3 * attention + 3 * model["layers"] * adapters - unneeded
    return _named(full, full - 1.5 * attention, 4, inner + table, table)


def _llama_sizes(model: Sizes, length: int) -> tuple[int, int, int]:
    """Weights of the layers, weights of the output layer, and a token's forward FLOPs of attention."""
    dim = model["dim"]
    kv = dim // model["heads"] * model["kv_heads"]
    inner = model["layers"] * (2 * dim * (dim + kv) + 3 * dim * model["ffn"])
    return inner, dim * model["vocab_size"], model["layers"] * 4 * length * dim


def _named(full: float, causal: float | None, factor: float, inner: float, embeddings: float) -> dict[str, float]:
    found = {"every matrix product": full}
    if causal is not None:
        found["every matrix product, causal attention halved"] = causal
    found[f"{factor:g} x parameters"] = factor * (inner + embeddings)
    found[f"{factor:g} x parameters without embeddings"] = factor * inner
    return found


_FORMULAS: dict[str, Callable[[Sizes, int], dict[str, float]]] = {
    "distilbert-matmul/v1": _distilbert,
    "glm-matmul/v1": _glm,
    "llama-matmul/v1": _llama,
    "llama-forward-matmul/v1": lambda model, length: _llama(model, length, passes=1),
    "llama-lora-matmul/v1": _lora,
}
