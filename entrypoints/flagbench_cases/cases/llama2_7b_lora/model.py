"""Builds Llama as the publisher uses it: Hugging Face's LlamaForCausalLM with eager attention.

transformers 4 and 5 differ silently in the dtype of loaded weights, the attention implementation and the config key
of the rotary base. So their defaults are not used: the parameters are created here with the requested dtype, and the
forward pass is that of the publisher's version.

Shapes: B batch, T tokens, D model width, V vocabulary. transformers is imported on first use, which takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.utils.checkpoint
from torch import nn

from flagbench_cases.cases.llama2_7b_lora.forward import PublishedForward
from flagbench_cases.prepare.llama import load
from flagbench_cases.shared.errors import CaseError, UsageError
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


def library(name: str) -> Any:
    """Import transformers or peft. Raises UsageError if it is not installed."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"llama2-7b-lora requires the package {name.split('.')[0]}, which cannot be imported ({error})",
            "use an image of llama2-7b-lora, or install it",
        ) from error


def llama_config(shape: LlamaShape) -> Any:
    """Return transformers' configuration for these sizes. Versions 4 and 5 accept `rope_theta` as a keyword."""
    return library("transformers.models.llama.configuration_llama").LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.dim,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.positions,
        rms_norm_eps=shape.norm_eps,
        rope_theta=shape.rope_theta,
        initializer_range=shape.initializer_range,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation=ATTENTION,
    )


def build(shape: LlamaShape, dtype: torch.dtype, device: torch.device) -> Any:
    """Build a LlamaForCausalLM with frozen, uninitialised parameters of `dtype` on `device`; [B, T] to [B, T, V].

    Parameters are allocated only once, at their destination: transformers creates the modules without allocating or
    initialising memory.
    """
    big_modeling = library("accelerate.big_modeling")
    llama = library("transformers.models.llama.modeling_llama").LlamaForCausalLM
    with big_modeling.init_empty_weights(include_buffers=False):
        model = llama(llama_config(shape))
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.empty(parameter.shape, dtype=dtype, device=device)
                module._parameters[name] = nn.Parameter(empty, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
    verify(model, dtype)
    output = library("transformers.modeling_outputs").CausalLMOutputWithPast
    model.forward = PublishedForward(model, shape, dtype, device, output)
    return model


def verify(model: Any, dtype: torch.dtype) -> None:
    """Raise CaseError if transformers did not use the requested settings."""
    attention = model.config._attn_implementation
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if attention != ATTENTION or dtypes != {dtype} or model.config.use_cache:
        names = "/".join(sorted(map(str, dtypes)))
        raise CaseError(
            f"the model was built with {attention} attention, {names} and use_cache {model.config.use_cache}",
            "use the version of transformers in this image's lock",
        )


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
