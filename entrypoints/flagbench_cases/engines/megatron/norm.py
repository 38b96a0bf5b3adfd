"""RMSNorm over the last dimension: by Apex's kernel, as published, where it can be imported; else by torch.

Bytes that a forward pass moves for an element in half precision (calculated): 4 by Apex or by torch's own kernel on
CUDA devices, which exists from torch 2.9 on; 40 by torch's operators before that; 10 in three passes.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.nn import functional as F

APEX, TORCH, THREE_PASSES = "apex", "torch", "torch, three passes"
FUSED_FROM = (2, 9)


def choose(device: torch.device, trains: bool) -> str:
    """The fastest norm for a device. The three passes have no gradient."""
    if device.type != "cuda":
        return TORCH
    if _apex() is not None:
        return APEX
    return TORCH if trains or torch_release() >= FUSED_FROM else THREE_PASSES


def torch_release() -> tuple[int, ...]:
    """Major and minor version of torch."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _apex() -> Callable[..., torch.Tensor] | None:
    try:
        import fused_layer_norm_cuda  # noqa: F401, which Apex imports when the norm is first called
        from apex.normalization.fused_layer_norm import FusedRMSNormAffineFunction
    except ImportError:
        return None
    return FusedRMSNormAffineFunction.apply  # type: ignore[no-any-return]


class TorchNorm(torch.nn.Module):
    """By torch."""

    name = TORCH

    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        """`config`: Megatron-Core's TransformerConfig."""
        super().__init__()
        self.size, self.eps = (hidden_size,), eps
        device = torch.device("cpu") if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device))
        # Its gradient is a part on each rank, which Megatron-Core then sums.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        if hasattr(F, "rms_norm"):
            return F.rms_norm(hidden, self.size, self.weight, self.eps)
        # Before torch 2.4.
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(hidden.dtype)


class ApexNorm(TorchNorm):
    """By the function that Megatron-LM's MixedFusedRMSNorm calls."""

    name = APEX

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        apply = _apex()
        assert apply is not None
        self._apply_norm: Callable[..., torch.Tensor] = apply

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        return self._apply_norm(hidden, self.weight, self.size, self.eps)


class PassesNorm(TorchNorm):
    """By torch, for inference: the norm of each row, summed in fp32 without a copy of it, and two products. Rounded
    before the second one, as by Apex."""

    name = THREE_PASSES

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        size = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.rsqrt(size.square() / self.size[0] + self.eps)
        scaled = torch.mul(hidden, scale, out=torch.empty_like(hidden))
        return scaled.mul_(self.weight)


MODULES: dict[str, type[TorchNorm]] = {module.name: module for module in (TorchNorm, ApexNorm, PassesNorm)}
