"""Attention in one kernel, for training: flash-attn's, or torch's where that is not installed.

Megatron-Core's own modules compute scores, softmax and context separately; its fused ones need Transformer Engine.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import torch
from torch.nn import functional as F

FLASH, SDPA, UNFUSED = "flash-attn", "sdpa", "unfused"
"""The names of the kernels. A record has that of its run. UNFUSED is Megatron-Core's own module."""

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Causal attention of queries [B, T, H, D], keys and values [B, T, G, D], with dropout: [B, T, H, D]."""


def choose(device: torch.device) -> str:
    """Return the name of the fastest kernel for a device.

    It is flash-attn on a CUDA device if the package can be imported, else torch's, which exists from torch 2.0 on.
    """
    if device.type == "cuda" and _import_flash() is not None:
        return FLASH
    if hasattr(F, "scaled_dot_product_attention"):
        return SDPA
    return UNFUSED


def _import_flash() -> Kernel | None:
    """Return flash-attn's kernel; None if the package cannot be imported."""
    try:
        from flash_attn import flash_attn_func
    except ImportError:
        return None
    return lambda query, key, value, dropout: flash_attn_func(query, key, value, dropout, causal=True)


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float) -> torch.Tensor:
    """torch's kernel; see `Kernel`."""
    options: dict[str, Any] = {}
    if key.shape[2] < query.shape[2]:
        # Exists from torch 2.5 on. On older releases, the cases repeat the keys for the queries of their group.
        options["enable_gqa"] = True
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    context = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True, **options)
    return context.transpose(1, 2)


class FusedAttention(torch.nn.Module):
    """Causal attention in torch's kernel, in place of Megatron-Core's DotProductAttention and its mask."""

    name = SDPA
    """The name of the kernel."""

    def __init__(self, config: Any, **_: Any) -> None:
        """`config`: Megatron-Core's TransformerConfig."""
        super().__init__()
        self._dropout = float(config.attention_dropout)
        self._in_parallel_region = bool(config.sequence_parallel)
        kernel: Kernel | None = _sdpa
        if self.name == FLASH:
            kernel = _import_flash()
        assert kernel is not None
        self._kernel: Kernel = kernel

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **_: Any
    ) -> torch.Tensor:
        """Queries [T, B, H, D], keys and values [T, B, G, D] to [T, B, H x D]."""
        assert attention_mask is None
        # The publisher copies them, too. `contiguous` copies nothing if the batch is one sequence.
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
        """Return a context in which dropout draws other numbers on each tensor-parallel rank, as in Megatron-Core."""
        from megatron.core.tensor_parallel import get_cuda_rng_tracker

        # With sequence parallelism, the layer around this module is in such a context already.
        if self._in_parallel_region:
            return contextlib.nullcontext()
        return get_cuda_rng_tracker().fork()


class FlashAttention(FusedAttention):
    """Causal attention in the kernel of flash-attn."""

    name = FLASH


ATTENTIONS = {FLASH: FlashAttention, SDPA: FusedAttention}
"""The class of each kernel, by the name that `choose` returns."""
