"""Trains GLM on ReCoRD with the operators, the order and the synchronisations of FlagPerf's code, the publisher's.

The loop in flagbench_cases.rank calls the methods of GlmWorkload and times them. Unusual choices are the publisher's
and are listed under `quirks` in the case manifest.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Iterable, Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from flagbench_cases.cases.glm import data as dataset
from flagbench_cases.cases.glm.model import (
    PADDED_EVALUATION,
    GlmForCloze,
    cloze_loss,
    config_from,
    mask_choices,
)
from flagbench_cases.cases.glm.optimizer import BETAS, EPSILON, LossScaler, MasterOptimizer, Optimizer, Schedule
from flagbench_cases.contract import Context, Evaluation, TrainWorkload, Work, extra_result, require_full_batch
from flagbench_cases.engines.data_parallel import data_parallel
from flagbench_cases.shared.errors import DataError
from flagbench_core import flops

SEGMENT = 10
"""Choices of an example evaluated at a time, as published."""
OPTIMIZER = "AdamW(betas=%g/%g, eps=%g, weight_decay=%g)%s, clip %.1f"
"""The `optimizer` condition."""
DROPOUTS = ("dropout", "attention_dropout", "embedding_dropout")
F1_NOTE = "mean over examples of the chosen candidate's F1, over %s"


class EvaluationOrder(Sampler):
    """This rank's share of the evaluation set, in order. The first examples are repeated to make all shares equal."""

    def __init__(self, examples: int, rank: int, world: int) -> None:
        self.examples = examples
        share = -(-examples // world)  # rounded up
        self.positions = [rank + world * i for i in range(share)]

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[int]:
        return iter(position % self.examples for position in self.positions)

    def is_repeated(self, number: int) -> bool:
        """Return whether this rank's example number `number` is a repetition."""
        return self.positions[number] >= self.examples


@dataclasses.dataclass
class EvaluationSums:
    """Sums over the evaluation set. Floats, because they are added over ranks as one tensor."""

    right: float = 0.0
    f1: float = 0.0
    examples: float = 0.0
    right_with_repeats: float = 0.0
    """As the publisher counts, who includes repeated examples."""
    examples_with_repeats: float = 0.0


class GlmWorkload(TrainWorkload):
    """GLM on ReCoRD; see `TrainWorkload` for its methods."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.config = context.config
        self.device = context.device.torch_device
        self.half = self.config["precision"] == "fp16"

    def setup(self) -> None:
        context, config = self.context, self.config
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        self._check_length()
        torch.manual_seed(config["seed"])  # the same initial weights on every rank
        self.sets = dataset.load(config["data"], config["model"], context.data, config["seed"])
        require_full_batch(len(self.sets.train), config["train"]["batch_size"], context.world)
        context.spool.beat()
        model = GlmForCloze(config_from(config["model"]))
        self.weights_digest: str | None = None
        if context.weights is not None:
            self.weights_digest = load_checkpoint(model, context.weights)
        context.spool.beat()
        torch.manual_seed(config["seed"])  # and, as published, the same dropout
        if self.half:
            model = model.half()  # before the master copies are made, which thus start from fp16 values
        self.module: Any = model.to(self.device)
        self._make_optimizer()
        self.network = data_parallel(self.module, context)
        self._make_loaders()

    def _check_length(self) -> None:
        """Raise DataError if the model has too few positions for the sequences."""
        length = self.config["data"]["sequence_length"]
        positions = self.config["model"]["positions"]
        if length >= positions:
            raise DataError(
                f"sequences of {length} tokens need {length + 1} positions, but the model has {positions}",
                "use a preset whose sequence_length fits its model",
            )

    def _make_optimizer(self) -> None:
        train = self.config["train"]
        self.schedule = Schedule(
            train["learning_rate"], train["decay_steps"], train["warmup_share"], train["final_share"]
        )
        settings = (self.schedule, train["weight_decay"], train["clip_norm"])
        if self.half:
            scaler = LossScaler(
                train["loss_scale"],
                train["loss_scale_window"],
                train["loss_scale_hysteresis"],
                train["loss_scale_min"],
            )
            self.optimizer: Optimizer = MasterOptimizer(self.module, *settings, scaler)
        else:
            self.optimizer = Optimizer(self.module, *settings)
        self._not_finite_losses = 0
        self._last_step_updated = True

    def _make_loaders(self) -> None:
        config, context, sets = self.config, self.context, self.sets
        # The order of each epoch is determined by the sampler's own seed, 0, not by the run's.
        self.sampler: DistributedSampler = DistributedSampler(sets.train, context.world, context.rank)
        common = {
            "num_workers": config["data"]["workers"],
            "collate_fn": dataset.collate,
            "pin_memory": self.device.type == "cuda",
        }
        self.loader = DataLoader(sets.train, config["train"]["batch_size"], sampler=self.sampler, **common)
        self.order = EvaluationOrder(len(sets.evaluation), context.rank, context.world)
        self.eval_loader = DataLoader(sets.evaluation, config["eval"]["batch_size"], sampler=self.order, **common)

    def steps_per_epoch(self) -> int:
        return len(self.loader)

    def batches(self, epoch: int) -> Iterable[Any]:
        self.sampler.set_epoch(epoch)
        return self.loader

    def to_device(self, batch: dataset.Batch) -> dataset.Batch:
        """Copy inputs and labels synchronously; answers, indices and lengths stay on the host."""
        names = ("tokens", "positions", "sep", "targets", "target_mask", "choice_mask", "labels")
        return batch._replace(**{name: getattr(batch, name).to(self.device) for name in names})

    def step(self, batch: dataset.Batch) -> float:
        """Run one step. Returns the mean loss over all ranks, for which the publisher synchronises before backward.

        There is no synchronisation after the update: the publisher's clocks stop before it.
        """
        self.network.train()
        scores = self.network(batch.tokens, batch.positions, batch.sep, batch.targets, batch.target_mask)
        loss = cloze_loss(scores, batch.choice_mask, batch.labels)
        loss /= 1  # the number of accumulated steps, as published
        reduced = loss.detach().clone().view(1)
        if self.context.world > 1:
            dist.all_reduce(reduced)
        value = float((reduced / self.context.world).float().sum())
        self._loss = loss
        if math.isfinite(value):
            self.optimizer.backward(loss)
            self.context.probe.backward_done()
            self._last_step_updated = self.optimizer.update()
        else:
            self._last_step_updated = False
            self._not_finite_losses += 1
        return value

    def after_step(self) -> None:
        """Repeat the publisher's logging: after its clocks have stopped, it formats and reads this device's loss.

        Both wait for the update.
        """
        str(self._loss)
        self._loss.item()

    def scaler_skipped(self) -> bool:
        return self.half and not self._last_step_updated

    def work(self, batch: dataset.Batch) -> Work:
        model = self.config["model"]
        samples, choices, length = batch.tokens.shape
        sequences = samples * choices
        # With numpy, since torch operators would be counted as part of the step.
        mask = batch.choice_mask.numpy()  # [B, C]
        targets = batch.target_mask.numpy().sum(2)  # [B, C]
        lengths = (batch.sep.numpy() + targets) * mask
        executed = flops.glm(model, flops.batch_of(sequences, length))
        # Useful: the choices that a sample has, each with a copy of the passage, and the positions that count.
        squared = int((lengths.astype(np.float64) ** 2).sum())
        unpadded = flops.Batch(sequences, int(lengths.sum()), squared, int((targets * mask).sum()))
        recomputed = executed.layers if model["recompute"] else 0
        return Work(
            samples=samples,
            published_samples=self.config["train"]["batch_size"],
            tokens=batch.tokens.numel(),
            tokens_useful=int(batch.useful.numpy().sum()),
            flops_executed=float(executed.executed),
            flops_useful=float(flops.glm(model, unpadded).executed),
            flops_recomputed=float(recomputed),
        )

    def evaluate(self, last: bool) -> Evaluation:
        self.module.eval()
        sums = EvaluationSums()
        done = 0
        with torch.no_grad():
            for index, batch in enumerate(self.eval_loader):
                choices = self._choose(batch)
                self._add_choices(sums, batch, choices, done)
                done += len(choices)
                self.context.spool.progress(index + 1, len(self.eval_loader))
        self.module.train()
        shared = torch.tensor(dataclasses.astuple(sums), dtype=torch.float64, device=self.device)
        if self.context.world > 1:
            dist.all_reduce(shared)
        total = EvaluationSums(*shared.tolist())
        published = total.right_with_repeats / total.examples_with_repeats
        return Evaluation(
            accuracy=total.right / total.examples,
            published_accuracy=published,
            counted=int(total.examples),
            stop_accuracy=published,
            extra=[extra_result("f1", total.f1 / total.examples, "fraction", F1_NOTE % self.sets.f1_over)],
        )

    def _add_choices(self, sums: EvaluationSums, batch: dataset.Batch, choices: list[int], first: int) -> None:
        """Add the chosen answers of a batch to the sums. `first`: the number of its first example on this rank."""
        for row, choice in enumerate(choices):
            right = float(batch.answers[row, choice])
            sums.right_with_repeats += right
            sums.examples_with_repeats += 1
            if not self.order.is_repeated(first + row):
                sums.right += right
                sums.f1 += self.sets.evaluation.f1(int(batch.index[row]), choice)
                sums.examples += 1

    def _choose(self, batch: dataset.Batch) -> list[int]:
        """Return the choice with the highest score of each example, never a padding choice."""
        batch = self.to_device(batch)
        inputs = (batch.tokens, batch.positions, batch.sep, batch.targets, batch.target_mask)
        pieces = [
            self.module(*(tensor[:, first : first + SEGMENT] for tensor in inputs))
            for first in range(0, batch.tokens.size(1), SEGMENT)
        ]
        scores = mask_choices(torch.cat(pieces, dim=1), batch.choice_mask, PADDED_EVALUATION)
        return scores.argmax(1).tolist()

    def training_facts(self) -> dict[str, Any]:
        norm = type(self.module.transformer.final_layernorm)
        kernels = {"layer_norm": "torch" if norm is torch.nn.LayerNorm else "apex"}
        return dict(self.optimizer.facts(), **kernels, losses_not_finite=self._not_finite_losses)

    def describe(self) -> dict[str, Any]:
        config, sets = self.config, self.sets
        facts: dict[str, Any] = {}
        if config["data"]["source"] != "synthetic":
            facts["chance"] = guessing_accuracy(sets.evaluation)
        facts["conditions"] = self._conditions()
        facts["data"] = {
            "train_examples": len(sets.train),
            "eval_examples": len(sets.evaluation),
            "train_sha256": sets.train.digest(),
            "eval_sha256": sets.evaluation.digest(),
            "mean_choices": float(sets.train.choices.mean()),
            "eval_mean_choices": float(sets.evaluation.choices.mean()),
            "mean_length": float(sets.train.lengths.mean()),
            "f1_over": sets.f1_over,
            "weights": self.weights_digest,
        }
        facts["parameters"] = sum(parameter.numel() for parameter in self.module.parameters())
        return facts

    def _conditions(self) -> dict[str, Any]:
        """Return the facts that are compared with the conditions of a published result."""
        config, sets = self.config, self.sets
        train, model = config["train"], config["model"]
        cadence = "every epoch"
        if train["evaluate_every_samples"] is not None:
            cadence = f"every {train['evaluate_every_samples']} samples"
        if config["eval"]["initial"]:
            cadence += ", first before training"
        masters = ", fp32 masters" if self.half else ""
        return {
            "model": model["name"],
            "sequence_length": config["data"]["sequence_length"],
            "batch_size": train["batch_size"],
            "choices": sets.choices_condition,
            "recompute": model["recompute"],
            "optimizer": OPTIMIZER % (*BETAS, EPSILON, train["weight_decay"], masters, train["clip_norm"]),
            "dropout": "/".join(f"{model[name]:g}" for name in DROPOUTS),
            "workers": config["data"]["workers"],
            "evaluation_cadence": cadence,
            "eval_batch_size": config["eval"]["batch_size"],
            "learning_rate": train["learning_rate"],
            "schedule": self.schedule.describe(),
            "data": sets.condition,
            "weights": config["weights"],
        }


def guessing_accuracy(evaluation: dataset.ClozeSet) -> float:
    """Return the accuracy of guessing: the mean fraction of right answers among the choices of an example."""
    right = np.add.reduceat(evaluation.examples.arrays["right"].astype(np.int64), evaluation.starts[:-1])
    return float((right / evaluation.choices).mean())


def load_checkpoint(model: GlmForCloze, folder: str) -> str:
    """Load weights written by `flagbench prepare glm`; returns the folder's digest.

    Raises DataError for a missing tensor or a wrong shape.
    """
    from flagbench_cases.cases.glm.prepare import WEIGHTS_FORMAT
    from flagbench_cases.prepare import prepared_folder, weights

    prepared = prepared_folder.open_folder(folder, "glm", "weights", (WEIGHTS_FORMAT,))
    remedy = "prepare the complete checkpoint of this preset's model"
    weights.load_into(model, dict(weights.iter_tensors(prepared.folder)), folder, remedy)
    return prepared.digest


def build(context: Context) -> GlmWorkload:
    """Build the workload of a configuration."""
    return GlmWorkload(context)
