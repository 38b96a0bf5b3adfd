"""Matrix products of random numbers in a precision, as the roofs case and the ceiling of every run measure them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Callable, Iterator, Sequence

import torch

from flagbench_cases.contract import Isolated
from flagbench_cases.engines.precision_switches import FP8, scaled_product, set_switches

DTYPES = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
SEED = 20260101
"""The seed of the matrices of `fixed_results`."""
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def product(
    device: torch.device, precision: str, m: int, n: int, k: int, transposed: bool = False, narrow: bool = False
) -> Callable[[], Any]:
    """A product of (m, k) by (k, n), whose result overwrites the last one.

    Random numbers: zeros draw less power and run faster. `transposed`: the second factor is stored as (n, k), as the
    weights of a linear layer are. `narrow`: the result of fp8 is fp8 too, else bf16.
    Raises RuntimeError, here or in the first product, if the device or its torch lacks this precision.
    """
    if precision == FP8:
        return _fp8(device, m, n, k, narrow)
    set_switches(precision)
    dtype = getattr(torch, DTYPES[precision])
    a = torch.randn(m, k, device=device).to(dtype)
    shape = (n, k) if transposed else (k, n)
    b = torch.randn(shape, device=device).to(dtype)
    if transposed:
        b = b.t()
    out = torch.empty(m, n, device=device, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def mamf_product(device: torch.device, precision: str, m: int, n: int, k: int, cleared_bytes: int) -> Isolated:
    """A product as MAMF times it (mamf-finder.py of stas00/ml-engineering at 744d01e1): alone, the second factor
    transposed, after a buffer larger than any cache was zeroed and the last result overwritten with random numbers.
    In fp8 its result is fp8. Raises RuntimeError if the device or its torch lacks this precision.
    """
    multiply = product(device, precision, m, n, k, transposed=True, narrow=True)
    out = multiply()
    noise = torch.randn(m, n, device=device).to(out.dtype)
    buffer = torch.empty(cleared_bytes // 4, device=device, dtype=torch.int32)
    return Isolated(lambda: (buffer.zero_(), out.copy_(noise)), multiply)


def _fp8(device: torch.device, m: int, n: int, k: int, narrow: bool) -> Callable[[], Any]:
    a = torch.randn(m, k, device=device)
    b = torch.randn(n, k, device=device)
    return scaled_product(a, b, narrow)


def fixed_results(device: torch.device, precisions: Sequence[str], size: int) -> dict[str, str]:
    """A digest of a product of fixed random matrices in each precision that the device has, and of a sum of one.

    The matrices are drawn on the host, and the operations are torch's deterministic ones: devices of one model with
    one driver and one torch give the same bits (cuBLAS documentation, Results reproducibility).
    """
    generator = torch.Generator().manual_seed(SEED)
    host = [torch.randn(size, size, generator=generator) for _ in range(2)]
    digests = {}
    with torch.no_grad(), _deterministic():
        for name in precisions:
            with contextlib.suppress(RuntimeError):  # the device or its torch has no such product
                digests["matmul_" + name] = _digest(_fixed_product(device, name, host[0], host[1]))
        digests["sum"] = _digest(host[0].to(device).sum(0))
    return digests


def _fixed_product(device: torch.device, precision: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if precision == FP8:
        return scaled_product(a.to(device), b.to(device))()
    set_switches(precision)
    dtype = getattr(torch, DTYPES[precision])
    return torch.mm(a.to(dtype).to(device), b.to(dtype).to(device))


def _digest(tensor: torch.Tensor) -> str:
    """A digest of the tensor's bits, 16 hexadecimal digits."""
    return hashlib.sha256(tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """torch's deterministic algorithms, for which it asks for a setting of cuBLAS."""
    before = torch.are_deterministic_algorithms_enabled(), os.environ.get(_WORKSPACE)
    os.environ[_WORKSPACE] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        os.environ.pop(_WORKSPACE)
        if before[1] is not None:
            os.environ[_WORKSPACE] = before[1]
