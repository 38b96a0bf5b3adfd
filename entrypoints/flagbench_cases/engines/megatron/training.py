"""Training by Megatron-Core: its gradient buffers, distributed optimizer and schedules of pipelines. One step is one
global batch, of several micro-batches on every replica.

Shapes: micro-batches int64 [B, T + 1].
"""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any, Iterator, NamedTuple

import torch

from flagbench_cases.contract import Context, Probe
from flagbench_cases.engines.megatron import cpu_shims, training_state
from flagbench_cases.shared.errors import DataError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Apex and Transformer Engine are absent
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.transformer.module import Float16Module

# Megatron-Core 0.8 always has these groups beside those of NCCL.
_NO_GLOO = "use_gloo_process_groups"
_OPTIONS = {_NO_GLOO: False} if _NO_GLOO in inspect.signature(get_megatron_optimizer).parameters else {}


class Hyperparameters(NamedTuple):
    """The hyper-parameters of the updates, from a manifest's `train` section."""

    learning_rate: float
    min_learning_rate: float
    warmup_share: float
    """Part of the schedule in which the rate rises to its maximum."""
    schedule_samples: int
    """Length of the schedule, in samples of all replicas."""
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    clip: float
    distributed_optimizer: bool
    loss_scale: float
    """The first loss scale in fp16."""


class Trainer:
    """Trains this rank's stage."""

    def __init__(self, context: Context, module: Any, dtype: torch.dtype, settings: Hyperparameters) -> None:
        """`module`: the stage with its initial weights."""
        self.context = context
        self.settings = settings
        self.module = module
        self.config = module.config
        self.rows = module.vocab_size
        on_cpu = context.device.kind == "cpu"
        if on_cpu:
            cpu_shims.install()
            cpu_shims.mark_types(module)
        network = module
        if dtype is not torch.float32:
            network = Float16Module(self.config, module)
        self.model = DistributedDataParallel(
            self.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, use_distributed_optimizer=settings.distributed_optimizer
            ),
            network,
        )
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=settings.learning_rate,
                min_lr=settings.min_learning_rate,
                weight_decay=settings.weight_decay,
                adam_beta1=settings.beta1,
                adam_beta2=settings.beta2,
                adam_eps=settings.epsilon,
                clip_grad=settings.clip,
                use_distributed_optimizer=settings.distributed_optimizer,
                bf16=dtype is torch.bfloat16,
                fp16=dtype is torch.float16,
                params_dtype=dtype,
                initial_loss_scale=settings.loss_scale,
            ),
            [self.model],
            **_OPTIONS,
        )
        if on_cpu:
            cpu_shims.install()
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        self.schedule = CosineSchedule(
            self.optimizer,
            highest=settings.learning_rate,
            lowest=settings.min_learning_rate,
            warmup=settings.warmup_share * settings.schedule_samples,  # not rounded, as published
            length=settings.schedule_samples,
            weight_decay=settings.weight_decay,
        )
        self.run_schedule = get_forward_backward_func()
        # Only a pipeline of several stages has a bubble.
        self.config.timers = None
        if context.layout.pp > 1:
            self.config.timers = Timers(context.probe)
        self.updates = self.skipped = 0
        self.skipped_last = False

    def step(self, batches: list[torch.Tensor]) -> float | None:
        """Forward and backward of all micro-batches of this replica, and the update. Returns their mean loss, nats
        per token, on the last stage; None on the others."""
        self.model.train()
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = self.run_schedule(
            forward_step_func=self._forward,
            data_iterator=iter(batches),
            model=self.model,
            num_microbatches=len(batches),
            seq_length=batches[0].shape[1] - 1,
            micro_batch_size=batches[0].shape[0],
            forward_only=False,
        )
        self.context.probe.micro_batch()
        self.context.probe.backward_done()
        updated, _, _ = self.optimizer.step()
        self.skipped_last = not updated
        if updated:
            self.updates += 1
            self.schedule.step(len(batches) * batches[0].shape[0] * self.context.layout.dp)
        else:
            self.skipped += 1
        if not losses:
            return None
        return float(torch.stack([loss["loss"] for loss in losses]).mean())

    def _forward(self, batches: Iterator[torch.Tensor], model: Any, *_: Any) -> tuple[torch.Tensor, Any]:
        """Megatron-Core's forward step: the output of a stage, and what makes a loss of the last one's."""
        self.context.spool.beat()  # a step of a thousand micro-batches is longer than a rank may be silent
        self.context.probe.micro_batch()
        tokens = next(batches)
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if parallel_state.is_pipeline_first_stage():
            # As in the publisher's embedding, which waits for the device here.
            assert not torch.any((inputs < 0) | (inputs >= self.rows)), "a token is outside of the vocabulary"
        positions = torch.arange(inputs.shape[1], device=inputs.device).unsqueeze(0).expand_as(inputs)
        return model(inputs, positions, None, labels=labels), _mean

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The state from which this rank resumes: tensors by name, and facts, which are the same on all ranks."""
        optimizer = self.only_optimizer
        scaler = training_state.scaler_of(optimizer)
        return training_state.tensors_of(self.module, optimizer), {
            "updates": self.updates,
            "skipped": self.skipped,
            "samples": self.schedule.samples,
            "scaler": scaler and training_state.scaler_facts(scaler),
        }

    def check_state(self, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        """Raise DataError unless these are what `state` would return on this rank."""
        optimizer = self.only_optimizer
        has_scaler = training_state.scaler_of(optimizer) is not None
        has_counts = all(isinstance(facts.get(name), int) for name in ("updates", "skipped", "samples"))
        if not has_counts or bool(facts.get("scaler")) != has_scaler:
            raise DataError("the checkpoint's facts do not belong to this case", training_state.REMEDY)
        training_state.check(tensors, self.module, optimizer, facts["updates"])

    def restore(self, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        """Restore what `state` returned, after `check_state`. Called by every rank."""
        optimizer = self.only_optimizer
        self.updates, self.skipped = facts["updates"], facts["skipped"]
        training_state.restore(tensors, self.module, optimizer, self.updates, self.context.spool.beat)
        if self.settings.distributed_optimizer:
            training_state.gather_parts(self.model, optimizer)
        self.schedule.samples = facts["samples"]
        self.schedule.step(0)
        if facts["scaler"]:
            training_state.restore_scaler(optimizer.grad_scaler, facts["scaler"])

    @property
    def only_optimizer(self) -> Any:
        """The optimizer of all parameters; Megatron-Core 0.16 puts it into a list of one."""
        (optimizer,) = getattr(self.optimizer, "chained_optimizers", [self.optimizer])
        return optimizer

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def facts(self) -> dict[str, Any]:
        """Facts about the updates."""
        implementation = type(self.only_optimizer.optimizer)
        facts = {
            "updates": self.updates,
            "skipped_steps": self.skipped,
            "learning_rate": self.learning_rate,
            "optimizer": f"{implementation.__module__}.{implementation.__qualname__}",
        }
        if self.config.fp16:
            facts["loss_scale"] = float(self.optimizer.get_loss_scale())
        return facts


def _mean(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The mean of the tokens' losses, by the publisher's mask, which is one everywhere. The reported one is a copy,
    as the schedule divides the other in place."""
    losses = losses.float().view(-1)
    counts = torch.ones_like(losses)
    mean = torch.sum(losses * counts) / counts.sum()
    mean.isnan().item()  # the publisher asserts it, which waits for the device; the loop ends such a run
    return mean, {"loss": mean.detach().clone()}


