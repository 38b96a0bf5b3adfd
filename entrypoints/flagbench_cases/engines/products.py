"""Matmuls of random numbers in a precision, which the case `roofs` and the ceiling of every run measure.

The ceiling is the rate of one large matmul at the end of a run, with which the run's own rate is compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Callable, Iterator, Sequence

import torch

from flagbench_cases.contract import Isolated
from flagbench_cases.engines.precision_switches import FP8, scaled_product, set_switches

DTYPES = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The names of torch's types of the factors, by precision. Those of fp8 are in precision_switches."""
SEED = 20260101
"""The seed of the matrices of `fixed_results`."""
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""The environment variable that torch requires for deterministic matmuls on CUDA devices."""
_WORKSPACE_SETTING = ":4096:8"
"""Eight buffers of 4096 KiB: one of the two settings with which cuBLAS is deterministic."""


def product(
    device: torch.device, precision: str, m: int, n: int, k: int, transposed: bool = False, narrow: bool = False
) -> Callable[[], Any]:
    """Return a function that computes the product of (m, k) by (k, n), which overwrites the last one.

    The factors are random numbers, because zeros draw less power and run faster.

    Args:
        transposed: whether the second factor is stored as (n, k), as the weights of a linear layer are.
        narrow: whether the result of fp8 is fp8, too; otherwise it is bf16.

    Raises RuntimeError, here or in the first call, if the device or its torch lacks this precision.
    """
    if precision == FP8:
        return _fp8(device, m, n, k, narrow)
    set_switches(precision)
    dtype = getattr(torch, DTYPES[precision])
    a = torch.randn(m, k, device=device).to(dtype)
    stored_shape = (k, n)
    if transposed:
        stored_shape = (n, k)
    b = torch.randn(stored_shape, device=device).to(dtype)
    if transposed:
        b = b.t()
    out = torch.empty(m, n, device=device, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def mamf_product(device: torch.device, precision: str, m: int, n: int, k: int, cleared_bytes: int) -> Isolated:
    """Return a product as MAMF times it (mamf-finder.py of stas00/ml-engineering at 744d01e1).

    It is timed alone, after a buffer larger than any cache was zeroed and the last result overwritten with random
    numbers. The second factor is stored transposed, and in fp8 the result is fp8. `cleared_bytes`: the size of the
    buffer.

    Raises RuntimeError if the device or its torch lacks this precision.
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
    """Return digests of results of fixed random matrices: `matmul_PRECISION`, and `sum` of the columns of one.

    There is one of a matmul for each of the precisions that the device has. The matrices are drawn on the host, and
    the operations are torch's deterministic ones: devices of one model with one driver and one torch give the same
    bits (cuBLAS documentation, Results reproducibility).
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
    """Use torch's deterministic algorithms, and the setting of cuBLAS that they need; restore both at the end."""
    enabled_before = torch.are_deterministic_algorithms_enabled()
    setting_before = os.environ.get(_WORKSPACE)
    os.environ[_WORKSPACE] = _WORKSPACE_SETTING
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled_before)
        os.environ.pop(_WORKSPACE)
        if setting_before is not None:
            os.environ[_WORKSPACE] = setting_before
