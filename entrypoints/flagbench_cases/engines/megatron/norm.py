"""RMSNorm over the last dimension, as a module of Megatron-Core's layers.

`choose` returns the name of the fastest norm that a device can run, and NORMS has the class of each name. The
publishers use Apex's kernel; a norm of torch's replaces it if Apex cannot be imported.

Memory traffic of a forward pass, bytes per element of `hidden` in half precision (calculated):

    ApexNorm                        4   reads and writes each element once
    TorchNorm, torch 2.9 or later   4   one kernel on CUDA devices
    TorchNorm, older torch         40   several operators, most of them on fp32 copies
    PassesNorm                     10   reads each element three times, and writes it twice
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.nn import functional as F

from flagbench_cases.engines.megatron.versions import torch_release

APEX, TORCH, THREE_PASSES = "apex", "torch", "torch, three passes"
"""The names of the norms, which a record has as the condition `norm`."""
FUSED_FROM = (2, 9)
"""The first release of torch whose rms_norm is one kernel on CUDA devices."""


def choose(device: torch.device, trains: bool) -> str:
    """Return the name of the fastest norm for a device. The three passes cannot train: they have no gradient."""
    if device.type != "cuda":
        return TORCH
    if _import_apex() is not None:
        return APEX
    if trains or torch_release() >= FUSED_FROM:
        return TORCH
    return THREE_PASSES


def _import_apex() -> Callable[..., torch.Tensor] | None:
    """Return Apex's function (hidden, weight, normalized shape, eps) -> hidden; None if it cannot be imported."""
    try:
        import fused_layer_norm_cuda  # noqa: F401, which Apex imports when the norm is first called
        from apex.normalization.fused_layer_norm import FusedRMSNormAffineFunction
    except ImportError:
        return None
    return FusedRMSNormAffineFunction.apply  # type: ignore[no-any-return]


class TorchNorm(torch.nn.Module):
    """RMSNorm computed by torch's function, or by its operators before torch 2.4. The base class of the others."""

    name = TORCH

    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        """`config`: Megatron-Core's TransformerConfig."""
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps
        device = torch.device("cpu") if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device))
        # With sequence parallelism, each rank has a part of the weight's gradient. This mark makes Megatron-Core sum
        # the parts.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        if hasattr(F, "rms_norm"):  # from torch 2.4 on
            return F.rms_norm(hidden, (self.hidden_size,), self.weight, self.eps)
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(hidden.dtype)


class ApexNorm(TorchNorm):
    """RMSNorm computed by Apex's kernel: the function that Megatron-LM's MixedFusedRMSNorm calls."""

    name = APEX

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        apply = _import_apex()
        assert apply is not None
        self._apply_norm: Callable[..., torch.Tensor] = apply

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        return self._apply_norm(hidden, self.weight, (self.hidden_size,), self.eps)


class PassesNorm(TorchNorm):
    """RMSNorm for inference, computed by three kernels of torch's without an fp32 copy of `hidden`.

    They compute the norm of each row, summed in fp32; the product with the scale; and the product with the weight.
    The first product is rounded to the dtype of `hidden`, as in Apex's kernel.
    """

    name = THREE_PASSES

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        row_norm = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.rsqrt(row_norm.square() / self.hidden_size + self.eps)
        # Without `out`, the product with the fp32 scale would be fp32. With it, the result has the dtype of `hidden`:
        # that saves an fp32 copy, and rounds where Apex does. An operator with `out` has no gradient.
        scaled = torch.mul(hidden, scale, out=torch.empty_like(hidden))
        return scaled.mul_(self.weight)


NORMS: dict[str, type[TorchNorm]] = {TORCH: TorchNorm, APEX: ApexNorm, THREE_PASSES: PassesNorm}
"""The class of each norm, by the name that `choose` returns."""
