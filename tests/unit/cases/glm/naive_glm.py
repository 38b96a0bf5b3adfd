"""GLM a second time, for tests only: one sequence, one head, one position at a time, from a table of weights.

Written from the description in the paper (arXiv:2103.10360, section 2) and the sizes of GLM-Large. It shares no code
and no formulation with the case: nothing is masked, since every position sums over what it may see.
"""

from __future__ import annotations

import math
from typing import Dict

import torch
from torch import Tensor

Weights = Dict[str, Tensor]


def norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    """Layer norm of one vector."""
    centred = x - x.sum() / len(x)
    spread = torch.sqrt((centred**2).sum() / len(x) + 1e-5)
    return centred / spread * weights[name + ".weight"] + weights[name + ".bias"]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return weights[name + ".weight"] @ x + weights[name + ".bias"]


def gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attend(xs: list[Tensor], sep: int, heads: int, weights: Weights, layer: str) -> list[Tensor]:
    """What each position of a sequence takes from those that it sees."""
    width = len(xs[0])
    size = width // heads
    fused = [linear(x, weights, layer + ".attention.query_key_value") for x in xs]
    outputs = []
    for i in range(len(xs)):
        seen = [j for j in range(len(xs)) if j <= i or j < sep]
        parts = []
        for head in range(heads):
            at = head * size
            query = fused[i][at : at + size]
            keys = [fused[j][width + at : width + at + size] for j in seen]
            values = [fused[j][2 * width + at : 2 * width + at + size] for j in seen]
            powers = [torch.exp((query * key).sum() / math.sqrt(size)) for key in keys]
            total = torch.stack(powers).sum()
            parts.append(torch.stack([power / total * value for power, value in zip(powers, values)]).sum(0))
        outputs.append(linear(torch.cat(parts), weights, layer + ".attention.dense"))
    return outputs


def logits(weights: Weights, layers: int, heads: int, tokens: list[int], places: list[list[int]], sep: int) -> Tensor:
    """Logits [T, V] of one sequence; `places` are its positions and its block positions."""
    tables = ("transformer.position_embeddings.weight", "transformer.block_position_embeddings.weight")
    xs = []
    for token, place, block in zip(tokens, *places):
        xs.append(weights["word_embeddings.weight"][token] + weights[tables[0]][place] + weights[tables[1]][block])
    for index in range(layers):
        layer = f"transformer.layers.{index}"
        taken = attend([norm(x, weights, layer + ".input_layernorm") for x in xs], sep, heads, weights, layer)
        xs = [x + part for x, part in zip(xs, taken)]
        for i, x in enumerate(xs):
            wide = linear(
                norm(x, weights, layer + ".post_attention_layernorm"), weights, layer + ".mlp.dense_h_to_4h"
            )
            xs[i] = x + linear(gelu(wide), weights, layer + ".mlp.dense_4h_to_h")
    rows = []
    for x in xs:
        final = norm(x, weights, "transformer.final_layernorm")
        rows.append(torch.stack([word @ final for word in weights["word_embeddings.weight"]]))
    return torch.stack(rows)


def score(found: Tensor, targets: list[int], counts: list[bool]) -> Tensor:
    """The log-probability of the targets that count."""
    terms = []
    for row, target, counted in zip(found, targets, counts):
        if counted:
            terms.append(row[target] - torch.log(torch.exp(row - row.max()).sum()) - row.max())
    return torch.stack(terms).sum()


def loss(scores: list[list[Tensor]]) -> Tensor:
    """Mean over examples of -log of the first choice's share of the probability; there is no padding here."""
    terms = [torch.log(torch.exp(torch.stack(row) - row[0]).sum()) for row in scores]
    return torch.stack(terms).sum() / len(terms)
