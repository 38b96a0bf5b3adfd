"""Measures the highest matmul rate of the device in the precision of a run, for the record's `ceiling`.

It complements the peak in the datasheet. Every rank measures it after its run, in a shorter form of what the case
`roofs` does (measure_loop.py).
"""

from __future__ import annotations

from typing import Any

import torch

from flagbench_cases.engines.products import product
from flagbench_cases.rank.repeats import Repeater
from flagbench_core.evidence.roofs import is_steady, matmul_flops, spread

SECONDS = {"cpu": 0.5, "cuda": 2.0}
"""Seconds of repeats at most, by kind of device. Steady repeats of a processor take 0.4 s, and runs that share its
cores wait for one another, so it gets little more."""
CUDA_SIZE = 8192
"""N of the N x N x N matmul of an accelerator: large enough to keep all of its units busy."""
ONE_CORE_SIZE = 384
"""N for one core of a processor, which is fastest with matrices that fit its cache."""
CORES_SIZE = 1024
"""N for several cores, which are fastest with larger matrices."""


def measure(device: Any, precision: str) -> dict[str, Any]:
    """Repeat an N x N x N matmul in `precision`.

    Returns `flops`, the FLOP/s of the fastest repeat; `precision`; `method`, a sentence; `steady`, whether the times
    of the repeats were steady; and `spread`, their relative spread.
    """
    size = _size_for(device.kind, torch.get_num_threads())
    limit = SECONDS[device.kind]
    repeater = Repeater(device)
    with torch.no_grad():
        multiply = product(device.torch_device, precision, size, size, size)
        repeater.time_once(multiply)
        seconds = repeater.time_operation(multiply)
        times = [repeat.device for repeat in repeater.repeat_until_steady(multiply, seconds, limit)]
    shape = f"{size} x {size} x {size}"
    method = f"fastest repeat of a {shape} product, repeated until steady or for {limit:g} s, after the run"
    return {
        "flops": repeater.operations_per_repeat(seconds) * matmul_flops(size, size, size) / min(times),
        "precision": precision,
        "method": method,
        "steady": is_steady(times),
        "spread": spread(times),
    }


def _size_for(kind: str, threads: int) -> int:
    """N of the matmul on a device of this kind; `threads`: the number of cores that torch uses on a processor."""
    if kind != "cpu":
        return CUDA_SIZE
    if threads == 1:
        return ONE_CORE_SIZE
    return CORES_SIZE
