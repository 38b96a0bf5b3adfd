"""Batches of our loop and of `vllm bench latency` in turn, on one engine. Bound: 3 % more CPU time, by the median.

vLLM's benchmark runs as it is; before each of its batches, one of ours runs. Neither may run beside other programs.

    make .venv/.serving && PYTHONPATH=.venv/serving .venv/bin/python tests/bench/serving.py
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

from flagbench_cases.cases.serve.workload import ServeWorkload
from flagbench_cases.contract import Context
from flagbench_cases.rank.device import CpuDevice
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.step_timer import StepTimer
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.shared.manifests import load_case, load_stack
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import RankSpool, SpoolReader
from flagbench_core.config import Options, resolve

CASE = "serve-llama3.1-8b"
WARMUP = 5
BOUND = 1.03


class InTurn:
    """The progress bar of vLLM's benchmark: before each of its batches, it runs one of ours."""

    def __init__(self, timer, prompts):
        self.timer = timer
        self.prompts = prompts
        self.ours = []
        """CPU seconds of each of our batches."""
        self.theirs = []

    def __call__(self, iterations, desc):
        for iteration in iterations:
            begun = time.process_time()
            self.timer.step(self.prompts, now())
            self.ours.append(time.process_time() - begun)
            begun = time.process_time()
            yield iteration
            self.theirs.append(time.process_time() - begun)


def set_up(folder, spool):
    """Our workload in the tiny preset, with a vocabulary that has all ids of the benchmark's prompts."""
    case = load_case(CASE)
    case["presets"]["tiny"]["model"]["vocab_size"] = 16384
    config = resolve(case, load_stack("cpu"), Options(preset="tiny"))
    device = CpuDevice()
    probe = CollectiveProbe(device.clock)
    workload = ServeWorkload(Context(config, device, 0, Layout(), 0, probe, spool, None, None))
    workload.setup()
    return workload, StepTimer(workload, workload.infer, spool, device, probe, after=workload.after_step)


def run_in_turn(workload, timer, folder, pairs):
    """Run vLLM's benchmark with our batches in between. Returns the bar, and the benchmark's latencies, seconds."""
    import vllm
    from vllm.benchmarks import latency
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    data, batch = workload.config["data"], workload.config["infer"]["batch_size"]
    result = os.path.join(folder, "latency.json")
    options = {
        "model": os.path.join(folder, "vllm-0"),  # not read: the engine exists
        "input-len": data["prompt_length"],
        "output-len": data["output_length"],
        "batch-size": batch,
        "num-iters-warmup": WARMUP,
        "num-iters": pairs,
        "output-json": result,
    }
    words = ["--disable-detokenize"]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    parser = FlexibleArgumentParser()
    latency.add_cli_args(parser)
    bar = InTurn(timer, workload.prompts)
    vllm.LLM.from_engine_args = staticmethod(lambda arguments: workload.engine._llm)
    latency.tqdm = bar
    latency.main(parser.parse_args(words))
    with open(result, encoding="utf-8") as file:
        return bar, json.load(file)["latencies"]


def describe(name, ours, theirs):
    """The median of the ratios of each pair, with quartiles."""
    ratios = [own / other for own, other in zip(ours, theirs)]
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"{name}: {median:.4f} times theirs (quartiles {low:.4f} to {high:.4f}, {len(ratios)} pairs)")
    return median


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        spool = RankSpool(folder, 0)
        workload, timer = set_up(folder, spool)
        spool.reserve(WARMUP + pairs)
        bar, latencies = run_in_turn(workload, timer, folder, pairs)
        ours = [step.host for step in SpoolReader(folder, 0).steps()]
    describe("wall time", ours[WARMUP:], latencies)
    cpu = describe("CPU time", bar.ours[WARMUP:], bar.theirs[WARMUP:])
    sys.exit(cpu > BOUND)


if __name__ == "__main__":
    main()
