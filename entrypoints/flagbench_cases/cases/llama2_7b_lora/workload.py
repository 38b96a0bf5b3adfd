"""Fine-tunes Llama2-7B with LoRA on samsum, with the operators, order and synchronisations of FlagPerf's code.

The loop in flagbench_cases.rank calls the methods of LlamaLoraWorkload and times them. Unusual choices are those of
FlagPerf, the publisher, and are listed under `quirks` in the case manifest.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any, Iterable, Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler

from flagbench_cases.cases.llama2_7b_lora import data, lora, model
from flagbench_cases.cases.llama2_7b_lora.engine import TorchEngine, open_engine, refuse
from flagbench_cases.cases.llama2_7b_lora.evaluate import mmlu_accuracy, sum_over_ranks, validation_loss
from flagbench_cases.cases.llama2_7b_lora.memory_monitor import monitored
from flagbench_cases.cases.llama2_7b_lora.progress_bar import EpochBar
from flagbench_cases.cases.llama2_7b_lora.random_weights import RandomWorkload
from flagbench_cases.contract import Context, Evaluation, TrainWorkload, Work, extra_result
from flagbench_cases.prepare.llama import load
from flagbench_cases.shared.errors import DataError
from flagbench_core import flops

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""The dtype of the model by precision; fp32 for others."""


class EpochLosses:
    """The mean training loss of each epoch: of this rank during training, of all ranks after `all_reduce`."""

    def __init__(self) -> None:
        self.sums: dict[int, list[float]] = {}
        """The sum of the losses of each epoch's steps, and the number of steps."""

    def add(self, epoch: int, loss: float) -> None:
        """Count one step's loss."""
        entry = self.sums.setdefault(epoch, [0.0, 0.0])
        entry[0] += loss
        entry[1] += 1

    def all_reduce(self, device: torch.device, world: int) -> None:
        """Replace this rank's sums by the means over all ranks. Must be called by all ranks."""
        for epoch in sorted(self.sums):
            self.sums[epoch] = [value / world for value in sum_over_ranks(self.sums[epoch], device, world)]

    def means(self) -> list[float]:
        """Return the mean loss of each epoch, in nats per token."""
        return [self.sums[epoch][0] / self.sums[epoch][1] for epoch in sorted(self.sums)]

    def published_loss(self) -> float:
        """Return the publisher's training loss: the mean of the epochs' mean losses."""
        means = self.means()
        return sum(means) / len(means)


