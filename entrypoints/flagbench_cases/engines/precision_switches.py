"""The precision of matrix products: the switches that set it, and a measurement that verifies it."""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import torch

from flagbench_core.checks import runs_in

FP8 = "fp8"
"""E4M3 with a scale of 1 for each operand, without `use_fast_accum`: torch's default, which MAMF leaves as well."""


def set_switches(precision: str) -> None:
    """Enable TF32 for the precision `tf32` and disable it otherwise, for matrix products and convolutions."""
    if hasattr(torch, "set_float32_matmul_precision"):
        setting = "highest"
        if precision == "tf32":
            setting = "high"
        torch.set_float32_matmul_precision(setting)
    else:  # a build from before the release of 1.12, as NVIDIA's image of April 2022 may have
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def classify(relative_error: float) -> str:
    """The precision implied by the Frobenius-relative error of a product of random matrices, TF32 for FP16.

    A larger error than theirs, or NaN, is not rounding but a faulty device or library: `wrong`.
    """
    for name in ("fp32", "tf32", "bf16"):
        if runs_in(name, relative_error):
            return name
    return "wrong"


def prove(device: Any, precision: str) -> dict[str, Any]:
    """Multiply two random 256 x 256 matrices as a step would, and compare the product with float64."""
    generator = torch.Generator().manual_seed(20)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    with autocast(device, precision):
        product = _fp8(a, b, device) if precision == FP8 else torch.matmul(a.to(device), b.to(device))
    exact = a.double() @ b.double()
    error = float((product.double().cpu() - exact).norm() / exact.norm())
    executed = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(product.dtype, "")
    if precision == FP8:
        executed = "fp8"  # its result is bf16
    if not runs_in(executed, error):
        executed = classify(error)
    return {
        "requested": precision,
        "executed": executed,
        "relative_error": error,
        "matmul_allow_tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        "cudnn_allow_tf32": bool(torch.backends.cudnn.allow_tf32),
    }


def _fp8(a: torch.Tensor, b: torch.Tensor, device: Any) -> torch.Tensor:
    """The product with both factors in fp8; NaN where the device has none."""
    try:
        return scaled_product(a.to(device), b.t().to(device))()
    except RuntimeError:
        return torch.full_like(a, float("nan"))


def scaled_product(a: torch.Tensor, b: torch.Tensor, narrow: bool = False) -> Callable[[], Any]:
    """A product in fp8 of (m, k) by (n, k), transposed; `narrow`: its result is fp8, else bf16."""
    device = a.device
    dtype, multiply = getattr(torch, "float8_e4m3fn", None), getattr(torch, "_scaled_mm", None)
    if dtype is None or multiply is None or device.type == "cpu":
        raise RuntimeError(f"this torch has no matrix product in fp8 for {device.type}")
    a, b = a.to(dtype), b.to(dtype)
    scale = torch.ones((), device=device)
    if not narrow:
        return lambda: multiply(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    out = torch.empty(len(a), len(b), device=device, dtype=dtype)
    return lambda: multiply(a, b.t(), scale_a=scale, scale_b=scale, out=out)


def autocast(device: Any, precision: str) -> Any:
    """The context a step runs in: autocast for bf16 and fp16, a null context otherwise."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if dtype is None:
        # Not a disabled autocast: on torch 1.12 even that queries the device for bf16 support at every step.
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, dtype=dtype)
