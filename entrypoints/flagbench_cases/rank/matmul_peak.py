"""The highest matrix-product rate of the device in the run's precision, to complement the datasheet peak: the short
form of what the case `roofs` measures."""

from __future__ import annotations

from typing import Any

import torch

from flagbench_cases.engines.products import product
from flagbench_cases.rank.repeats import Repeater
from flagbench_core.evidence.roofs import is_steady, matmul_flops, spread

SECONDS = {"cpu": 0.5, "cuda": 2.0}
"""At most. Steady repeats of a processor take 0.4 s, and runs that share its cores wait for one another."""


def measure(device: Any, precision: str) -> dict[str, Any]:
    """FLOP/s of the fastest repeat of an N x N x N product, whether its repeats were steady, and their spread."""
    size, limit = _size(device.kind, torch.get_num_threads()), SECONDS[device.kind]
    repeater = Repeater(device)
    with torch.no_grad():
        multiply = product(device.torch, precision, size, size, size)
        repeater.once(multiply)
        seconds = repeater.pace(multiply)
        times = [repeat.device for repeat in repeater.until_steady(multiply, seconds, limit)]
    product_text = f"{size} x {size} x {size} product"
    method = f"fastest repeat of a {product_text}, repeated until steady or for {limit:g} s, after the run"
    return {
        "flops": repeater.operations(seconds) * matmul_flops(size, size, size) / min(times),
        "precision": precision,
        "method": method,
        "steady": is_steady(times),
        "spread": spread(times),
    }


def _size(kind: str, threads: int) -> int:
    """N. A core alone is fastest with matrices that fit its cache, several cores with larger ones."""
    if kind != "cpu":
        return 8192
    if threads == 1:
        return 384
    return 1024
