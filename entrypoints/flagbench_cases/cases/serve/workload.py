"""Generates text in batches with vLLM, as its latency benchmark does, for models of the Llama family.

A step is one batch: all prompts enter the engine together, and each gets the same number of tokens. Weights and
prompts are random, so nothing is downloaded. Unusual parts are listed under `quirks` in the case manifest. The loop
in flagbench_cases.rank calls the methods of ServeWorkload and times them.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, List

import numpy as np
import torch

from flagbench_cases.contract import Context, InferWorkload, Work
from flagbench_cases.engines.vllm import Completion, VllmEngine, digest
from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_core import flops

PROMPT_IDS = 10_000
"""The ids of prompts are below this number, as in vLLM's benchmark, or below the size of a smaller vocabulary."""

Batch = List[List[int]]
"""The ids of the tokens of each prompt."""


class ServeWorkload(InferWorkload):
    """One engine, split over all ranks; every rank gives it the same prompts."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.config = context.config
        self.served = {"requests": 0, "cached_tokens": 0, "other_lengths": 0, "preemptions": 0}
        """What the engine did in all batches so far."""
        self.marks: Any = contextlib.nullcontext()
        """The stream of the marks of iterations. With asynchronous scheduling the engine's own stream has the next
        iteration queued when the tokens of the last arrive, and a mark behind it would be late."""

    def setup(self) -> None:
        context, config = self.context, self.config
        if context.data is not None or context.weights is not None:
            raise DataError("this case generates its own prompts and weights", "omit --data and --weights")
        self.length: int = config["data"]["output_length"]
        positions = config["data"]["prompt_length"] + self.length
        if positions > config["vllm"]["max_model_len"]:
            raise UsageError(
                f"prompt_length and output_length are {positions} tokens, more than max_model_len",
                f"use --set max_model_len={positions}",
            )
        ids = min(PROMPT_IDS, config["model"]["vocab_size"])
        generator = np.random.default_rng(config["seed"])
        shape = (config["infer"]["batch_size"], config["data"]["prompt_length"])
        self.prompts: Batch = generator.integers(0, ids, shape).tolist()
        self.engine = VllmEngine(context)
        if context.device.kind == "cuda":
            self.marks = torch.cuda.stream(torch.cuda.Stream())
        self.completions: list[Completion] = []

    def describe(self) -> dict[str, Any]:
        config, model, data = self.config, self.config["model"], self.config["data"]
        return {
            "conditions": {
                "model": model["name"],
                "batch_size": config["infer"]["batch_size"],
                "prompt_length": data["prompt_length"],
                "output_length": data["output_length"],
                "temperature": config["infer"]["temperature"],
                "layout": str(self.context.layout),
                **config["vllm"],
                "async_scheduling": self.engine.async_scheduling(),
                "engine_process": "rank",
                "vllm": self.engine.version,
                "weights": "random",
            },
            "data": {"prompts": len(self.prompts), "prompt_ids": min(PROMPT_IDS, model["vocab_size"])},
            "parameters": count_parameters(model),
        }

    def steps(self, name: str) -> int:
        return int(self.config["data"]["batches"])

    def batches(self, name: str) -> Iterable[Batch]:
        """Return the same prompts for each step, as published."""
        return [self.prompts] * self.steps(name)

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch unchanged: the engine copies it."""
        return batch

    def infer(self, batch: Batch) -> None:
        temperature = self.config["infer"]["temperature"]
        self.completions = self.engine.generate(batch, self.length, temperature, self._mark_iteration)

    def _mark_iteration(self) -> None:
        """Mark the start of a batch, or the end of an iteration of the engine, which gives each sequence a token."""
        with self.marks:
            self.context.probe.micro_batch()
        self.context.spool.beat()

    def after_step(self) -> None:
        self._count(self.completions)

    def _count(self, completions: list[Completion]) -> None:
        """Count what the engine did in one batch."""
        served = self.served
        served["requests"] += len(completions)
        for completion in completions:
            served["cached_tokens"] += completion.cached_tokens
            served["preemptions"] += completion.preemptions
            if len(completion.ids) != self.length:
                served["other_lengths"] += 1

    def work(self, batch: Batch) -> Work:
        tokens = len(batch) * self.length
        generation = flops.generation(len(batch), len(batch[0]), self.length)
        executed = float(flops.llama_forward(self.config["model"], generation).executed)
        return Work(
            samples=len(batch),
            published_samples=len(batch),
            tokens=tokens,
            tokens_useful=tokens,
            flops_executed=executed,
            flops_useful=executed,
        )

    def results(self) -> dict[str, str]:
        """Return a digest of the ids of a batch at temperature 0: the most likely tokens, which are always the same.

        The timed batches are drawn at the published temperature.
        """
        completions = self.engine.generate(self.prompts, self.length, 0.0, self.context.spool.beat)
        self._count(completions)
        return {"generated_ids": digest(completions)}

    def inference_facts(self) -> dict[str, Any]:
        return {"served": self.served, "engine": "vllm", "settings": self.engine.settings()}

    def parameter_sum(self) -> float:
        return self.engine.parameter_sum()

    def close(self) -> None:
        self.engine.close()


def count_parameters(model: dict[str, Any]) -> int:
    """The number of parameters: matrices, embeddings and norms."""
    counted = flops.llama_forward(model, flops.Batch(0, 0, 0, 0))
    norms = (2 * model["layers"] + 1) * model["dim"]
    return counted.weights + counted.embeddings + int(norms)


def build(context: Context) -> ServeWorkload:
    """Build the workload; called by flagbench_cases.rank.run."""
    return ServeWorkload(context)
