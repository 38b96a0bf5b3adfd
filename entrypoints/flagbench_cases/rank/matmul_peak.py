"""The highest matrix-product rate of the device in the run's precision, to complement the datasheet peak: the short
form of what the case `roofs` measures."""

from typing import Any, Dict, Tuple

import torch

from flagbench_cases.engines.products import product
from flagbench_cases.rank.repeats import Repeater
from flagbench_core.evidence.roofs import is_steady, matmul_flops, spread

# A core alone is fastest with matrices that fit its cache, many cores with larger ones.
SIZES = {"cpu": (384, 1024), "cuda": (8192,)}
SECONDS = {"cpu": 1.5, "cuda": 2.0}
"""At most, for each size."""


def measure(device: Any, precision: str) -> Dict[str, Any]:
    """FLOP/s of the fastest repeat of several N x N x N products, and whether the repeats were steady."""
    with torch.no_grad():
        found = max((_fastest(device, precision, size) for size in SIZES[device.kind]), key=lambda one: one[0])
    products = " or ".join("%d x %d x %d" % (size, size, size) for size in SIZES[device.kind])
    limit = SECONDS[device.kind]
    method = "fastest repeat of %s products, repeated until steady or for %g s each, after the run" % (
        products,
        limit,
    )
    return {"flops": found[0], "precision": precision, "method": method, "steady": found[1], "spread": found[2]}


def _fastest(device: Any, precision: str, size: int) -> Tuple[float, bool, float]:
    """FLOP/s of the fastest repeat of products of that size, whether the repeats are steady, and their spread."""
    repeater, multiply = Repeater(device), product(device.torch, precision, size, size, size)
    repeater.once(multiply)
    seconds = repeater.pace(multiply)
    times = [each.device for each in repeater.until_steady(multiply, seconds, SECONDS[device.kind])]
    return repeater.operations(seconds) * matmul_flops(size, size, size) / min(times), is_steady(times), spread(times)
