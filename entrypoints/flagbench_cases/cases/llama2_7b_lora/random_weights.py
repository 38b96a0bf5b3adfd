"""Trains LoRA on random weights and random ids, as in NeMo AutoModel's benchmark recipe (commit 507bfb75).

A step is `batch_size` sequences in micro-batches, whose gradients are summed, and one update. Nothing is evaluated.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, Sequence

import torch
from torch.utils.data import DataLoader, DistributedSampler

from flagbench_cases.cases.llama2_7b_lora import decoder
from flagbench_cases.cases.llama2_7b_lora.engine import ignore_frozen
from flagbench_cases.cases.llama2_7b_lora.model import shape_from
from flagbench_cases.cases.llama2_7b_lora.optimizer import OPTIMIZER
from flagbench_cases.contract import Context, Evaluation, TrainWorkload, Work
from flagbench_cases.engines.data_parallel import data_parallel
from flagbench_cases.prepare.synthetic import RandomBlocks
from flagbench_cases.shared.errors import UsageError
from flagbench_core import flops

DTYPES = {"bf16": torch.bfloat16}
"""The dtype of the model by precision; fp32 for others."""


def batch_of(samples: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return `tokens` and their next tokens as `labels`, each int64 [B, T]; the last label is ignored."""
    tokens = torch.stack(list(samples))
    last = torch.full((len(tokens), 1), decoder.IGNORED, dtype=tokens.dtype)
    return {"tokens": tokens, "labels": torch.cat((tokens[:, 1:], last), dim=1)}


class RandomWorkload(TrainWorkload):
    """Models of other sizes than Llama2-7B, for which neither data nor weights are read."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.config = context.config
        self.device = context.device.torch_device

    def setup(self) -> None:
        context, config = self.context, self.config
        data, train = config["data"], config["train"]
        if context.data is not None or context.weights is not None:
            message = f"{config['case']} runs on random ids and random weights"
            raise UsageError(message, "use --data synthetic, and omit --weights")
        torch.manual_seed(config["seed"])  # for dropout, the same on every rank
        self.blocks = RandomBlocks(
            data["train_blocks"], data["sequence_length"], data["token_ids"], config["seed"], first=0
        )
        sampler: Any = DistributedSampler(self.blocks, context.world, context.rank, shuffle=False, drop_last=True)
        self.loader = DataLoader(
            self.blocks, train["batch_size"], sampler=sampler, drop_last=True, collate_fn=batch_of
        )
        self._make_model()

    def _make_model(self) -> None:
        context, config, train = self.context, self.config, self.config["train"]
        self.shape = shape_from(config["model"])
        self.fused = train["fused_attention"] and decoder.has_fused_attention()
        dtype = DTYPES.get(config["precision"], torch.float32)
        self.module = decoder.Decoder(self.shape, self.fused, dtype=dtype, device=self.device)
        self.module.initialise(config["seed"])
        self.module.recompute = train["recompute"]
        context.device.synchronize()
        context.spool.beat()
        self.adapters = {
            name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad
        }
        if context.world > 1:
            ignore_frozen(self.module, self.adapters)
        watched = list(self.adapters.values())
        self.network: Any = data_parallel(self.module, context, watched)
        # With torch's defaults, which update several parameters at a time.
        self.optimizer = torch.optim.AdamW(watched, train["learning_rate"], weight_decay=train["weight_decay"])

    def describe(self) -> dict[str, Any]:
        train, lora = self.config["train"], self.shape.lora
        return {
            "conditions": {
                "model": self.shape.name,
                "sequence_length": self.config["data"]["sequence_length"],
                "batch_size": train["micro_batch_size"],
                "gradient_accumulation_steps": train["batch_size"] // train["micro_batch_size"],
                "recompute": train["recompute"],
                "attention": "sdpa" if self.fused else "unfused",
                "transformer": "torch",
                "optimizer": OPTIMIZER % train["weight_decay"],
                "lora": f"r={lora.r}, alpha={lora.alpha:g}, dropout={lora.dropout:g}, {lora.projections}",
                "learning_rate": train["learning_rate"],
                "data": self.config["data"]["source"],
                "weights": "random",
            },
            "data": {"train_blocks": len(self.blocks), "train_sha256": self.blocks.digest()},
            "parameters": sum(parameter.numel() for parameter in self.module.parameters()),
        }

    def steps_per_epoch(self) -> int:
        return len(self.loader)

    def batches(self, epoch: int) -> Iterable[Any]:
        return self.loader

    def to_device(self, batch: Any) -> Any:
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def step(self, batch: Any) -> float:
        """Forward and backward pass of each micro-batch, one update; returns the mean loss, nats per token."""
        size = self.config["train"]["micro_batch_size"]
        micro_batches = list(zip(batch["tokens"].split(size), batch["labels"].split(size)))
        self.optimizer.zero_grad()
        losses = []
        for index, (tokens, labels) in enumerate(micro_batches):
            # Gradients are averaged over replicas once, in the backward pass of the last micro-batch.
            is_last = index == len(micro_batches) - 1
            averages = self.context.layout.dp == 1 or is_last
            with contextlib.nullcontext() if averages else self.network.no_sync():
                loss = self.network(tokens, labels)
                loss.backward()
            losses.append(loss.detach())
        self.context.probe.backward_done()
        self.optimizer.step()
        return float(torch.stack(losses).sum() / (batch["labels"] != decoder.IGNORED).sum())

    def work(self, batch: Any) -> Work:
        samples, length = batch["tokens"].shape
        tokens = samples * length
        step_flops = flops.llama_lora_all(self.config["model"], flops.batch_of(samples, length))
        # Without dropout, the last matmul with B is not repeated, which is 0.01 % of a step and not subtracted.
        recomputed = step_flops.layers if self.config["train"]["recompute"] else 0
        return Work(
            samples=samples,
            published_samples=samples,
            tokens=tokens,
            tokens_useful=tokens,  # blocks are not padded
            flops_executed=float(step_flops.executed),
            flops_useful=float(step_flops.executed),
            flops_recomputed=float(recomputed),
        )

    def evaluate(self, last: bool) -> Evaluation | None:
        return None

    def training_facts(self) -> dict[str, Any]:
        return {"trainable_parameters": sum(parameter.numel() for parameter in self.adapters.values())}
