"""Which precision matrix products have: the switches that decide it, and a product that proves it."""

import contextlib
import math
from typing import Any, Dict

import torch


def set_switches(precision: str) -> None:
    """TF32 on for tf32, off for everything else, for matrix products and convolutions alike."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def classify(relative_error: float) -> str:
    """The precision that a Frobenius-relative error of a product of random matrices tells of.

    Rounding inputs to m explicit mantissa bits gives about 2**-(m+1) / sqrt(3) * sqrt(2) per product term: 4e-4 at
    10 bits (TF32, FP16), 3e-3 at 7 (BF16), and about 1e-7 when inputs are kept (FP32). The borders lie between.
    A product further off, or not a number, is no rounding: it is `wrong`, and so is the device or its library.
    """
    if not math.isfinite(relative_error) or relative_error > 2e-2:
        return "wrong"
    if relative_error < 2e-5:
        return "fp32"
    if relative_error < 1.2e-3:
        return "tf32"
    return "bf16"


def prove(device: Any, precision: str) -> Dict[str, Any]:
    """Multiply two random 256 x 256 matrices as a step would and hold the product against float64."""
    generator = torch.Generator().manual_seed(20)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    with autocast(device, precision):
        product = torch.matmul(a.to(device), b.to(device))
    exact = a.double() @ b.double()
    error = float((product.double().cpu() - exact).norm() / exact.norm())
    executed = classify(error)
    if executed != "wrong":
        executed = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(product.dtype, executed)
    return {
        "requested": precision,
        "executed": executed,
        "relative_error": error,
        "matmul_allow_tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        "cudnn_allow_tf32": bool(torch.backends.cudnn.allow_tf32),
    }


def autocast(device: Any, precision: str) -> Any:
    """The context a step runs in: automatic casting for bf16 and fp16, nothing otherwise."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if dtype is None:
        # Not a disabled autocast: torch 1.12 asks the device for bf16 support even then, at every step.
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, dtype=dtype)
