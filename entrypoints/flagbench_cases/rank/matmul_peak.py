"""Measures the highest matrix-product rate of the device in the run's precision, to complement the datasheet peak."""

from typing import Any, Dict

import torch

from flagbench_cases.engines.precision import autocast
from flagbench_cases.rank.stopwatch import now

SIZE = {"cpu": 1024, "cuda": 8192}


def measure(device: Any, precision: str, seconds: float = 0.4) -> Dict[str, Any]:
    """FLOP/s of the fastest of several N x N x N products of random numbers (zeros draw less power and run
    faster)."""
    size = SIZE[device.kind]
    generator = torch.Generator(device="cpu").manual_seed(1)
    a = torch.randn(size, size, generator=generator).to(device.torch)
    b = torch.randn(size, size, generator=generator).to(device.torch)
    if precision in ("bf16", "fp16"):
        dtype = torch.bfloat16 if precision == "bf16" else torch.float16
        a, b = a.to(dtype), b.to(dtype)
    best = float("inf")
    with torch.no_grad(), autocast(device.torch, precision):
        torch.matmul(a, b)
        device.synchronize()
        end = now() + seconds
        while now() < end or best == float("inf"):
            start = now()
            torch.matmul(a, b)
            device.synchronize()
            best = min(best, now() - start)
    method = "best of repeated %d x %d x %d products in %.1f s, after training" % (size, size, size, seconds)
    return {"flops": 2.0 * size**3 / best, "precision": precision, "method": method}
