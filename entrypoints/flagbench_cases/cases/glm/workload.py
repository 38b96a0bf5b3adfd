"""GLM on ReCoRD as in FlagPerf's code.

Unusual choices are the publisher's and are listed under `quirks` in the case manifest.
"""

from __future__ import annotations

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
from flagbench_cases.contract import Context, Evaluation, TrainWorkload, Work, measure, require_full_batch
from flagbench_cases.engines.data_parallel import data_parallel
from flagbench_cases.shared.errors import DataError
from flagbench_core import flops

# Number of candidates evaluated at a time.
SEGMENT = 10
OPTIMIZER = "AdamW(betas=%g/%g, eps=%g, weight_decay=%g)%s, clip %.1f"
DROPOUTS = ("dropout", "attention_dropout", "embedding_dropout")
F1_NOTE = "mean over examples of the chosen candidate's F1, over %s"


class EvaluationOrder(Sampler):
    """This rank's share of the evaluation set, in order. The first examples are repeated to make all shares equal."""

    def __init__(self, examples: int, rank: int, world: int) -> None:
        self.examples = examples
        share = -(-examples // world)
        self.positions = [rank + world * i for i in range(share)]

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[int]:
        return iter(position % self.examples for position in self.positions)

    def counts(self, first: int, size: int) -> list[bool]:
        """For each of `size` examples from `first` on, whether it is not a repetition."""
        return [position < self.examples for position in self.positions[first : first + size]]


class GlmWorkload(TrainWorkload):
    """GLM on ReCoRD; see `TrainWorkload` for its methods."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.config = context.config
        self.device = context.device.torch
        self.half = self.config["precision"] == "fp16"

    def setup(self) -> None:
        context, config = self.context, self.config
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
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
        length, positions = self.config["data"]["sequence_length"], self.config["model"]["positions"]
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
        rest = (self.schedule, train["weight_decay"], train["clip_norm"])
        if self.half:
            scaler = LossScaler(
                train["loss_scale"],
                train["loss_scale_window"],
                train["loss_scale_hysteresis"],
                train["loss_scale_min"],
            )
            self.optimizer: Optimizer = MasterOptimizer(self.module, *rest, scaler)
        else:
            self.optimizer = Optimizer(self.module, *rest)
        self._not_finite = 0
        self._updated = True

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
            self._updated = self.optimizer.update()
        else:
            self._updated = False
            self._not_finite += 1
        return value

    def after_step(self) -> None:
        """The publisher's logging: after its clocks have stopped it formats and reads this device's loss, which waits
        for the update."""
        str(self._loss)
        self._loss.item()

    def scaler_skipped(self) -> bool:
        return self.config["precision"] == "fp16" and not self._updated

    def work(self, batch: dataset.Batch) -> Work:
        model = self.config["model"]
        samples, choices, length = batch.tokens.shape
        sequences = samples * choices
        # With numpy, since torch operators would be counted as part of the step.
        mask, target_mask, sep = (part.numpy() for part in (batch.choice_mask, batch.target_mask, batch.sep))
        targets = target_mask.sum(2)  # [B, C]
        lengths = (sep + targets) * mask
        executed = flops.glm(model, flops.batch_of(sequences, length))
        # Useful: the choices that a sample has, each with a copy of the passage, and the positions that count.
        squared = int((lengths.astype(np.float64) ** 2).sum())
        unpadded = flops.Batch(sequences, int(lengths.sum()), squared, int((targets * mask).sum()))
        recomputed = executed.layers if model["recompute"] else 0
        return Work(
            samples,
            self.config["train"]["batch_size"],
            batch.tokens.numel(),
            int(batch.useful.numpy().sum()),
            float(executed.executed),
            float(flops.glm(model, unpadded).executed),
            float(recomputed),
        )

    def evaluate(self, last: bool) -> Evaluation:
        self.module.eval()
        spool, evaluation = self.context.spool, self.sets.evaluation
        totals = [0.0] * 5  # right, F1 and examples without repetitions; right and examples with repetitions
        done = 0
        with torch.no_grad():
            for index, batch in enumerate(self.eval_loader):
                chosen = self._choose(batch)
                for counts, row, choice in zip(self.order.counts(done, len(chosen)), range(len(chosen)), chosen):
                    right = float(batch.answers[row, choice])
                    totals[3] += right
                    totals[4] += 1
                    if counts:
                        totals[0] += right
                        totals[1] += evaluation.f1(int(batch.index[row]), choice)
                        totals[2] += 1
                done += len(chosen)
                spool.progress(index + 1, len(self.eval_loader))
        self.module.train()
        shared = torch.tensor(totals, dtype=torch.float64, device=self.device)
        if self.context.world > 1:
            dist.all_reduce(shared)
        right, f1, examples, published_right, published_examples = shared.tolist()
        published = published_right / published_examples
        extra = [measure("f1", f1 / examples, "fraction", F1_NOTE % self.sets.f1_over)]
        return Evaluation(right / examples, published, int(examples), deciding=published, extra=extra)

    def _choose(self, batch: dataset.Batch) -> list[int]:
        """The choice with the highest score of each example, never a padding choice."""
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
        return dict(self.optimizer.facts(), **kernels, losses_not_finite=self._not_finite)

    def describe(self) -> dict[str, Any]:
        config, sets = self.config, self.sets
        train, model = config["train"], config["model"]
        cadence = "every epoch"
        if train["evaluate_every_samples"] is not None:
            cadence = f"every {train['evaluate_every_samples']} samples"
        if config["eval"]["initial"]:
            cadence += ", first before training"
        masters = ", fp32 masters" if self.half else ""
        guessing = {}
        if config["data"]["source"] != "synthetic":
            guessing["chance"] = chance(sets.evaluation)
        return {
            **guessing,
            "conditions": {
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
            },
            "data": {
                "train_examples": len(sets.train),
                "eval_examples": len(sets.evaluation),
                "train_sha256": sets.train.digest(),
                "eval_sha256": sets.evaluation.digest(),
                "mean_choices": float(sets.train.choices.mean()),
                "eval_mean_choices": float(sets.evaluation.choices.mean()),
                "mean_length": float(sets.train.lengths.mean()),
                "f1_over": sets.f1_over,
                "weights": self.weights_digest,
            },
            "parameters": sum(p.numel() for p in self.module.parameters()),
        }


def chance(evaluation: dataset.ClozeSet) -> float:
    """The accuracy of guessing: the mean fraction of right answers among the choices."""
    right = np.add.reduceat(evaluation.examples.arrays["right"].astype(np.int64), evaluation.starts[:-1])
    return float((right / evaluation.choices).mean())


def load_checkpoint(model: GlmForCloze, folder: str) -> str:
    """Load weights written by `flagbench prepare glm`; returns the folder's digest.

    Raises DataError for a missing tensor or a wrong shape.
    """
    from flagbench_cases.cases.glm.prepare import WEIGHTS_FORMAT
    from flagbench_cases.prepare import prepared_folder, weights

    place = prepared_folder.open_folder(folder, "glm", "weights", (WEIGHTS_FORMAT,))
    remedy = "prepare the complete checkpoint of this preset's model"
    weights.load_into(model, dict(weights.iter_tensors(place.folder)), folder, remedy)
    return place.digest


def build(context: Context) -> GlmWorkload:
    """The workload of a configuration."""
    return GlmWorkload(context)
