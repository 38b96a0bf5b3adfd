"""Fine-tunes DistilBERT on SST-2 with the operators, the order and the synchronisations of FlagPerf's code.

The loop in flagbench_cases.rank calls the methods of DistilBertWorkload and times them. Unusual choices are those of
FlagPerf, the publisher, and are listed under `quirks` in the case manifest.
"""

from __future__ import annotations

from typing import Any, Iterable

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

from flagbench_cases.cases.distilbert import data as sst2
from flagbench_cases.cases.distilbert.model import DistilBertClassifier, config_from
from flagbench_cases.contract import Context, Evaluation, TrainWorkload, Work, require_full_batch
from flagbench_cases.engines.data_parallel import data_parallel
from flagbench_cases.engines.precision_switches import autocast
from flagbench_cases.prepare import weights as checkpoints
from flagbench_cases.shared.errors import DataError
from flagbench_core import flops

CONFIG_KEYS = {
    "n_layers": "layers",
    "dim": "dim",
    "n_heads": "heads",
    "hidden_dim": "hidden_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
}
"""Keys of a checkpoint's config.json, each with the key of the manifest's `model` section that must agree."""
OPTIMIZER = "AdamW(betas=0.9/0.999, eps=1e-08, weight_decay=%g)"
"""The `optimizer` condition; betas and epsilon are torch's defaults."""
DROPOUTS = ("dropout", "attention_dropout", "classifier_dropout")
SCHEDULE = "linear to zero over max_epochs, a step per micro-batch, no warm-up"
"""The `schedule` condition."""
WITHOUT_DECAY = ("bias", "LayerNorm.weight", "layer_norm.weight")
"""Endings of the names of parameters without weight decay."""


