"""A decoder with adapters on every projection: transformers' Llama and Qwen2 as NeMo AutoModel 507bfb75 has them.

An adapter's dropout follows its product. Only torch is needed: its operators do what Liger's kernels do there, and
keep as much for the backward pass (the quirks `liger-kernels` and `less-kept-for-backward`).

Shapes: B batch, T tokens, D model width, H heads, K heads of keys and values, W width of a head, F width of the MLP.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from flagbench_cases.cases.llama2_7b_lora.forward import rotate_half
from flagbench_cases.cases.llama2_7b_lora.model import LlamaShape, LoraShape

PROJECTIONS = "q+k+v+o+gate+up+down"
"""Those of a layer, each with an adapter: the value of `model.lora.projections`."""
IGNORED = -100
"""The label of a token that has no next one."""


def has_fused_attention() -> bool:
    """Whether this torch has attention in one kernel, which repeats keys and values for their groups (torch 2.5)."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)


class Adapted(nn.Linear):
    """A projection and its adapter: x W + dropout(B (A x) alpha / r)."""

    def __init__(self, lora: LoraShape, into: int, out: int, bias: bool = False, **options: Any) -> None:
        super().__init__(into, out, bias, **options)
        self.lora_a = nn.Parameter(torch.empty(lora.r, into, **options))
        self.lora_b = nn.Parameter(torch.empty(out, lora.r, **options))
        self.scale, self.dropout = lora.alpha / lora.r, lora.dropout

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        added = F.linear(F.linear(hidden, self.lora_a) * self.scale, self.lora_b)
        return super().forward(hidden) + F.dropout(added, self.dropout, self.training)


class Norm(nn.Module):
    """RMSNorm, in one kernel where torch has one (torch 2.4)."""

    def __init__(self, shape: LlamaShape, **options: Any) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(shape.dim, **options)), shape.norm_eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        return keep_inputs(self._normalise, hidden)

    def _normalise(self, hidden: torch.Tensor) -> torch.Tensor:
        if hasattr(F, "rms_norm"):
            return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)
        wide = hidden.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(hidden.dtype)


class Layer(nn.Module):
    """Attention and MLP, each after a norm and added to its input."""

    def __init__(self, shape: LlamaShape, fused: bool, **options: Any) -> None:
        super().__init__()
        self.shape, self.fused, lora, dim = shape, fused, shape.lora, shape.dim
        self.attention_norm, self.mlp_norm = Norm(shape, **options), Norm(shape, **options)
        self.q = Adapted(lora, dim, dim, shape.qkv_bias, **options)
        self.k = Adapted(lora, dim, shape.kv_dim, shape.qkv_bias, **options)
        self.v = Adapted(lora, dim, shape.kv_dim, shape.qkv_bias, **options)
        self.o = Adapted(lora, dim, dim, **options)
        self.gate = Adapted(lora, dim, shape.ffn, **options)
        self.up = Adapted(lora, dim, shape.ffn, **options)
        self.down = Adapted(lora, shape.ffn, dim, **options)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[B, T, D] to [B, T, D]; `cos` and `sin` [T, W]."""
        hidden = hidden + self.o(self._attend(self.attention_norm(hidden), cos, sin))
        normed = self.mlp_norm(hidden)
        return hidden + self.down(keep_inputs(swiglu, self.gate(normed), self.up(normed)))

    def _attend(self, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Causal attention, [B, T, D] to [B, T, D]."""
        shape, (batch, length, _) = self.shape, normed.shape
        parts = self.q(normed), self.k(normed), self.v(normed)
        query, key, value = (part.view(batch, length, -1, cos.shape[-1]).transpose(1, 2) for part in parts)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if self.fused:
            context = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            key, value = (states.repeat_interleave(shape.heads // shape.kv_heads, 1) for states in (key, value))
            scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(query.shape[-1])  # [B, H, T, T]
            later = torch.ones(length, length, dtype=torch.bool, device=normed.device).triu(1)
            weights = F.softmax(scores.masked_fill(later, -math.inf), dim=-1, dtype=torch.float32)
            context = torch.matmul(weights.to(value.dtype), value)
        return context.transpose(1, 2).reshape(batch, length, shape.dim)


class Decoder(nn.Module):
    """The whole model, of which only adapters are trained; `initialise` gives its parameters their values."""

    def __init__(self, shape: LlamaShape, fused: bool, **options: Any) -> None:
        """`options`: dtype and device of all parameters. Raises ValueError for adapters in other places."""
        super().__init__()
        if shape.lora.projections != PROJECTIONS:
            raise ValueError(f"adapters are on {PROJECTIONS}, and not on {shape.lora.projections}")
        self.shape, self.recompute = shape, False
        self.embedding = nn.Parameter(torch.empty(shape.vocab_size, shape.dim, **options))
        self.layers = nn.ModuleList(Layer(shape, fused, **options) for _ in range(shape.layers))
        self.norm = Norm(shape, **options)
        self.head = nn.Parameter(torch.empty(shape.vocab_size, shape.dim, **options))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora_" in name)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The sum of the losses, nats, of tokens [B, T] with their next tokens as labels [B, T]."""
        hidden = F.embedding(tokens, self.embedding)
        cos, sin = (table.to(hidden.dtype) for table in rotary(self.shape, tokens.shape[1], tokens.device))
        for layer in self.layers:
            if self.recompute and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, cos, sin, use_reentrant=False)
            else:
                hidden = layer(hidden, cos, sin)
        return torch.stack([self._loss(*pair) for pair in zip(self.norm(hidden), labels)]).sum()

    def _loss(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The summed loss of one sequence, [T, D] and [T]: the logits of all would need twice the memory."""
        return F.cross_entropy(F.linear(hidden, self.head).float(), labels, ignore_index=IGNORED, reduction="sum")

    def initialise(self, seed: int) -> None:
        """Random weights; norms are one, A is Xavier's, B zero. Drawn where they are, so it takes seconds."""
        generator = torch.Generator(device=self.head.device).manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.fill_(1.0)
                elif name.endswith("lora_b"):
                    parameter.fill_(0.0)
                elif name.endswith("lora_a"):
                    xavier = math.sqrt(2.0 / sum(parameter.shape))
                    parameter.normal_(std=xavier, generator=generator)
                else:
                    parameter.normal_(std=self.shape.initializer_range, generator=generator)


def keep_inputs(function: Any, *inputs: torch.Tensor) -> Any:
    """Call a function of tensors and keep only its inputs for the backward pass, which repeats the call. For
    functions without matrix products and random numbers, which are cheap to repeat."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """[..., F] and [..., F] to [..., F]."""
    return F.silu(gate) * up


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """[B, H, T, W] with the angles of their positions; `cos` and `sin` [T, W]."""
    return states * cos + rotate_half(states) * sin


def rotary(shape: LlamaShape, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, fp32 [T, W]. Stretched as by transformers' rope type llama3: factors 1 and 4 of 8192."""
    width = shape.dim // shape.heads
    rates = shape.rope_theta ** (-torch.arange(0, width, 2, device=device).float() / width)
    kept = ((8192 * rates / (2 * math.pi) - 1) / (4 - 1)).clamp(0, 1)
    angles = torch.outer(torch.arange(length, device=device).float(), rates * (kept + (1 - kept) / shape.rope_factor))
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()