class LlamaLoraWorkload(TrainWorkload):
    """LoRA on samsum; see `TrainWorkload` for its methods."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.config = context.config
        self.device = context.device.torch_device
        self.place = (context.rank, context.world)
        """The rank and the number of ranks."""
        # The memory monitor and the progress bar are part of the published step, and so of its engine.
        self.as_published = self.config["engine"]["name"] == "torch"
        self.has_monitor = self.config["train"]["memory_monitor"] and self.as_published
        self.losses = EpochLosses()
        self.weights_digest: str | None = None
        self._epoch = 0

    def setup(self) -> None:
        context, config, beat = self.context, self.config, self.context.spool.beat
        refuse(config, self.device, context.world)
        self.shape = model.shape_from(config["model"])
        self.sets = data.load(config["data"], config["model"], context.data, config["seed"])
        beat()
        self._make_model()
        beat()
        torch.manual_seed(config["seed"])  # for dropout, the same on every rank
        self.engine = open_engine(context, self.module, self.parameters)
        self._make_loader()
        beat()

    def _make_model(self) -> None:
        base = self._build_base()
        self.context.spool.beat()
        torch.manual_seed(self.config["seed"])  # the same initial adapters on every rank
        self.module: Any = lora.attach(base, self.shape, self.config["train"]["recompute"])
        self.parameters = lora.adapters(self.module)

    def _build_base(self) -> Any:
        """Build the base model with the configured weights; `weights` says which."""
        context, config = self.context, self.config
        base = model.build(self.shape, DTYPES.get(config["precision"], torch.float32), self.device)
        if context.weights is not None:
            self.weights = "pretrained"
            self.weights_digest = model.load_prepared(base, context.weights, config["model"], context.spool.beat)
        elif config["data"]["source"] == "shipped":
            self.weights = "shipped"
            model.fill(base, load.Weights(os.path.join(data.TINY, "weights"), config["model"]), context.spool.beat)
        else:
            self.weights = "random"
            model.initialise(base, self.shape, config["seed"])
        return base

    def _make_loader(self) -> None:
        config = self.config
        rank, world = self.place
        sampler: Any = None
        if world > 1:
            sampler = DistributedSampler(self.sets.train, world, rank, shuffle=False, drop_last=True)
        self.loader = DataLoader(
            self.sets.train,
            batch_size=config["train"]["batch_size"],
            sampler=sampler,
            shuffle=False,
            drop_last=True,
            num_workers=config["data"]["workers"],
            collate_fn=data.batch_of,
            pin_memory=self.device.type == "cuda",
            # A separate generator: the loader draws a seed each epoch, which must be the same in a resumed run.
            generator=torch.Generator().manual_seed(config["seed"]),
        )

    def describe(self) -> dict[str, Any]:
        sets, config, train = self.sets, self.config, self.config["train"]
        shape, adapters = self.shape, self.shape.lora
        scale = f"r={adapters.r}, alpha={adapters.alpha:g}, dropout={adapters.dropout:g}"
        questions = 0 if sets.mmlu is None else len(sets.mmlu)
        return {
            **guessing_accuracy(sets.mmlu),
            "conditions": {
                "model": shape.name,
                "sequence_length": config["data"]["sequence_length"],
                "batch_size": train["batch_size"],
                "recompute": train["recompute"],
                "optimizer": self.engine.condition,
                "lora": f"{scale}, {'+'.join(lora.TARGETS)}",
                "engine": self.engine.name,
                "learning_rate": train["learning_rate"],
                "schedule": f"x{train['gamma']:g} every epoch",
                "max_epochs": train["max_epochs"],
                "workers": config["data"]["workers"],
                "memory_monitor": self.has_monitor,
                "data": sets.condition,
                "mmlu": sets.mmlu_condition,
                "weights": self.weights,
                "transformers": metadata.version("transformers"),
                "peft": metadata.version("peft"),
            },
            "data": dict(
                sets.facts,
                train_blocks=len(sets.train),
                validation_blocks=len(sets.validation),
                train_sha256=sets.train.digest(),
                weights=self.weights_digest,
                mmlu_items=questions,
            ),
            "parameters": sum(parameter.numel() for parameter in self.module.parameters()),
        }

    def steps_per_epoch(self) -> int:
        return len(self.loader)

    def batches(self, epoch: int) -> Iterable[Any]:
        train = self.config["train"]
        self._epoch = epoch
        self.engine.begin(train["learning_rate"] * train["gamma"] ** epoch)
        self.module.train()
        batches = self._with_progress_bar(epoch) if self.as_published else self.loader
        if not self.has_monitor:
            return batches
        return monitored(batches, self.context.device)

    def _with_progress_bar(self, epoch: int) -> Iterator[Any]:
        """Return the batches of an epoch, with the publisher's progress bar, which the engine updates."""
        engine = self.engine
        assert isinstance(engine, TorchEngine)  # the only one that is as published
        with EpochBar(epoch, self.config["train"]["max_epochs"], len(self.loader)) as engine.bar:
            yield from self.loader

    def to_device(self, batch: Any) -> Any:
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def step(self, batch: Any) -> float:
        loss = self.engine.step(batch)
        self.losses.add(self._epoch, loss)
        return loss

    def scaler_skipped(self) -> bool:
        return self.config["precision"] == "fp16" and bool(self.engine.poll_skipped())

    def work(self, batch: Any) -> Work:
        samples, length = batch["input_ids"].shape
        tokens = samples * length
        step_flops = flops.llama_lora(self.config["model"], flops.batch_of(samples, length))
        recomputed = 0
        if self.config["train"]["recompute"]:
            recomputed = model.recomputed_flops(self.shape, step_flops, tokens)
        return Work(
            samples=samples,
            published_samples=samples,
            tokens=tokens,
            tokens_useful=tokens,  # blocks are not padded
            flops_executed=float(step_flops.executed),
            flops_useful=float(step_flops.executed),
            flops_recomputed=float(recomputed),
        )

    def evaluate(self, last: bool) -> Evaluation:
        sets, progress = self.sets, self.context.spool.progress
        self.losses.all_reduce(self.device, self.context.world)
        extra = []
        if self.losses.sums:
            note = f"mean of the mean losses of {len(self.losses.sums)} epochs, as published"
            extra.append(extra_result("loss_as_published", self.losses.published_loss(), "nats", note))
        batch_size = self.config["train"]["batch_size"]
        loss = validation_loss(self.module, sets.validation, batch_size, self.device, self.place, progress)
        if loss is not None:
            note = f"{len(sets.validation)} blocks, each evaluated once, dropout disabled"
            extra.append(extra_result("val_loss", loss, "nats", note))
        if not last or sets.mmlu is None:
            return Evaluation(None, None, len(sets.validation), None, extra)
        accuracy = mmlu_accuracy(self.module, sets.mmlu, self.device, self.place, False, progress)
        published = None
        if self.config["eval"]["mmlu_train_mode"]:
            published = mmlu_accuracy(self.module, sets.mmlu, self.device, self.place, True, progress)
        return Evaluation(accuracy, published, len(sets.mmlu), accuracy, extra)

    def training_facts(self) -> dict[str, Any]:
        # A window of steps has no complete epochs for the publisher's loss.
        epoch_losses: list[float] = []
        published_loss = None
        if self.config["train"]["window_steps"] is None and self.losses.sums:
            epoch_losses = self.losses.means()
            published_loss = self.losses.published_loss()
        questions = None
        if self.sets.mmlu is not None:
            questions = self.sets.mmlu.digest()
        facts = {
            "engine": self.engine.name,
            "trainable_parameters": self.shape.adapter_parameters,
            "attention": model.ATTENTION,
            "weights_type": type_name(self.module.lm_head.weight),
            "adapters_type": type_name(next(iter(self.parameters.values()))),
            "validation_sha256": self.sets.validation.digest(),
            "mmlu_sha256": questions,
            "epoch_mean_losses": epoch_losses,
            "loss_as_published": published_loss,
        }
        facts.update(self.engine.facts())
        return facts

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        # The learning rate is not saved, since it follows from the epoch. All ranks save after the same step, so that
        # the all-reduce does not hang.
        self.losses.all_reduce(self.device, self.context.world)
        tensors, facts = self.engine.state()
        sums = {str(epoch): entry for epoch, entry in self.losses.sums.items()}
        return tensors, dict(facts, epoch_losses=sums)

    def restore(self, tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        try:
            sums = {}
            for epoch, (loss, steps) in facts["epoch_losses"].items():
                sums[int(epoch)] = [float(loss), float(steps)]
            self.engine.restore(tensors, facts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"the checkpoint's facts do not belong to this case ({error})", "resume from another checkpoint"
            ) from error
        self.losses.sums = sums


def type_name(tensor: torch.Tensor) -> str:
    """Return the dtype of a tensor as text, such as "float32"."""
    return str(tensor.dtype).replace("torch.", "")


def guessing_accuracy(mmlu: data.MmluSet | None) -> dict[str, float]:
    """Return `chance`, the accuracy of always choosing the most frequent right letter; empty without questions."""
    if mmlu is None:
        return {}
    return {"chance": float(np.bincount(mmlu.answers).max() / len(mmlu))}


def build(context: Context) -> TrainWorkload:
    """Build the workload of the configured case: Llama2-7B, or another geometry of the family."""
    if context.config["case"] == model.CASE:
        return LlamaLoraWorkload(context)
    return RandomWorkload(context)
