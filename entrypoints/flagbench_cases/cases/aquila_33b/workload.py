"""Scores LAMBADA with Aquila-33B, teacher-forced, one padded sentence at a time, by tensor-parallel ranks.

The publisher's step: copy a sentence to the device, build its causal mask, run the model on all positions, and
average the losses of the sentence's own tokens. Nothing is generated. Unusual parts are listed under `quirks` in the
case manifest. The loop in flagbench_cases.rank calls the methods of AquilaWorkload and times them.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, List, Sequence

import torch
from torch.utils.data import DataLoader, DistributedSampler

from flagbench_cases.cases.aquila_33b import sentences
from flagbench_cases.contract import INFER, Context, Evaluation, InferWorkload, Work, extra_result
from flagbench_cases.engines.megatron import norm, open_engine, parts
from flagbench_cases.engines.megatron.shape import shape_of
from flagbench_cases.prepare.llama import load, weights_format
from flagbench_cases.shared.errors import DataError
from flagbench_core import flops

CASE = sentences.CASE
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
ORDER_SEED = 0
"""The seed of the publisher's sampler, which shuffles once."""

Batch = List[torch.Tensor]
"""Two tensors: tokens int64 [B, T + 1], and int64 [B, T], which is 1 where the next token is scored."""


class AquilaWorkload(InferWorkload):
    """Each replica scores a share of the sentences; each of its ranks has a part of every layer."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.config = context.config
        self.device = context.device.torch_device
        self.weights = "random"

    def setup(self) -> None:
        context, config, beat = self.context, self.config, self.context.spool.beat
        self.shape = shape_of(config["model"])
        self.set, self.condition = sentences.load(config["data"], config["model"], context.data, config["seed"])
        beat()
        self.engine = open_engine()
        self.engine.start(context)
        dtype = DTYPES[config["precision"]]
        self.norm = norm.choose(self.device, trains=False)
        self.module = self.engine.build(context, self.shape, dtype, of_2023=True, norm=self.norm)
        beat()
        self._fill()
        self.module.eval()
        self._make_loader()
        self._total = torch.zeros((), device=self.device)
        self._scored = 0

    def _fill(self) -> None:
        """Load this rank's part of the weights: prepared, shipped or random ones."""
        context, section = self.context, self.config["model"]
        self.padding = self.config["infer"]["vocabulary_padding"]
        if context.weights is None and self.config["data"]["source"] != "shipped":
            shapes = weights_format.shapes(section)
            read_random = parts.random_tensors(
                self.shape, shapes, self.config["seed"], self.device, context.spool.beat
            )
            parts.fill(self.module, self._parts(), read_random)
            return
        if context.weights is not None:
            self.weights = "pretrained"
            source = load.open_prepared(context.weights, CASE, section).weights
        else:
            self.weights = "shipped"
            source = load.Weights(sentences.TINY, section)
        self._keep_padding(source.padding())
        context.spool.beat()

        def read_parts(names: list[str]) -> Iterator[tuple[str, Any]]:
            for name, part in source.read(names):
                context.spool.beat()
                yield name, part

        parts.fill(self.module, self._parts(), read_parts)

    def _keep_padding(self, rows: torch.Tensor | None) -> None:
        """Use the rows of a prepared checkpoint that pad the vocabulary, if it has any.

        Raises DataError if there are too few for the layout.
        """
        if rows is None:
            return
        needed = self.shape.padded_vocabulary(self.context.layout.tp) - self.shape.vocab_size
        if len(rows) < needed:
            raise DataError(
                f"the checkpoint has {len(rows)} rows that pad the vocabulary, but this layout needs {needed}",
                "set tp to what the checkpoint was split into, or less",
            )
        self.padding = "checkpoint"

    def _parts(self) -> parts.Parts:
        """Return which parts of the tensors this rank has."""
        layout = self.context.layout
        return parts.parts_of(self.shape, layout, layout.coordinates(self.context.rank), self.padding)

    def _make_loader(self) -> None:
        context, config = self.context, self.config
        replica = context.layout.coordinates(context.rank).dp
        self.sampler: Any = DistributedSampler(self.set, context.layout.dp, replica, seed=ORDER_SEED)
        self.loader = DataLoader(
            self.set,
            batch_size=config["infer"]["batch_size"],
            sampler=self.sampler,
            num_workers=config["data"]["workers"],
            pin_memory=self.device.type == "cuda",
        )

    def describe(self) -> dict[str, Any]:
        config, lengths = self.config, self.set.lengths
        return {
            "conditions": {
                "model": self.shape.name,
                "sequence_length": self.set.length,
                "batch_size": config["infer"]["batch_size"],
                "layout": str(self.context.layout),
                "workers": config["data"]["workers"],
                "vocabulary_padding": self.padding,
                "norm": self.norm,
                "data": self.condition,
                "weights": self.weights,
            },
            "data": {
                "sentences": len(self.set),
                "sha256": self.set.digest(),
                "tokens": int(lengths.sum()),
                "mean_tokens": float(lengths.mean()),
            },
            "parameters": self.shape.parameters,
        }

    def steps(self, name: str) -> int:
        return len(self.loader)

    def batches(self, name: str) -> Iterable[Batch]:
        return self.loader

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch unchanged: `infer` copies it, since the publisher's clock runs during the copy."""
        return batch

    def infer(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss of the batch, nats per scored token, without waiting for it."""
        with torch.no_grad():
            tokens, scored = (tensor.to(self.device, non_blocking=False) for tensor in batch)
            scored = scored.contiguous().byte()
            inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
            mask, positions = causal_mask(inputs)
            logits = self.module(inputs, positions, mask)
            losses = self.engine.token_losses(logits.contiguous().float(), labels)
            self._loss = torch.sum(losses * scored.float()) / torch.sum(scored.float())
        return self._loss

    def after_step(self) -> None:
        """Do what the publisher's loop does between steps: sum the losses on the device, over replicas."""
        layout = self.context.layout
        number = self._scored + layout.coordinates(self.context.rank).dp
        self._scored += layout.dp
        if number >= len(self.set):  # the sampler repeats sentences, so that replicas have equally many
            self._loss.zero_()
        self.engine.sum_over_replicas(self._loss)  # as published, even if there is only one
        self._total += self._loss

    def work(self, batch: Batch) -> Work:
        _, scored = batch
        samples, length = scored.shape
        lengths = scored.numpy().sum(axis=1)
        tokens = int(lengths.sum())
        model = flops.padded(self.config["model"], self.context.layout.tp)
        unpadded = flops.Batch(samples, tokens, int((lengths * lengths).sum()), tokens)
        return Work(
            samples=samples,
            published_samples=samples,
            tokens=samples * length,
            tokens_useful=tokens,
            flops_executed=float(flops.llama_forward(model, flops.batch_of(samples, length)).executed),
            flops_useful=float(flops.llama_forward(model, unpadded).executed),
        )

    def result(self, name: str) -> Evaluation:
        note = "mean over sentences of the mean loss of their tokens, </s> included, as published"
        value = float(self._total) / len(self.set)
        return Evaluation(None, None, len(self.set), None, [extra_result("loss", value, "nats", note)])

    def passes(self) -> Sequence[str]:
        return (INFER,)


def causal_mask(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the publisher's mask, bool [1, 1, T, T], and the positions, int64 [B, T], of tokens [B, T].

    The mask is True where a position may not look. Padding is not masked: it follows the text.
    """
    length = tokens.shape[1]
    triangle = torch.tril(torch.ones((1, length, length), device=tokens.device)).view(1, 1, length, length)
    positions = torch.arange(length, dtype=torch.long, device=tokens.device).unsqueeze(0).expand_as(tokens)
    return triangle < 0.5, positions


def build(context: Context) -> AquilaWorkload:
    """Build the workload; called by flagbench_cases.rank.run."""
    return AquilaWorkload(context)
