"""A decoder with LoRA adapters on every projection: Llama and Qwen2 as in NeMo AutoModel (commit 507bfb75).

Dropout is applied to the result of an adapter. Only torch is needed: its operators compute what Liger's kernels do
there, and keep the same amount for the backward pass (the quirks `liger-kernels` and `less-kept-for-backward` in the
case manifests).

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
"""The projections of a layer, each with an adapter: the value of `model.lora.projections`."""
IGNORED = -100
"""The label of a token that has no next one."""
LLAMA3_LOW = 1.0
"""`low_freq_factor` of Llama 3.1's rope type llama3."""
LLAMA3_HIGH = 4.0
"""Its `high_freq_factor`."""
LLAMA3_POSITIONS = 8192
"""Its `original_max_position_embeddings`."""


def has_fused_attention() -> bool:
    """Return whether this torch has attention in one kernel that supports grouped queries (torch 2.5)."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)


class Adapted(nn.Linear):
    """A projection and its adapter: x W + dropout(B (A x) alpha / r)."""

    def __init__(self, lora: LoraShape, into: int, out: int, bias: bool = False, **options: Any) -> None:
        super().__init__(into, out, bias, **options)
        self.lora_a = nn.Parameter(torch.empty(lora.r, into, **options))
        self.lora_b = nn.Parameter(torch.empty(out, lora.r, **options))
        self.scale = lora.alpha / lora.r
        self.dropout = lora.dropout

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        added = F.linear(F.linear(hidden, self.lora_a) * self.scale, self.lora_b)
        return super().forward(hidden) + F.dropout(added, self.dropout, self.training)


class Norm(nn.Module):
    """RMSNorm, in one kernel if torch has one (torch 2.4)."""

    def __init__(self, shape: LlamaShape, **options: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.dim, **options))
        self.eps = shape.norm_eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        return keep_inputs(self._normalise, hidden)

    def _normalise(self, hidden: torch.Tensor) -> torch.Tensor:
        if hasattr(F, "rms_norm"):
            return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)
        hidden_fp32 = hidden.float()
        variance = hidden_fp32.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_fp32 * torch.rsqrt(variance + self.eps)).to(hidden.dtype)


class Layer(nn.Module):
    """Attention and MLP, each after a norm and added to its input."""

    def __init__(self, shape: LlamaShape, fused: bool, **options: Any) -> None:
        """`fused`: whether attention is one kernel; `options`: dtype and device of all parameters."""
        super().__init__()
        self.shape = shape
        self.fused = fused
        lora = shape.lora
        dim = shape.dim
        self.attention_norm = Norm(shape, **options)
        self.mlp_norm = Norm(shape, **options)
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
        shape = self.shape
        batch, length, _ = normed.shape
        projected = self.q(normed), self.k(normed), self.v(normed)
        query, key, value = (part.view(batch, length, -1, cos.shape[-1]).transpose(1, 2) for part in projected)
        query = rotate(query, cos, sin)
        key = rotate(key, cos, sin)
        if self.fused:
            context = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            queries_per_key = shape.heads // shape.kv_heads
            key = key.repeat_interleave(queries_per_key, 1)
            value = value.repeat_interleave(queries_per_key, 1)
            scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(query.shape[-1])  # [B, H, T, T]
            later = torch.ones(length, length, dtype=torch.bool, device=normed.device).triu(1)
            weights = F.softmax(scores.masked_fill(later, -math.inf), dim=-1, dtype=torch.float32)
            context = torch.matmul(weights.to(value.dtype), value)
        return context.transpose(1, 2).reshape(batch, length, shape.dim)


class Decoder(nn.Module):
    """The complete model, of which only the adapters are trained. `initialise` gives its parameters their values."""

    def __init__(self, shape: LlamaShape, fused: bool, **options: Any) -> None:
        """`fused`: whether attention is one kernel; `options`: dtype and device of all parameters.

        Raises ValueError if the adapters are to be on other projections.
        """
        super().__init__()
        if shape.lora.projections != PROJECTIONS:
            raise ValueError(f"adapters are on {PROJECTIONS}, and not on {shape.lora.projections}")
        self.shape = shape
        self.recompute = False
        """Whether layers are computed again in the backward pass."""
        self.embedding = nn.Parameter(torch.empty(shape.vocab_size, shape.dim, **options))
        self.layers = nn.ModuleList(Layer(shape, fused, **options) for _ in range(shape.layers))
        self.norm = Norm(shape, **options)
        self.head = nn.Parameter(torch.empty(shape.vocab_size, shape.dim, **options))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora_" in name)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses, nats, of tokens [B, T] with their next tokens as labels [B, T]."""
        hidden = F.embedding(tokens, self.embedding)
        cos, sin = (table.to(hidden.dtype) for table in rotary(self.shape, tokens.shape[1], tokens.device))
        for layer in self.layers:
            if self.recompute and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, cos, sin, use_reentrant=False)
            else:
                hidden = layer(hidden, cos, sin)
        losses = []
        for sequence, sequence_labels in zip(self.norm(hidden), labels):
            losses.append(self._loss(sequence, sequence_labels))
        return torch.stack(losses).sum()

    def _loss(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the summed loss of one sequence, [T, D] and [T].

        The logits of all sequences of a batch at once would need more memory.
        """
        logits = F.linear(hidden, self.head).float()
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")

    def initialise(self, seed: int) -> None:
        """Set random weights: norms are one, A has Xavier's initialisation, B is zero, all others are normal.

        They are drawn on the model's device, which takes seconds.
        """
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
    """Call a function of tensors and keep only its inputs for the backward pass, which repeats the call.

    It is used for functions without matmuls and random numbers, which are cheap to repeat.
    """
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up; all are [..., F]."""
    return F.silu(gate) * up


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads [B, H, T, W] by the angles of their positions; `cos` and `sin` [T, W]."""
    return states * cos + rotate_half(states) * sin


def rotary(shape: LlamaShape, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and sines of the rotary embedding, each fp32 [T, W].

    As in transformers' rope type llama3, low frequencies are divided by `rope_factor`, high ones are kept, and those
    between are interpolated.
    """
    width = shape.dim // shape.heads
    frequencies = shape.rope_theta ** (-torch.arange(0, width, 2, device=device).float() / width)
    turns = LLAMA3_POSITIONS * frequencies / (2 * math.pi)  # over the positions of Llama 3
    kept_share = ((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)).clamp(0, 1)
    scaled = frequencies * (kept_share + (1 - kept_share) / shape.rope_factor)
    angles = torch.outer(torch.arange(length, device=device).float(), scaled)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()
