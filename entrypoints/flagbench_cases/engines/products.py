"""Matrix products of random numbers in a precision, as the roofs case and the ceiling of every run measure them."""

from typing import Any, Callable

import torch

from flagbench_cases.engines.precision import set_switches

DTYPES = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
FP8 = "fp8"
"""E4M3 with a scale of 1 for each operand, and a product in bf16."""


def product(
    device: torch.device, precision: str, m: int, n: int, k: int, transposed: bool = False
) -> Callable[[], Any]:
    """A product of (m, k) by (k, n), whose result overwrites the last one.

    Random numbers: zeros draw less power and run faster. `transposed`: the second factor is stored as (n, k), as the
    weights of a linear layer are. Raises RuntimeError, here or in the first product, where there is none in this
    precision.
    """
    if precision == FP8:
        return _fp8(device, m, n, k)
    set_switches(precision)
    dtype = getattr(torch, DTYPES[precision])
    a, b = (torch.randn(shape, device=device).to(dtype) for shape in ((m, k), (n, k) if transposed else (k, n)))
    b, out = (b.t() if transposed else b), torch.empty(m, n, device=device, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def _fp8(device: torch.device, m: int, n: int, k: int) -> Callable[[], Any]:
    dtype, multiply = getattr(torch, "float8_e4m3fn", None), getattr(torch, "_scaled_mm", None)
    if dtype is None or multiply is None or device.type == "cpu":
        raise RuntimeError("this torch has no matrix product in fp8 for %s" % device.type)
    a, b = (torch.randn(shape, device=device).to(dtype) for shape in ((m, k), (n, k)))
    one = torch.ones((), device=device)
    return lambda: multiply(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
