"""Pretrains models of the Llama family with tensor, pipeline and data parallelism, on Megatron-Core.

A step is one global batch: every replica runs its micro-batches through its pipeline (1F1B, one forward and one
backward pass in turn). Gradients are averaged over replicas, clipped and applied by the distributed optimizer. The
loop in flagbench_cases.rank calls the methods of PretrainingWorkload and times them.
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

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp8": torch.bfloat16,
}
"""The dtype of the parameters. With fp8, only the matmuls of the layers are in 8 bits."""
FP8_OPTIONS = {
    "fp8": "hybrid",
    "fp8_recipe": "delayed",
    "fp8_amax_history_len": 1024,
    "fp8_amax_compute_algo": "max",
}
"""Options of Megatron-Core's TransformerConfig for Transformer Engine's recipe, as published."""

Batch = List[torch.Tensor]
"""The micro-batches of a replica, each int64 [B, T + 1]."""


class PretrainingWorkload(TrainWorkload):
    """Each rank trains its part of the layers of its pipeline stage; see `TrainWorkload` for the methods."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.config = context.config
        self.device = context.device.torch_device
        train = self.config["train"]
        self.micro_batch_size = train["micro_batch_size"]
        self.batch_size = train["batch_size"]
        """Samples of one replica in a step."""
        if train["min_learning_rate"] > train["learning_rate"]:
            raise UsageError(
                f"min_learning_rate {train['min_learning_rate']:g} is above learning_rate {train['learning_rate']:g}",
                "choose a smaller min_learning_rate",
            )
        self.micro_batches = self.batch_size // self.micro_batch_size

    def setup(self) -> None:
        context, config, beat = self.context, self.config, self.context.spool.beat
        if context.weights is not None:
            raise DataError("pretraining starts from random weights", "omit --weights")
        self.shape = shape_of(config["model"])
        self.engine = open_engine()
        self.engine.start(context)
        beat()
        self._choose_kernels()
        self._build_module()
        self._make_trainer()
        beat()
        batch = self.batch_size * context.layout.dp
        self.steps_of_schedule = max(1, config["train"]["schedule_samples"] // batch)
        blocks = self.steps_of_schedule * batch
        self.set = data.load(config["data"], config["model"], context.data, blocks, config["seed"], config["case"])
        beat()

    def _choose_kernels(self) -> None:
        """Choose the implementations of the layers, according to the device, the software and the configuration.

        Raises UsageError for fp8 without Transformer Engine.
        """
        train = self.config["train"]
        legacy = self.shape.legacy_layers
        self.layers = LOCAL if legacy else self.engine.choose_layers(self.device)
        if self.config["precision"] == "fp8" and self.layers != TRANSFORMER_ENGINE:
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
            # As published: an attention kernel does not keep the scores that selective recomputation would repeat.
            self.recompute = "none"

    def _build_module(self) -> None:
        """Build this rank's part of the model and fill it with random weights."""
        context, config = self.context, self.config
        legacy = self.shape.legacy_layers
        self.module = self.engine.build(
            context,
            self.shape,
            DTYPES[config["precision"]],
            of_2024=legacy,
            attention=self.attention,
            norm=self.norm,
            layers=self.layers,
            **self._settings(),
        )
        if legacy:
            add_residuals_as_published(self.module)
        shapes = weights_format.shapes(config["model"])
        read_random = parts.random_tensors(
            self.shape, shapes, config["seed"], self.device, context.spool.beat, scaled=True
        )
        rank_parts = parts.parts_of(
            self.shape,
            context.layout,
            context.layout.coordinates(context.rank),
            joined_norms=self.layers == TRANSFORMER_ENGINE,
        )
        parts.fill(self.module, rank_parts, read_random)

    def _make_trainer(self) -> None:
        # Imported here, since it imports Megatron-Core.
        from flagbench_cases.engines.megatron import training

        train = self.config["train"]
        settings = {name: train[name] for name in training.Hyperparameters._fields}
        hyperparameters = training.Hyperparameters(**settings)
        dtype = DTYPES[self.config["precision"]]
        self.trainer = training.Trainer(self.context, self.module, dtype, hyperparameters)

    def _settings(self) -> dict[str, Any]:
        """Return the settings of Megatron-Core's configuration, except the sizes."""
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
        layout = self.context.layout
        replica = layout.coordinates(self.context.rank).dp
        return data.batches(
            self.set.blocks, self.steps_of_schedule, replica, layout.dp, self.micro_batch_size, self.micro_batches
        )

    def to_device(self, batch: Batch) -> Batch:
        return [tokens.to(self.device, non_blocking=True) for tokens in batch]

    def step(self, batch: Batch) -> float | None:
        return self.trainer.step(batch)

    def scaler_skipped(self) -> bool:
        return bool(self.trainer.skipped_last)

    def work(self, batch: Batch) -> Work:
        samples = self.batch_size
        length = batch[0].shape[1] - 1
        tokens = samples * length
        model = flops.padded(self.config["model"], self.context.layout.tp)
        step_flops = flops.llama(model, flops.batch_of(samples, length))
        recomputed = 0.0
        if self.recompute == "full":
            recomputed = float(step_flops.layers)
        elif self.recompute == "selective":
            # The two matmuls of attention, of queries and keys and of scores and values: 2 T D FLOPs per token each.
            recomputed = 4.0 * self.shape.layers * tokens * length * self.shape.dim
        return Work(
            samples=samples,
            published_samples=samples,
            tokens=tokens,
            tokens_useful=tokens,
            flops_executed=float(step_flops.executed),
            flops_useful=float(step_flops.executed),
            flops_recomputed=recomputed,
        )

    def evaluate(self, last: bool) -> None:
        """The publisher evaluates nothing."""

    def training_facts(self) -> dict[str, Any]:
        facts = self.trainer.facts()
        if self.context.layout.pp > 1:
            facts["predicted_bubble"] = self.predicted_bubble
        return facts

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        # The data need no state, since the batches follow from the number of the step.
        return self.trainer.state()

    def state_owner(self, rank: int) -> int:
        if self.config["train"]["distributed_optimizer"]:
            return rank
        # The ranks of a data-parallel group have the same state, which the first of them saves.
        for ranks in self.context.layout.groups("dp"):
            if rank in ranks:
                return ranks[0]
        raise ValueError(f"the layout has no rank {rank}")

    def check_state(self, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        self.trainer.check_state(tensors, facts)

    def restore(self, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        self.trainer.restore(tensors, facts)

    @property
    def predicted_bubble(self) -> float:
        """The share of a pipeline's time in which a stage waits, if all stages are equally fast.

        It is (p - 1) / (m + p - 1) for p stages and m micro-batches (Narayanan et al., SC 2021). The time of the
        optimizer is not included, like in the measured bubble.
        """
        stages = self.context.layout.pp
        return (stages - 1) / (self.micro_batches + stages - 1)

    def describe(self) -> dict[str, Any]:
        config, train = self.config, self.config["train"]
        layer_conditions: dict[str, Any] = {}
        if not self.shape.legacy_layers:
            layer_conditions.update(layers=self.shape.layers, dropout=self.shape.dropout)
            layer_conditions.update(transformer=self.layers, pointwise=self.pointwise)
        betas = f"{train['beta1']:g}/{train['beta2']:g}"
        optimizer = f"AdamW(betas={betas}, eps={train['epsilon']:g}, weight_decay={train['weight_decay']:g})"
        if train["distributed_optimizer"]:
            optimizer += ", distributed"
        length = f"{train['schedule_samples']} samples, warm-up {train['warmup_share']:g}"
        return {
            "conditions": {
                "model": self.shape.name,
                **layer_conditions,
                "sequence_length": config["data"]["sequence_length"],
                "batch_size": self.micro_batch_size,
                "gradient_accumulation_steps": self.micro_batches,
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
    """Make the layers of a stage run the publisher's dropout with p = 0 before they add to the residual stream.

    The publisher adds in TorchScript, which runs even such a dropout: it writes its output and a mask of bytes, which
    is kept for the backward pass. Called from Python, torch skips it.
    """
    for layer in module.decoder.layers:
        layer.self_attn_bda = layer.mlp_bda = _residual_adder


def _residual_adder(training: bool, fused: bool) -> Callable[..., torch.Tensor]:
    """Return a function for Megatron-Core's bias-dropout-add without a bias.

    It takes the pair (output, None), the residual and p, and returns the sum of output and residual.
    """

    def add(output: tuple[torch.Tensor, None], residual: torch.Tensor, probability: float) -> torch.Tensor:
        if not training:
            return residual + output[0]
        return residual + torch.native_dropout(output[0], probability, True)[0]

    return add


def build(context: Context) -> PretrainingWorkload:
    """Build the workload; called by flagbench_cases.rank.run."""
    return PretrainingWorkload(context)
