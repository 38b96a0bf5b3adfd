"""Builds Llama as the publisher uses it: with the parameters and results of transformers' LlamaForCausalLM.

transformers 4 and 5 differ silently in the dtype of loaded weights, the attention implementation and the config key
of the rotary base. So transformers is not imported: the parameters are created here with the requested dtype, and the
forward pass is that of the publisher's version.

Shapes: B batch, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

from flagbench_cases.cases.llama2_7b_lora.forward import PublishedForward
from flagbench_cases.prepare.llama import load
from flagbench_core.flops import Flops

ATTENTION = "eager"
CASE = "llama2-7b-lora"


@dataclass(frozen=True)
class LoraShape:
    """The adapters: B A x alpha / r is added to the result of a projection of x, with dropout."""

    r: int
    """Their rank."""
    alpha: float
    dropout: float
    projections: str = "q_proj+v_proj"
    """The projections that have adapters."""


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of the model; every field is a key of the case manifest's `model` section."""

    name: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn: int
    vocab_size: int
    norm_eps: float
    rope_theta: float
    initializer_range: float
    lora: LoraShape
    positions: int = 0
    """Rows of the rotary tables, if these are made in advance."""
    qkv_bias: bool = False
    """Whether the projections of queries, keys and values have biases."""
    rope_factor: float = 1.0
    """The factor by which positions are stretched at low frequencies, as in Llama 3.1."""

    def __post_init__(self) -> None:
        if self.dim % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"dim {self.dim} must be a multiple of {self.heads} heads, and those a multiple of {self.kv_heads} "
                "kv_heads"
            )

    @property
    def kv_dim(self) -> int:
        """The width of keys and values."""
        return self.dim // self.heads * self.kv_heads

    @property
    def adapter_parameters(self) -> int:
        """The number of trainable parameters: A [r, in] and B [out, r] for q_proj and v_proj of every layer."""
        q_proj = self.dim + self.dim
        v_proj = self.dim + self.kv_dim
        return self.layers * self.lora.r * (q_proj + v_proj)


def shape_from(section: dict[str, Any]) -> LlamaShape:
    """Return the sizes in a resolved `model` section."""
    return LlamaShape(**{**section, "lora": LoraShape(**section["lora"])})


class Norm(nn.Module):
    """RMSNorm with the operators of transformers."""

    def __init__(self, shape: LlamaShape, **options: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.dim, **options))
        self.eps = shape.norm_eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D], normalised in fp32."""
        wide = hidden.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(hidden.dtype)


class Attention(nn.Module):
    """The projections of attention, which PublishedForward computes with."""

    def __init__(self, shape: LlamaShape, **options: Any) -> None:
        super().__init__()
        self.q_proj = nn.Linear(shape.dim, shape.dim, bias=False, **options)
        self.k_proj = nn.Linear(shape.dim, shape.kv_dim, bias=False, **options)
        self.v_proj = nn.Linear(shape.dim, shape.kv_dim, bias=False, **options)
        self.o_proj = nn.Linear(shape.dim, shape.dim, bias=False, **options)


class Mlp(nn.Module):
    """The gated MLP."""

    def __init__(self, shape: LlamaShape, **options: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.dim, shape.ffn, bias=False, **options)
        self.up_proj = nn.Linear(shape.dim, shape.ffn, bias=False, **options)
        self.down_proj = nn.Linear(shape.ffn, shape.dim, bias=False, **options)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    """The modules of a layer, which PublishedForward computes with."""

    def __init__(self, shape: LlamaShape, **options: Any) -> None:
        super().__init__()
        self.self_attn = Attention(shape, **options)
        self.mlp = Mlp(shape, **options)
        self.input_layernorm = Norm(shape, **options)
        self.post_attention_layernorm = Norm(shape, **options)


class Decoder(nn.Module):
    """The model without its head."""

    def __init__(self, shape: LlamaShape, **options: Any) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.dim, **options)
        self.layers = nn.ModuleList([Layer(shape, **options) for _ in range(shape.layers)])
        self.norm = Norm(shape, **options)


class Llama(nn.Module):
    """The parameters of transformers' LlamaForCausalLM, by the same names and in the same order."""

    def __init__(self, shape: LlamaShape, **options: Any) -> None:
        super().__init__()
        self.model = Decoder(shape, **options)
        self.lm_head = nn.Linear(shape.dim, shape.vocab_size, bias=False, **options)


def build(shape: LlamaShape, dtype: torch.dtype, device: torch.device) -> Any:
    """A Llama with frozen, uninitialised parameters of `dtype` on `device`; [B, T] to [B, T, V].

    Parameters are allocated only once, at their destination. No random numbers are drawn.
    """
    model = Llama(shape, device="meta")
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.empty(parameter.shape, dtype=dtype, device=device)
                module._parameters[name] = nn.Parameter(empty, requires_grad=False)
    model.forward = PublishedForward(model, shape, dtype, device)  # type: ignore[method-assign]
    return model


def initialise(model: Any, shape: LlamaShape, seed: int) -> None:
    """Set random weights like transformers': normal matrices, norms of one. A seed gives the same on a device type.

    They are drawn in fp32, so that every precision starts from the same values.
    """
    parameters = dict(model.named_parameters())
    generator = torch.Generator(device=next(iter(parameters.values())).device).manual_seed(seed)
    with torch.no_grad():
        for name in sorted(parameters):
            parameter = parameters[name]
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                drawn = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)
                parameter.copy_(drawn.normal_(std=shape.initializer_range, generator=generator))


def load_prepared(model: Any, folder: str, section: dict[str, Any], beat: Callable[[], None]) -> str:
    """Load the weights of a prepared folder; returns the folder's digest. Raises DataError."""
    weights, digest = load.open_prepared(folder, CASE, section)
    beat()  # verifying checksums takes time
    fill(model, weights, beat)
    return digest


def fill(model: Any, weights: load.Weights, beat: Callable[[], None]) -> None:
    """Load all weights, one tensor at a time. `beat` is called after each, to show that the rank is alive."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, part in weights.read(weights.names):
            parameters[name].copy_(load.read_all(part))
            beat()


def recomputed_flops(shape: LlamaShape, step: Flops, tokens: int) -> int:
    """Return the FLOPs that recomputation adds to a step: a forward pass of the layers.

    From torch 2.1 on, recomputation of a layer stops at the last tensor that its backward pass needs. This is before
    down_proj, since the weight of that matmul is frozen.
    """
    stops_early = hasattr(torch.utils.checkpoint, "set_checkpoint_early_stop")
    if not stops_early:
        return step.layers
    down_proj = 2 * tokens * shape.dim * shape.ffn
    return step.layers - down_proj * shape.layers