class EvaluationSet(torch.utils.data.Dataset):
    """This rank's share of the evaluation set. Each example also has a flag: 1 if it counts, 0 if it is repeated.

    The publisher pads the set to a multiple of the ranks by repeating its first examples. The same work is done here,
    but repeated examples count only in the publisher's accuracy.
    """

    def __init__(self, sentences: sst2.SentenceSet, rank: int, world: int) -> None:
        share = -(-len(sentences) // world)  # rounded up
        self._positions = [rank + world * i for i in range(share)]
        self._sentences = sentences

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        position = self._positions[index]
        counts = torch.tensor(float(position < len(self._sentences)))
        return (*self._sentences[position % len(self._sentences)], counts)


class DistilBertWorkload(TrainWorkload):
    """DistilBERT on SST-2; see `TrainWorkload` for its methods."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.config = context.config
        self.device = context.device.torch_device
        self._micro_steps = 0

    def setup(self) -> None:
        context, config = self.context, self.config
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.manual_seed(config["seed"])  # the same initial weights on every rank
        self.sets = sst2.load(config["data"], config["model"], context.data, context.weights, config["seed"])
        require_full_batch(len(self.sets.train), config["train"]["batch_size"], context.world)
        model = DistilBertClassifier(config_from(config["model"]))
        if context.weights is not None:
            load_checkpoint(model, context.weights, config["model"])
        context.spool.beat()
        torch.manual_seed(config["seed"])  # and, as published, the same dropout
        self.module = model.to(self.device)
        self.network = data_parallel(self.module, context)
        self._make_loaders()
        self._make_optimizer()

    def describe(self) -> dict[str, Any]:
        sets, train, model = self.sets, self.config["train"], self.config["model"]
        return {
            "conditions": {
                "model": model["name"],
                "sequence_length": self.config["data"]["sequence_length"],
                "batch_size": train["batch_size"],
                "gradient_accumulation_steps": train["gradient_accumulation_steps"],
                "recompute": False,
                "optimizer": OPTIMIZER % train["weight_decay"],
                "learning_rate": train["learning_rate"],
                "schedule": SCHEDULE,
                "max_epochs": train["max_epochs"],
                "dropout": "/".join(f"{model[name]:g}" for name in DROPOUTS),
                "workers": self.config["data"]["workers"],
                "eval_batch_size": self.config["eval"]["batch_size"],
                "data": sets.condition,
                "weights": self.config["weights"],
            },
            "data": {
                "train_examples": len(sets.train),
                "eval_examples": len(sets.evaluation),
                "train_sha256": sets.train.digest(),
                "eval_sha256": sets.evaluation.digest(),
                "mean_length": float(sets.train.lengths.mean()),
            },
            "parameters": sum(p.numel() for p in self.module.parameters()),
            # Guessing the more frequent class of the evaluation set, which even a model without input would learn.
            "chance": float(np.bincount(sets.evaluation.labels).max() / len(sets.evaluation)),
        }

    def _make_loaders(self) -> None:
        config, context = self.config, self.context
        # set_epoch is not called, as published: with several ranks, every epoch has the same order.
        sampler: Any = None
        if context.world > 1:
            sampler = DistributedSampler(self.sets.train, context.world, context.rank, seed=config["seed"])
        self.loader = DataLoader(
            self.sets.train,
            batch_size=config["train"]["batch_size"],
            sampler=sampler,
            shuffle=sampler is None,
            num_workers=config["data"]["workers"],
        )
        self.eval_loader = DataLoader(
            EvaluationSet(self.sets.evaluation, context.rank, context.world),
            batch_size=config["eval"]["batch_size"],
            num_workers=config["data"]["workers"],
        )

    def _make_optimizer(self) -> None:
        train = self.config["train"]
        decayed = []
        not_decayed = []
        for name, parameter in self.module.named_parameters():
            if name.endswith(WITHOUT_DECAY):
                not_decayed.append(parameter)
            else:
                decayed.append(parameter)
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": not_decayed, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=train["learning_rate"], weight_decay=train["weight_decay"])
        total_steps = len(self.loader) * train["max_epochs"]
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: max(0.0, 1 - step / total_steps)
        )
        self.accumulation_steps = train["gradient_accumulation_steps"]

    def steps_per_epoch(self) -> int:
        return len(self.loader)

    def batches(self, epoch: int) -> Iterable[Any]:
        return self.loader

    def to_device(self, batch: Any) -> Any:
        return [tensor.to(self.device, non_blocking=True) for tensor in batch]

    def step(self, batch: Any) -> float:
        input_ids, mask, labels = batch
        self.network.train()
        with autocast(self.device, self.config["precision"]):
            logits = self.network(input_ids, mask)
            loss = F.cross_entropy(logits.view(-1, logits.size(1)), labels.view(-1))
        value = loss.item()  # the publisher's own synchronisation, before the backward pass
        if self.accumulation_steps > 1:
            loss = loss / self.accumulation_steps
        loss.backward()
        self.context.probe.backward_done()
        self._micro_steps += 1
        if self._micro_steps % self.accumulation_steps == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.schedule.step()
        return value

    def work(self, batch: Any) -> Work:
        _, mask, _ = batch
        model = self.config["model"]
        samples, length = mask.shape
        lengths = mask.numpy().sum(1)  # not with torch operators, which would be counted as part of the step
        tokens = int(lengths.sum())
        unpadded = flops.Batch(samples, tokens, int((lengths * lengths).sum()), tokens)
        return Work(
            samples=samples,
            published_samples=self.config["train"]["batch_size"],
            tokens=mask.numel(),
            tokens_useful=tokens,
            flops_executed=float(flops.distilbert(model, flops.batch_of(samples, length)).executed),
            flops_useful=float(flops.distilbert(model, unpadded).executed),
        )

    def evaluate(self, last: bool) -> Evaluation:
        self.network.eval()
        spool = self.context.spool
        # Right answers without repeated examples, right answers with them, and examples without repeated ones.
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for index, batch in enumerate(self.eval_loader):
                input_ids, mask, labels, counts = self.to_device(batch)
                with autocast(self.device, self.config["precision"]):
                    logits = self.network(input_ids, mask)  # also broadcasts the buffers
                right = (logits.argmax(1) == labels).double()
                share = torch.stack([(right * counts).sum(), right.sum(), counts.double().sum()])
                if self.context.world > 1:
                    dist.all_reduce(share)  # at every step, as published
                sums += share
                spool.progress(index + 1, len(self.eval_loader))
        self.network.train()
        counted_right, right_with_repeats, examples = sums.tolist()
        published = right_with_repeats / len(self.sets.evaluation)
        return Evaluation(
            accuracy=counted_right / examples,
            published_accuracy=published,
            counted=int(examples),
            # The publisher stopped on its own accuracy; ours would train longer with some numbers of ranks.
            stop_accuracy=published,
        )


def load_checkpoint(model: DistilBertClassifier, folder: str, section: dict[str, Any]) -> None:
    """Load the model's weights from a checkpoint folder; only the classification head may be missing."""
    config = checkpoints.read_config(folder)
    for config_key, key in CONFIG_KEYS.items():
        if config_key in config and config[config_key] != section[key]:
            raise DataError(
                f"{folder}/config.json has {config_key} = {config[config_key]}, but this preset has {section[key]}",
                f"use a checkpoint of {section['name']}",
            )
    state = dict(checkpoints.iter_tensors(folder))
    if not any(name.startswith("distilbert.") for name in state):  # a checkpoint of the encoder alone
        state = {"distilbert." + name: tensor for name, tensor in state.items()}
    remedy = f"use a complete checkpoint of {section['name']}"
    checkpoints.load_into(model, state, folder, remedy, optional=("pre_classifier.", "classifier."))


def build(context: Context) -> DistilBertWorkload:
    """Build the workload of a configuration."""
    return DistilBertWorkload(context)
