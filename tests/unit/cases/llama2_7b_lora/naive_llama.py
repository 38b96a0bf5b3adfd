"""Llama with LoRA written out position by position, head by head; it shares no code with the case."""

from __future__ import annotations

import math
from typing import Any

import torch


def normalised(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return weight * (x / torch.sqrt((x * x).mean() + epsilon))


def turned(vector: torch.Tensor, position: int, theta: float) -> torch.Tensor:
    """One head's query or key, its pairs (i, i + half) turned by position * theta ** (-2i / width)."""
    half = len(vector) // 2
    out = vector.clone()
    for i in range(half):
        angle = position * theta ** (-2.0 * i / len(vector))
        a, b = vector[i], vector[i + half]
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def naive_logits(
    frozen: dict[str, torch.Tensor], adapters: dict[str, torch.Tensor], shape: Any, tokens: list[int]
) -> torch.Tensor:
    """[T, V] logits of one sequence, in float64. `frozen` has Hugging Face's names, `adapters` ours."""
    weights = {name: tensor.double() for name, tensor in frozen.items()}
    width = shape.dim // shape.heads

    def projected(layer: int, name: str, x: torch.Tensor) -> torch.Tensor:
        y = weights[f"model.layers.{layer}.self_attn.{name}.weight"] @ x
        if f"layers.{layer}.{name}.A" in adapters:
            a, b = (adapters[f"layers.{layer}.{name}.{which}"].double() for which in "AB")
            y = y + (shape.lora.alpha / shape.lora.r) * (b @ (a @ x))
        return y

    hidden = [weights["model.embed_tokens.weight"][token] for token in tokens]
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        seen = [normalised(x, weights[at + "input_layernorm.weight"], shape.norm_eps) for x in hidden]
        q, k, v = ([projected(layer, name, x) for x in seen] for name in ("q_proj", "k_proj", "v_proj"))
        for position in range(len(tokens)):
            context = torch.zeros(shape.dim, dtype=torch.float64)
            for head in range(shape.heads):
                own = slice(head * width, (head + 1) * width)
                group = head // (shape.heads // shape.kv_heads)
                theirs = slice(group * width, (group + 1) * width)
                query = turned(q[position][own], position, shape.rope_theta)
                scores = [
                    float(query @ turned(k[other][theirs], other, shape.rope_theta)) / math.sqrt(width)
                    for other in range(position + 1)
                ]
                shares = torch.softmax(torch.tensor(scores, dtype=torch.float64), dim=0)
                context[own] = sum(share * v[other][theirs] for other, share in enumerate(shares))
            hidden[position] = hidden[position] + weights[at + "self_attn.o_proj.weight"] @ context
        for position, x in enumerate(hidden):
            y = normalised(x, weights[at + "post_attention_layernorm.weight"], shape.norm_eps)
            gate = weights[at + "mlp.gate_proj.weight"] @ y
            up = weights[at + "mlp.up_proj.weight"] @ y
            hidden[position] = x + weights[at + "mlp.down_proj.weight"] @ (gate / (1 + torch.exp(-gate)) * up)
    last = weights["model.norm.weight"]
    return torch.stack([weights["lm_head.weight"] @ normalised(x, last, shape.norm_eps) for x in hidden])
