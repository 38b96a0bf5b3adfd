"""A decoder with adapters on every projection, as in NeMo AutoModel's own Llama and Qwen2 classes (507bfb75).

One projection makes queries, keys and values, and one makes gate and up. An adapter's dropout follows its product.
Only torch is needed. What AutoModel's code keeps for the backward pass does not fit into 80 GB, so less is kept here:
see the quirk `less-kept-for-backward`.

Shapes: B batch, T tokens, D model width, H heads, K heads of keys and values, W width of a head, F width of the MLP.
"""

import math
from dataclasses import dataclass
from typing import Any, Dict, Tuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from flagbench_cases.cases.llama2_7b_lora.model import LoraShape

TARGETS = ("qkv", "o", "gate_up", "down")
IGNORED = -100
"""The label of a token that has no next one."""


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of the model; every field is a key of the case manifest's `model` section."""

    name: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn: int
    vocab_size: int
    qkv_bias: bool
    norm_eps: float
    rope_theta: float
    rope_factor: float
    """Positions are stretched by it, at low frequencies, as in Llama 3.1; 1: they are not."""
    initializer_range: float
    lora: LoraShape

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.dim // self.heads

    @property
    def kv_dim(self) -> int:
        """Width of keys and values."""
        return self.head * self.kv_heads


def shape_from(section: Dict[str, Any]) -> DecoderShape:
    """The sizes of a resolved `model` section."""
    return DecoderShape(**{**section, "lora": LoraShape(**section["lora"])})


def has_fused_attention() -> bool:
    """Whether this torch has attention in one kernel, which repeats keys and values for their groups (torch 2.5)."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)


class Factory:
    """Makes parameters, uninitialised, of one type on one device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.options: Any = {"dtype": dtype, "device": device}

    def frozen(self, *sizes: int) -> nn.Parameter:
        """A parameter of the base model."""
        return nn.Parameter(torch.empty(sizes, **self.options), requires_grad=False)

    def trained(self, *sizes: int) -> nn.Parameter:
        """A parameter of an adapter."""
        return nn.Parameter(torch.empty(sizes, **self.options))


