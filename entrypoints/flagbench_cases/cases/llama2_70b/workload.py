"""Pretraining of the Llama family with tensor, pipeline and data parallelism.

A step is one global batch: every replica runs its micro-batches through its pipeline (1F1B); gradients are averaged
over replicas, clipped and applied by the distributed optimizer.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, List

import torch

from flagbench_cases.cases.llama2_70b import data
from flagbench_cases.contract import Context, TrainWorkload, Work
from flagbench_cases.engines.megatron import attention, norm, open_engine, parts
from flagbench_cases.engines.megatron.shape import LOCAL, TRANSFORMER_ENGINE, shape_of
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_core import flops

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
DTYPES["fp8"] = torch.bfloat16  # of attention, output layer and embedding, and of all that is kept
FP8_OPTIONS = {
    "fp8": "hybrid",
    "fp8_recipe": "delayed",
    "fp8_amax_history_len": 1024,
    "fp8_amax_compute_algo": "max",
}
"""Transformer Engine's recipe, as published; of Megatron-Core's TransformerConfig."""

Batch = List[torch.Tensor]
"""The micro-batches of a replica, int64 [B, T + 1] each."""


class PretrainingWorkload(TrainWorkload):
    """Each rank trains its part of the layers of its stage."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.config = context.config
        self.device = context.device.torch
        train = self.config["train"]
        self.micro, self.batch_size = train["micro_batch_size"], train["batch_size"]
        if train["min_learning_rate"] > train["learning_rate"]:
            raise UsageError(
                f"min_learning_rate {train['min_learning_rate']:g} is above learning_rate {train['learning_rate']:g}",
                "choose a smaller min_learning_rate",
            )
        self.accumulated = self.batch_size // self.micro

    def setup(self) -> None:
        context, config, beat = self.context, self.config, self.context.spool.beat
        if context.weights is not None:
            raise DataError("pretraining starts from random weights", "omit --weights")
        train = config["train"]
        self.shape = shape_of(config["model"])
        self.engine = open_engine()
        self.engine.start(context)
        beat()
        dtype = DTYPES[config["precision"]]
        legacy = self.shape.legacy_layers
        self.layers = LOCAL if legacy else self.engine.choose_layers(self.device)
        if config["precision"] == "fp8" and self.layers != TRANSFORMER_ENGINE:
            raise UsageError(
                "--precision fp8 needs Transformer Engine and a CUDA device, and this image or device has none",
                "use an image with Transformer Engine, or --precision bf16",
            )
        self.pointwise = "none" if legacy else self.engine.fuse_pointwise(self.device)
        if self.layers == TRANSFORMER_ENGINE:
            self.attention = self.norm = self.layers
        else:
            self.attention = attention.choose(self.device) if train["flash_attention"] else attention.UNFUSED
            self.norm = norm.choose(self.device, trains=True)
        self.weight_gradients = self.engine.fuse_weight_gradients(self.device)
        self.recompute = train["recompute"]
        if self.recompute == "selective" and self.attention != attention.UNFUSED:
            self.recompute = "none"  # as published: what it would repeat, an attention kernel does not keep
        self.module = self.engine.build(
            context,
            self.shape,
            dtype,
            of_2024=legacy,
            attention=self.attention,
            norm=self.norm,
            layers=self.layers,
            **self._settings(),
        )
        if legacy:
            add_residuals_as_published(self.module)
        shapes = weights_format.shapes(config["model"])
        read = parts.random_tensors(self.shape, shapes, config["seed"], self.device, beat, scaled=True)
        at, joined = context.layout.coordinates(context.rank), self.layers == TRANSFORMER_ENGINE
        parts.fill(self.module, parts.parts_of(self.shape, context.layout, at, joined_norms=joined), read)
        from flagbench_cases.engines.megatron import training

        samples = train["schedule_samples"]
        settings = {name: train[name] for name in training.Hyperparameters._fields}
        self.trainer = training.Trainer(context, self.module, dtype, training.Hyperparameters(**settings))
        beat()
        batch = self.batch_size * context.layout.dp
        self.steps_of_schedule = max(1, samples // batch)
        blocks = self.steps_of_schedule * batch
        self.set = data.load(config["data"], config["model"], context.data, blocks, config["seed"], config["case"])
        beat()

    def _settings(self) -> dict[str, Any]:
        """The settings of Megatron-Core's configuration, except the sizes."""
        settings: dict[str, Any] = {
            "sequence_parallel": self.context.layout.tp > 1,
            "gradient_accumulation_fusion": self.weight_gradients != "separate",
        }
        if not self.shape.legacy_layers:
            settings.update(bias_dropout_fusion=True, bias_activation_fusion=True)
        if self.config["precision"] == "fp8":
            settings.update(FP8_OPTIONS)
        if self.recompute == "selective":
            settings["recompute_granularity"] = "selective"
        elif self.recompute == "full":
            settings.update(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
        return settings

    def steps_per_epoch(self) -> int:
        return self.steps_of_schedule

    def batches(self, epoch: int) -> Iterable[Batch]:
        layout, at = self.context.layout, self.context.layout.coordinates(self.context.rank)
        return data.batches(self.set.blocks, self.steps_of_schedule, at.dp, layout.dp, self.micro, self.accumulated)

    def to_device(self, batch: Batch) -> Batch:
        return [tokens.to(self.device, non_blocking=True) for tokens in batch]

    def step(self, batch: Batch) -> float | None:
        return self.trainer.step(batch)

    def scaler_skipped(self) -> bool:
        return bool(self.trainer.skipped_last)

    def work(self, batch: Batch) -> Work:
        samples, length = self.batch_size, batch[0].shape[1] - 1
        tokens = samples * length
        counted = flops.llama(
            flops.padded(self.config["model"], self.context.layout.tp), flops.batch_of(samples, length)
        )
        again = 0.0
        if self.recompute == "full":
            again = float(counted.layers)
        elif self.recompute == "selective":
            again = 4.0 * self.shape.layers * tokens * length * self.shape.dim
        return Work(samples, samples, tokens, tokens, float(counted.executed), float(counted.executed), again)

    def evaluate(self, last: bool) -> None:
        """The publisher evaluates nothing."""

    def training_facts(self) -> dict[str, Any]:
        facts = self.trainer.facts()
        if self.context.layout.pp > 1:
            facts["predicted_bubble"] = self.predicted_bubble
        return facts

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        # The batches follow from the step.
        return self.trainer.state()

    def state_owner(self, rank: int) -> int:
        if self.config["train"]["distributed_optimizer"]:
            return rank
        return next(ranks[0] for ranks in self.context.layout.groups("dp") if rank in ranks)

    def check_state(self, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        self.trainer.check_state(tensors, facts)

    def restore(self, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        self.trainer.restore(tensors, facts)

    @property
    def predicted_bubble(self) -> float:
        """Share of a pipeline's time in which a stage waits, if stages are equally slow: (p - 1) / (m + p - 1) for p
        stages and m micro-batches (Narayanan et al., SC 2021). Without the optimizer, as core measures it."""
        stages = self.context.layout.pp
        return (stages - 1) / (self.accumulated + stages - 1)

    def describe(self) -> dict[str, Any]:
        config, train = self.config, self.config["train"]
        choices: dict[str, Any] = {}
        if not self.shape.legacy_layers:
            choices.update(layers=self.shape.layers, dropout=self.shape.dropout)
            choices.update(transformer=self.layers, pointwise=self.pointwise)
        betas, epsilon = f"{train['beta1']:g}/{train['beta2']:g}", train["epsilon"]
        optimizer = f"AdamW(betas={betas}, eps={epsilon:g}, weight_decay={train['weight_decay']:g})"
        if train["distributed_optimizer"]:
            optimizer += ", distributed"
        length = f"{train['schedule_samples']} samples, warm-up {train['warmup_share']:g}"
        return {
            "conditions": {
                "model": self.shape.name,
                **choices,
                "sequence_length": config["data"]["sequence_length"],
                "batch_size": self.micro,
                "gradient_accumulation_steps": self.accumulated,
                "layout": str(self.context.layout),
                "recompute": self.recompute,
                "attention": self.attention,
                "norm": self.norm,
                "weight_gradients": self.weight_gradients,
                "optimizer": optimizer,
                "learning_rate": train["learning_rate"],
                "schedule": f"cosine to {train['min_learning_rate']:g} over {length}",
                "data": self.set.condition,
                "weights": "random",
            },
            "data": self.set.facts,
            "parameters": self.shape.parameters,
        }


def add_residuals_as_published(module: Any) -> None:
    """Have the layers of a stage run the publisher's dropout of p = 0 before they add to the residual stream.

    The publisher adds in TorchScript, which differentiates even a dropout of p = 0: it writes its output and a mask
    of bytes, which is kept for the backward pass. Called from Python, torch leaves such a dropout out.
    """
    for layer in module.decoder.layers:
        layer.self_attn_bda = layer.mlp_bda = _residual_adder


def _residual_adder(training: bool, fused: bool) -> Callable[..., torch.Tensor]:
    """Megatron-Core's bias-dropout-add without a bias: (output, None), the residual and p to their sum."""

    def add(output: tuple[torch.Tensor, None], residual: torch.Tensor, probability: float) -> torch.Tensor:
        if not training:
            return residual + output[0]
        return residual + torch.native_dropout(output[0], probability, True)[0]

    return add


def build(context: Context) -> PretrainingWorkload:
    """Build the workload; called by flagbench_cases.rank.run."""
    return PretrainingWorkload(context)
