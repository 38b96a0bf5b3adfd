"""Attention in one kernel, for training: flash-attn's, or torch's where that is not installed.

Megatron-Core's own modules compute scores, softmax and context separately; its fused ones need Transformer Engine.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import torch
from torch.nn import functional as F

FLASH, SDPA, UNFUSED = "flash-attn", "sdpa", "unfused"

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Causal attention of queries [B, T, H, D], keys and values [B, T, G, D], with dropout: [B, T, H, D]."""


def choose(device: torch.device) -> str:
    """The kernel for a device: flash-attn if it is a CUDA device and the package can be imported, else torch's, else
    UNFUSED, before torch 2.0."""
    if device.type == "cuda" and _flash() is not None:
        return FLASH
    if hasattr(F, "scaled_dot_product_attention"):
        return SDPA
    return UNFUSED


def _flash() -> Kernel | None:
    try:
        from flash_attn import flash_attn_func
    except ImportError:
        return None
    return lambda query, key, value, dropout: flash_attn_func(query, key, value, dropout, causal=True)


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float) -> torch.Tensor:
    # Before torch 2.5, keys have to be repeated for the queries of their group, as the cases have them already.
    options: dict[str, Any] = {"enable_gqa": True} if key.shape[2] < query.shape[2] else {}
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    context = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True, **options)
    return context.transpose(1, 2)


class FusedAttention(torch.nn.Module):
    """Takes the place of Megatron-Core's DotProductAttention: causal, without a mask."""

    name = SDPA
    """The kernel."""

    def __init__(self, config: Any, **_: Any) -> None:
        """`config`: Megatron-Core's TransformerConfig."""
        super().__init__()
        self._dropout = float(config.attention_dropout)
        self._in_parallel_region = bool(config.sequence_parallel)
        kernel: Kernel | None = _sdpa
        if self.name == FLASH:
            kernel = _flash()
        assert kernel is not None
        self._kernel: Kernel = kernel

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **_: Any
    ) -> torch.Tensor:
        """Queries [T, B, H, D], keys and values [T, B, G, D] to [T, B, H x D]."""
        assert attention_mask is None
        # Copied as by the publisher, unless the batch is one sequence.
        query, key, value = (tensor.transpose(0, 1).contiguous() for tensor in (query, key, value))
        dropout = 0.0
        generator: Any = contextlib.nullcontext()
        if self.training and self._dropout:
            dropout = self._dropout
            generator = self._generator()
        with generator:
            context = self._kernel(query, key, value, dropout)
        return context.flatten(2).transpose(0, 1).contiguous()

    def _generator(self) -> Any:
        """Random numbers of this tensor-parallel rank's own, as in Megatron-Core's module."""
        from megatron.core.tensor_parallel import get_cuda_rng_tracker

        # With sequence parallelism, the whole layer has them.
        if self._in_parallel_region:
            return contextlib.nullcontext()
        return get_cuda_rng_tracker().fork()


class FlashAttention(FusedAttention):
    """By flash-attn."""

    name = FLASH


ATTENTIONS = {FLASH: FlashAttention, SDPA: FusedAttention}
