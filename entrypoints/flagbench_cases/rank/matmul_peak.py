"""Measures the highest matrix-product rate of the device in the run's precision, to complement the datasheet peak."""

from typing import Any, Dict

import torch

from flagbench_cases.engines.precision import autocast
from flagbench_cases.rank.stopwatch import now

# A core alone is fastest with matrices that fit its cache, many cores with larger ones.
SIZES = {"cpu": (384, 1024), "cuda": (8192,)}
# For each size. What processors compute differs little from product to product; devices have to reach their clock.
SECONDS = {"cpu": 0.05, "cuda": 0.4}


def measure(device: Any, precision: str) -> Dict[str, Any]:
    """FLOP/s of the fastest of several N x N x N products of random numbers (zeros draw less power and run
    faster)."""
    sizes, seconds = SIZES[device.kind], SECONDS[device.kind]
    with torch.no_grad(), autocast(device.torch, precision):
        flops = max(_fastest(device, precision, size, seconds) for size in sizes)
    products = " or ".join("%d x %d x %d" % (size, size, size) for size in sizes)
    method = "best of repeated %s products in %.2f s, after training" % (products, seconds * len(sizes))
    return {"flops": flops, "precision": precision, "method": method}


def _fastest(device: Any, precision: str, size: int, seconds: float) -> float:
    """FLOP/s of the fastest product of that size."""
    generator = torch.Generator(device="cpu").manual_seed(1)
    a = torch.randn(size, size, generator=generator).to(device.torch)
    b = torch.randn(size, size, generator=generator).to(device.torch)
    if precision in ("bf16", "fp16"):
        dtype = torch.bfloat16 if precision == "bf16" else torch.float16
        a, b = a.to(dtype), b.to(dtype)
    torch.matmul(a, b)
    device.synchronize()
    best, end = float("inf"), now() + seconds
    while now() < end or best == float("inf"):
        start = now()
        torch.matmul(a, b)
        device.synchronize()
        best = min(best, now() - start)
    return 2.0 * size**3 / best
