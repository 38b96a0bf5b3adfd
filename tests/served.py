"""Records of serve-llama3.1-8b that are consistent in themselves, made by the image side's code from made-up times.

Nothing here was measured: a batch takes as long as it is told to, on a device that has the name of an H200.
"""

from __future__ import annotations

import json
import random
from typing import Any

from flagbench_cases.record import assemble
from flagbench_cases.record.evidence import OK, Evidence
from flagbench_cases.record.request import Request
from flagbench_cases.shared import manifests
from flagbench_cases.shared.spool import Step
from flagbench_core import config as configs
from flagbench_core.flops import generation, llama_forward

CASE, STACK, DEVICE = "serve-llama3.1-8b", "vllm-cuda13", "NVIDIA H200"
FIRST_ITERATION = 0.02
"""Seconds until the first token."""
NAN = float("nan")


def served_record(
    latency: float, release: str = "0.31.0", copy: float | None = None, steps: int | None = None, parts: int = 1
) -> dict[str, Any]:
    """A record of the reference preset on one device.

    Args:
        latency: the mean time of a batch, seconds.
        release: that of vLLM.
        copy: what a copy reached before the steps, B/s; None without `--roofs`.
        steps: the batches that are measured; None: as many as the preset has.
        parts: the iterations in which the prompts of a batch are read.
    """
    request = _request(copy is not None, steps)
    evidence = Evidence({0: _steps(request.config, latency)}, [], {}, None, "made up")
    _write_facts(evidence, request, release, copy, parts)
    record: dict[str, Any] = json.loads(assemble.to_line(assemble.assemble(request, evidence, OK)))
    name = f"made-up-{latency:g}-{release}"
    record.update(record_id=name, run_id=name, created_at="2026-01-01T12:00:00Z")
    return record


def _request(roofs: bool, steps: int | None) -> Request:
    case, stack = manifests.load_case(CASE), manifests.load_stack(STACK)
    options = configs.Options(roofs=roofs, steps=steps)
    argv = [CASE]
    if roofs:
        argv.append("--roofs")
    if steps is not None:
        argv += ["--steps", str(steps)]
    request = Request(
        argv=argv,
        case=CASE,
        stack=stack,
        run_id="made-up",
        preset="reference",
        nodes=1,
        gpus=1,
    )
    return request.resolved(case, stack, configs.resolve(case, stack, options))


def _steps(config: dict[str, Any], latency: float) -> list[Step]:
    """The steps of the warm-up and of the window."""
    data, infer = config["data"], config["infer"]
    batch, output = infer["batch_size"], data["output_length"]
    flops = llama_forward(config["model"], generation(batch, data["prompt_length"], output)).executed
    times = (1e-5, 1e-5, latency, 0.9999 * latency, NAN, NAN, 1e-5, NAN)
    step = Step(*times, batch, batch, batch * output, batch * output, flops, flops, 0.0)
    return [step] * (infer["warmup_steps"] + infer["window_steps"])


def _write_facts(evidence: Evidence, request: Request, release: str, copy: float | None, parts: int) -> None:
    """Add what the rank writes besides its steps."""
    config, count = request.config, len(evidence.steps[0])
    seconds = sum(step.host for step in evidence.steps[0]) + 0.01

    def write(kind: str, **values: Any) -> None:
        evidence.facts.append({**values, "kind": kind, "rank": 0, "time": 1.0})

    device = {"index": 0, "name": DEVICE, "memory_bytes": 141 * 10**9}
    write("rank", node=0, local_rank=0, pid=10, host="machine", device=device, driver="580.82.07")
    write("precision", requested="bf16", executed="bf16", relative_error=3e-3)
    write("memory", peak=130 * 2**30, allocator_peak=120 * 2**30, parameters=1.0)
    write("ceiling", flops=7e14, precision="bf16", method="best of some")
    if copy is not None:
        measured = {"operation": "copy", "bytes": 2**32}
        copy_seconds = 2 * 2**32 / copy
        times = [[copy_seconds, copy_seconds, 0.0]] * 20
        write("roof", name="memory_bandwidth", operations=1, times=times, measured=measured)
    write("pass_begun", name="infer", first_step=0)
    write("pass", name="infer", first_step=0, steps=count, seconds=seconds)
    write("timing", init=40.0, infer=seconds, e2e=seconds + 40.0)
    write("software", python="3.12.11", torch="2.13.0+cu130", cuda="13.0", packages={"vllm": release})
    write("plan", steps=count)
    conditions = {
        **config["vllm"],
        "model": config["model"]["name"],
        "batch_size": config["infer"]["batch_size"],
        "prompt_length": config["data"]["prompt_length"],
        "output_length": config["data"]["output_length"],
        "temperature": config["infer"]["temperature"],
        "async_scheduling": False,
        "engine_process": "rank",
        "vllm": release,
        "weights": "random",
    }
    write("workload", conditions=conditions, data={}, parameters=8_030_261_248)
    served = {"requests": count * conditions["batch_size"], "cached_tokens": 0, "other_lengths": 0, "preemptions": 0}
    write("inference", served=served, engine="vllm", settings=config["vllm"])
    write("results", first={"generated_ids": "a"}, second={"generated_ids": "a"})
    draw = random.Random(1)
    for number, step in enumerate(evidence.steps[0]):
        further = conditions["output_length"] - 1
        mean = (step.device - FIRST_ITERATION) / further
        iterations = [*[FIRST_ITERATION / parts] * parts, *(mean * draw.gauss(1, 0.002) for _ in range(further))]
        write("micro_batches", step=number, seconds=iterations)