class CosineSchedule:
    """Sets the rate of every group of an optimizer of Megatron-Core, and its weight decay, which stays as it is.

    Linear to the maximum, then a cosine, over samples, not steps. Megatron-Core has it from 0.9 on.
    """

    def __init__(
        self, optimizer: Any, highest: float, lowest: float, warmup: float, length: int, weight_decay: float
    ) -> None:
        """`warmup`: samples in which the rate rises to `highest`, a fraction of one included; `length`: samples after
        which it is `lowest`."""
        self.optimizer = optimizer
        self.highest = highest
        self.lowest = lowest
        self.warmup = warmup
        self.length = length
        self.weight_decay = weight_decay
        self.samples = 0
        self.step(0)

    def step(self, samples: int) -> None:
        """Count the samples of an update, and set the rate of the next one."""
        self.samples += samples
        for group in self.optimizer.param_groups:
            group.update(lr=self.rate(self.samples), weight_decay=self.weight_decay * group["wd_mult"])

    def rate(self, samples: int) -> float:
        """The learning rate after `samples` samples.

        Source: Megatron-LM's optimizer_param_scheduler.py, `cosine`.
        """
        if self.warmup > 0 and samples <= self.warmup:
            return self.highest * samples / self.warmup
        if samples > self.length:
            return self.lowest
        done = (samples - self.warmup) / (self.length - self.warmup)
        return self.lowest + 0.5 * (math.cos(math.pi * done) + 1.0) * (self.highest - self.lowest)


TIMED_PASSES = ("forward-compute", "backward-compute")
"""The timers around the forward and the backward pass of a micro-batch. Between them a stage waits for other stages,
sends and receives."""


class Timers:
    """Passed to Megatron-Core as `config.timers`, which its schedules start and stop around their parts.

    Megatron-LM's own timers synchronise the device. These mark the passes of each micro-batch on the device's
    timeline, without waiting, and ignore everything else.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def __call__(self, name: str, log_level: int = 0) -> _Timer:
        """The timer of this name."""
        if name not in TIMED_PASSES:
            return _Timer(None)
        return _Timer(self._probe)


class _Timer(NamedTuple):
    probe: Probe | None

    def start(self, barrier: bool = False) -> None:
        """Mark the start of a pass."""
        if self.probe is not None:
            self.probe.pass_begins()

    def stop(self, barrier: bool = False) -> None:
        """Mark its end."""
        if self.probe is not None:
            self.probe.pass_ends()