class Adapted(nn.Module):
    """A frozen projection and its adapter: x W + dropout(B (A x) alpha / r)."""

    def __init__(self, make: Factory, lora: LoraShape, into: int, out: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = make.frozen(out, into)
        self.bias = make.frozen(out) if bias else None
        self.lora_a, self.lora_b = make.trained(lora.r, into), make.trained(out, lora.r)
        self.scale, self.dropout = lora.alpha / lora.r, lora.dropout

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        base = F.linear(hidden, self.weight, self.bias)
        added = F.linear(F.linear(hidden, self.lora_a) * self.scale, self.lora_b)
        return base + F.dropout(added, self.dropout, self.training)


class Norm(nn.Module):
    """RMSNorm, in one kernel where torch has one (torch 2.4)."""

    def __init__(self, make: Factory, shape: DecoderShape) -> None:
        super().__init__()
        self.weight, self.eps = make.frozen(shape.dim), shape.norm_eps

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

    def __init__(self, make: Factory, shape: DecoderShape, fused: bool) -> None:
        super().__init__()
        lora, dim, ffn = shape.lora, shape.dim, shape.ffn
        self.shape, self.fused = shape, fused
        self.attention_norm, self.mlp_norm = Norm(make, shape), Norm(make, shape)
        self.qkv = Adapted(make, lora, dim, dim + 2 * shape.kv_dim, shape.qkv_bias)
        self.o = Adapted(make, lora, dim, dim)
        self.gate_up = Adapted(make, lora, dim, 2 * ffn)
        self.down = Adapted(make, lora, ffn, dim)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[B, T, D] to [B, T, D]; `cos` and `sin` [T, W]."""
        hidden = hidden + self.o(self._attend(self.qkv(self.attention_norm(hidden)), cos, sin))
        return hidden + self.down(keep_inputs(swiglu, self.gate_up(self.mlp_norm(hidden))))

    def _attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Causal attention: queries, keys and values [B, T, D + 2 K W] to [B, T, D]."""
        shape, (batch, length, _) = self.shape, qkv.shape
        parts = qkv.split([shape.dim, shape.kv_dim, shape.kv_dim], dim=-1)
        query, key, value = (part.view(batch, length, -1, shape.head).transpose(1, 2) for part in parts)
        query, key = (states * cos + rotate_half(states) * sin for states in (query, key))
        if self.fused:
            context = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            key, value = (states.repeat_interleave(shape.heads // shape.kv_heads, 1) for states in (key, value))
            scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(shape.head)  # [B, H, T, T]
            later = torch.ones(length, length, dtype=torch.bool, device=qkv.device).triu(1)
            weights = F.softmax(scores.masked_fill(later, -math.inf), dim=-1, dtype=torch.float32)
            context = torch.matmul(weights.to(value.dtype), value)
        return context.transpose(1, 2).reshape(batch, length, shape.dim)


class Decoder(nn.Module):
    """The whole model; its parameters are uninitialised."""

    def __init__(self, shape: DecoderShape, dtype: torch.dtype, device: torch.device, fused: bool) -> None:
        super().__init__()
        make = Factory(dtype, device)
        self.shape, self.recompute = shape, False
        self.embedding = make.frozen(shape.vocab_size, shape.dim)
        self.layers = nn.ModuleList(Layer(make, shape, fused) for _ in range(shape.layers))
        self.norm = Norm(make, shape)
        self.head = make.frozen(shape.vocab_size, shape.dim)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The sum of the losses, nats, of tokens [B, T] with their next tokens as labels [B, T]."""
        hidden = F.embedding(tokens, self.embedding)
        cos, sin = rotary(self.shape, tokens.shape[1], tokens.device)
        cos, sin = cos.to(hidden.dtype), sin.to(hidden.dtype)
        for layer in self.layers:
            again = self.recompute and torch.is_grad_enabled()
            hidden = checkpoint(layer, hidden, cos, sin, use_reentrant=False) if again else layer(hidden, cos, sin)
        losses = [self._loss(*pair) for pair in zip(self.norm(hidden), labels)]
        return torch.stack(losses).sum()

    def _loss(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Of one sequence, [T, D] and [T]: the logits of all would need twice the memory."""
        return F.cross_entropy(F.linear(hidden, self.head).float(), labels, ignore_index=IGNORED, reduction="sum")

    def initialise(self, seed: int) -> None:
        """Random weights; norms are one, A is Xavier's, B zero. Drawn where they are, so it takes seconds."""
        generator = torch.Generator(device=self.head.device).manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.fill_(1.0)
                elif name.endswith("lora_b"):
                    parameter.zero_()
                else:
                    of_a = math.sqrt(2.0 / sum(parameter.shape))
                    std = of_a if name.endswith("lora_a") else self.shape.initializer_range
                    parameter.normal_(std=std, generator=generator)


def keep_inputs(function: Any, hidden: torch.Tensor) -> Any:
    """What a function of a tensor returns, which has no products and no random numbers and so is cheap to repeat: for
    the backward pass only the input is kept."""
    return checkpoint(function, hidden, use_reentrant=False, preserve_rng_state=False)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """[..., 2 F] to [..., F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate_half(states: torch.Tensor) -> torch.Tensor:
    """Map the halves (a, b) of the last dimension to (-b, a)."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotary(shape: DecoderShape, length: int, device: torch.device) -> Tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, fp32 [T, W]. Stretched as by transformers' rope type llama3: factors 1 and 4 of 8192."""
    rates = shape.rope_theta ** (-torch.arange(0, shape.head, 2, device=device).float() / shape.head)
    kept = ((8192 * rates / (2 * math.pi) - 1) / (4 - 1)).clamp(0, 1)
    rates = rates * (kept + (1 - kept) / shape.rope_factor)
    angles = torch.outer(torch.arange(length, device=device).float(), rates)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()
