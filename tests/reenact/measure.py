"""One process of a re-enactment: the configuration of a record, its loop re-enacted, then a matrix product.

    python -m tests.reenact.measure RECORD

prints one line of JSON: losses and step_seconds of the steady steps, their throughput in the case's unit, and what
the device gives for a large matrix product in the same precision.
"""

import importlib
import json
import math
import os
import sys
from typing import Any, Dict

from flagbench_cases import config as configuration
from flagbench_cases import output
from flagbench_cases import precision as numerics
from flagbench_cases.record import strict

SIZE = {"cpu": 1024, "cuda": 8192}


def work_of_a_step(record: Dict[str, Any]) -> int:
    """Samples, or tokens, that the publisher counts for a step of one device."""
    config, tokens = record["config"], record["work"]["unit"] == "tokens"
    return config["train"]["batch_size"] * (config["data"]["sequence_length"] if tokens else 1)


def gemm(device: Any, precision: str) -> Dict[str, Any]:
    """FLOP/s of the fastest of repeated products of two square random matrices."""
    import torch
    from torch.utils.benchmark import Timer

    size, dtype = SIZE[device.type], torch.float16 if precision == "fp16" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    timer = Timer("a @ b", globals={"a": a, "b": b}, num_threads=torch.get_num_threads())
    seconds = min(timer.blocked_autorange(min_run_time=0.5).times)
    method = "best block of %d x %d x %d products repeated for 0.5 s, after training" % (size, size, size)
    return {"flops": 2.0 * size**3 / seconds, "precision": precision, "method": method}


def measure(record: Dict[str, Any]) -> Dict[str, Any]:
    """Re-enact the run of a record on the device of its stack."""
    config, kind = record["config"], configuration.load_stack(record["stack"])["device"]["kind"]
    numerics.prepare_environment(os.environ, config["precision"])  # before torch is imported
    import torch

    numerics.set_switches(config["precision"])
    torch.set_num_threads(record["software"]["threads"])
    device, warmup = torch.device(kind), config["train"]["warmup_steps"]
    loop = importlib.import_module("." + config["case"].replace("-", "_"), __package__)
    ran = loop.train(config, device, warmup + config["train"]["window_steps"])
    losses, seconds = ran.losses[warmup:], ran.seconds[warmup:]
    return {
        "throughput": work_of_a_step(record) * len(seconds) / math.fsum(seconds),
        "gemm": gemm(device, config["precision"]),
        "losses": losses,
        "step_seconds": seconds,
    }


if __name__ == "__main__":
    stdout = output.keep_stdout()  # libraries print there too
    with open(sys.argv[1], encoding="utf-8") as file:
        output.write_line(stdout, json.dumps(strict(measure(json.load(file)))))
