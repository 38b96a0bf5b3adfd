"""How much work a case counts as one sample or token, and as one epoch: what its rules compute with.

All numbers follow from the reference preset in the case's manifest, and from what a row says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.catalog.model import Case

MOST_CHOICES = 10
"""Candidate answers of a ReCoRD training example: at most 10 (THUDM/GLM, tasks/superglue/dataset.py,
max_train_candidates_per_question), each a sequence of its own."""

Sizes = Mapping[str, Any]


@dataclass(frozen=True)
class UnitWork:
    """FLOPs that may be counted for a sample or a token, by the name of the convention; forward and backward."""

    conventions: Mapping[str, float]
    most: int = 1
    """A unit is up to so many times this, where the row does not say how many (GLM's candidate answers)."""

    @property
    def executed(self) -> float:
        """Every matrix product, attention in full: what our own `mfu` counts. FLOP."""
        return next(iter(self.conventions.values()))

    @property
    def least(self) -> float:
        """The convention that counts least, once. FLOP."""
        return min(self.conventions.values())


def unit_work(case: Case, sequence_length: int | None, choices: int | None) -> UnitWork | None:
    """The work of a sample or token of a case; None if the case's formula is not one of those below.

    A multiply-accumulate is 2 FLOPs, and a backward pass is twice its forward pass. The conventions: every matrix
    product with attention in full; with half of it, as a causal mask leaves it; 6 FLOPs (2 for inference, 4 for LoRA)
    for each parameter and token, with and without the embeddings (Chowdhery et al. 2022, PaLM, appendix B).
    """
    formula = str(case.raw["flops"]["formula"])
    count = _FORMULAS.get(formula)
    if count is None:
        return None
    reference = case.presets["reference"]
    length = sequence_length or int(reference["data"]["sequence_length"])
    conventions = count(reference["model"], length)
    if "choices" not in {name for names in case.condition_groups.values() for name in names}:
        return UnitWork(conventions)
    if choices is None:
        return UnitWork(conventions, MOST_CHOICES)
    return UnitWork({name: flops * choices for name, flops in conventions.items()})


def formula_flops(case: Case, model: Any, length: int) -> float | None:
    """What our own `mfu` counts for a sample or token of a model, FLOP; None if its sizes are none."""
    count = _FORMULAS.get(str(case.raw["flops"]["formula"]))
    try:
        return float(next(iter(count(model, length).values()))) if count else None
    except (ArithmeticError, KeyError, TypeError):
        return None


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


@dataclass(frozen=True)
class RunWork:
    """What a run to the end counts: it stops after one or more periods of `low` to `high` units."""

    low: float
    high: float
    most: float
    """Periods until the stop rule's limit; infinite without a limit."""
    what: str
    """What a period is, such as `an epoch of 67,584 samples`."""
    target: float | None = None
    """The accuracy that ends a run sooner; None if every run goes on to the limit."""


def run_work(case: Case, batch_size: float, devices: int, limit: tuple[float, str] | None) -> RunWork | None:
    """The periods of a run of a case; None if it has no size in units (llama2-70b's token count depends on its data).

    An epoch is counted as published: every rank's part of the set in whole batches, times ranks. The low end is the
    set itself. `limit`: a row's own limit and its unit, `epochs` or `samples`.
    """
    reference = case.presets["reference"]
    data = reference["data"]
    if examples := data.get("examples"):
        # One pass over an inference set. A count without padding is anything from a token of each example on.
        per = data["sequence_length"] if case.unit == "tokens" else 1
        total = float(examples * per)
        return RunWork(float(examples), total, 1, f"the set of {examples:,} x {per:,} {case.unit}")
    train, examples = reference.get("train", {}), data.get("train_examples")
    if not examples or case.unit != "samples":
        return None
    ranks = math.ceil(examples / devices)
    epoch = math.ceil(ranks / batch_size) * batch_size * devices
    cadence = train.get("evaluate_every_samples")
    most = float(train["max_epochs"]) * examples
    if train.get("max_samples"):
        most = min(most, float(train["max_samples"]))
    if limit is not None:
        most = limit[0] * (examples if limit[1] == "epochs" else 1)
    target = train.get("target_acc")
    if cadence:
        step = batch_size * devices
        period = math.ceil(cadence / step) * step
        return RunWork(period, period, most / period, f"{period:,.0f} samples between evaluations", target)
    return RunWork(examples, epoch, most / examples, f"an epoch of {epoch:,.0f} samples", target)
