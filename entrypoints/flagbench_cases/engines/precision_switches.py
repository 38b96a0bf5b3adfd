"""The precision of matmuls: torch's switches for it, and a measurement of the precision in which a matmul ran.

A rank measures it before its steps, because torch, a library or the environment may use another precision than
requested.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import torch

from flagbench_core.checks import runs_in

FP8 = "fp8"
"""E4M3 with a scale of 1 for each factor, without `use_fast_accum`. Both are torch's defaults. MAMF, the benchmark by
Stas Bekman whose published rates the case `roofs` is compared with, uses them too."""
WRONG = "wrong"
"""What is stated instead of a precision if the error of a matmul is larger than rounding explains."""
_MATRIX_SIZE = 256
"""Rows and columns of the matrices that are multiplied: enough for an error that depends on the precision alone."""
_MATRIX_SEED = 20
"""Their seed. Any would do; a fixed one gives every rank the same error."""


def set_switches(precision: str) -> None:
    """Enable TF32 for the precision `tf32` and disable it otherwise, for matmuls and convolutions."""
    if hasattr(torch, "set_float32_matmul_precision"):
        setting = "highest"
        if precision == "tf32":
            setting = "high"
        torch.set_float32_matmul_precision(setting)
    else:  # a build from before the release of 1.12, as NVIDIA's image of April 2022 may have
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def classify(relative_error: float) -> str:
    """Return the precision implied by the Frobenius-relative error of a product of random matrices.

    FP16 and TF32 have the same error, because both have 10 mantissa bits; it is returned as `tf32`. An error that is
    larger than that of bf16, or NaN, comes from a faulty device or library, and is returned as WRONG.
    """
    for name in ("fp32", "tf32", "bf16"):
        if runs_in(name, relative_error):
            return name
    return WRONG


def measure_precision(device: Any, precision: str) -> dict[str, Any]:
    """Multiply two random matrices as a step of that precision would, and compare the product with float64.

    Returns the record's `precision`:
        requested: the argument `precision`.
        executed: the precision in which the matmul ran, as its error shows; WRONG if it is none.
        relative_error: the Frobenius norm of the error, relative to that of the exact product.
        matmul_allow_tf32, cudnn_allow_tf32: torch's switches.
    """
    generator = torch.Generator().manual_seed(_MATRIX_SEED)
    a = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, generator=generator)
    b = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, generator=generator)
    with autocast(device, precision):
        product = _multiply(a, b, device, precision)
    exact = a.double() @ b.double()
    error = float((product.double().cpu() - exact).norm() / exact.norm())
    executed = _expected(product, precision)
    if not runs_in(executed, error):
        executed = classify(error)
    return {
        "requested": precision,
        "executed": executed,
        "relative_error": error,
        "matmul_allow_tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        "cudnn_allow_tf32": bool(torch.backends.cudnn.allow_tf32),
    }


def _multiply(a: torch.Tensor, b: torch.Tensor, device: Any, precision: str) -> torch.Tensor:
    """Return the product of (m, k) by (k, n) on the device, in fp8 or as autocast and the switches have it."""
    if precision == FP8:
        return _fp8_matmul(a, b, device)
    return torch.matmul(a.to(device), b.to(device))


def _expected(product: torch.Tensor, precision: str) -> str:
    """Return the precision that the type of a product implies; empty for fp32, whose matmul may run in TF32."""
    if precision == FP8:
        return FP8  # the type of its result is bf16
    if product.dtype == torch.float16:
        return "fp16"
    if product.dtype == torch.bfloat16:
        return "bf16"
    return ""


def _fp8_matmul(a: torch.Tensor, b: torch.Tensor, device: Any) -> torch.Tensor:
    """Return the product of (m, k) by (k, n) with both factors in fp8.

    It is all NaN if the device, its driver or this torch cannot compute it, for which torch raises RuntimeError: the
    precision is then stated as WRONG, and the run's check of the precision fails.
    """
    try:
        return scaled_product(a.to(device), b.t().to(device))()
    except RuntimeError:
        return torch.full_like(a, float("nan"))


def scaled_product(a: torch.Tensor, b: torch.Tensor, narrow: bool = False) -> Callable[[], Any]:
    """Convert `a` (m, k) and `b` (n, k) to fp8, and return a function that computes `a @ b.t()`, (m, n).

    cuBLAS multiplies in fp8 only if the second factor is stored by columns. So `b` is given transposed.

    Args:
        narrow: whether the result is fp8, and overwrites the last one; otherwise it is bf16.

    Raises RuntimeError if this torch has no such matmul for the device.
    """
    device = a.device
    dtype = getattr(torch, "float8_e4m3fn", None)
    multiply = getattr(torch, "_scaled_mm", None)
    if dtype is None or multiply is None or device.type == "cpu":
        raise RuntimeError(f"this torch has no matrix product in fp8 for {device.type}")
    a = a.to(dtype)
    b = b.to(dtype)
    scale = torch.ones((), device=device)
    if not narrow:
        return lambda: multiply(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    out = torch.empty(len(a), len(b), device=device, dtype=dtype)
    return lambda: multiply(a, b.t(), scale_a=scale, scale_b=scale, out=out)


def autocast(device: Any, precision: str) -> Any:
    """Return the context in which a step runs: autocast for bf16 and fp16, a null context otherwise."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if dtype is None:
        # Not a disabled autocast: on torch 1.12 even that queries the device for bf16 support at every step.
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, dtype=dtype)
