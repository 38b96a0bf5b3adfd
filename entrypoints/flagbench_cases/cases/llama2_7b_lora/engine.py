"""The published training step in plain torch: one device as published, several with DistributedDataParallel.

The publisher's step: forward under autocast, accumulate the loss, synchronise, backward, update (with fp16 after
another synchronisation, and scaled), read and display the loss, synchronise. Unusual parts are listed under `quirks`
in the case manifest.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from flagbench_cases.cases.llama2_7b_lora import engine_deepspeed
from flagbench_cases.cases.llama2_7b_lora.lora import fill
from flagbench_cases.cases.llama2_7b_lora.optimizer import (
    OPTIMIZER,
    adamw,
    has_fused_adamw,
    loss_of,
    loss_scaler,
)
from flagbench_cases.contract import Context
from flagbench_cases.engines.data_parallel import data_parallel
from flagbench_cases.engines.precision_switches import autocast
from flagbench_cases.shared.errors import DataError, UsageError

ACCUMULATION_STEPS = 1
"""Batches before an update; the publisher divides the loss by it."""
OPTIMIZER_STATE = ("exp_avg", "exp_avg_sq", "step")
"""The names of AdamW's state of a parameter: first and second moment, and the number of updates."""


class Engine(Protocol):
    """Trains the adapters of one rank: forward, backward and update."""

    name: str
    """The `engine` condition."""
    condition: str
    """The `optimizer` condition."""

    def begin(self, rate: float) -> None:
        """Start an epoch with its learning rate."""

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        """Run one step on a batch of `data.batch_of`; returns this rank's mean loss, nats per token."""

    def poll_skipped(self) -> bool:
        """Return whether the loss scaler skipped the last step. Must be called once for each step."""

    def facts(self) -> dict[str, Any]:
        """Return facts about the updates: `updates`, `skipped_steps`, `loss_scale`, and further ones."""

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the tensors and facts of a checkpoint. Raises UsageError if the engine writes none."""

    def restore(self, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        """Restore what `state` returned. Raises DataError if something is missing."""


class TorchEngine:
    """The published step in plain torch; see `Engine`. Each rank has one."""

    name = "torch"

    def __init__(self, context: Context, module: Any, parameters: dict[str, torch.nn.Parameter]) -> None:
        self.context = context
        self.module = module
        self.parameters = parameters
        self.precision = context.config["precision"]
        self.device = context.device.torch_device
        train = context.config["train"]
        half = self.precision == "fp16"
        self.optimizer = adamw(list(parameters.values()), train, fused=half)
        self.scaler = loss_scaler(self.device) if half else None
        """The loss scaler of fp16; None for other precisions."""
        self._last_scale = self._loss_scale()
        if context.world > 1:
            ignore_frozen(module, parameters)
        self.network = data_parallel(module, context, watched=list(parameters.values()))
        self.steps_taken = 0
        self.total_loss: Any = 0.0
        """The sum of the losses of an epoch, on the device. The publisher computes it, and nothing reads it here."""
        self.bar: Any = None
        """The progress bar of the epoch; None unless the workload sets one."""
        self.condition = OPTIMIZER % train["weight_decay"]
        """The `optimizer` condition."""
        if half:
            self.condition += ", fused"

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        """Run one step on a batch of `data.batch_of`; returns this rank's mean loss, nats per token."""
        synchronize = self.context.device.synchronize
        with autocast(self.device, self.precision):
            loss = loss_of(self.network, batch)
        loss = loss / ACCUMULATION_STEPS
        self.total_loss += loss.detach().float()
        synchronize()
        if self.scaler is None:
            loss.backward()
            self.context.probe.backward_done()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.context.probe.backward_done()
            synchronize()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        self.steps_taken += 1
        if self.bar is not None:
            self.bar.advance()
        value = float(loss.detach().float())
        if self.bar is not None:
            self.bar.show(value)
        synchronize()
        return value

    def _loss_scale(self) -> float:
        """Return the current loss scale; 1 for precisions without a scaler."""
        if self.scaler is None:
            return 1.0
        return float(self.scaler.get_scale())

    def poll_skipped(self) -> bool:
        """Return whether the loss scaler skipped the last step, after which its scale is lower.

        Must be called once for each step, since it compares the scale with that of the last call.
        """
        scale_before = self._last_scale
        self._last_scale = self._loss_scale()
        return self._last_scale < scale_before

    def begin(self, rate: float) -> None:
        """Start an epoch with its learning rate."""
        self.total_loss = 0.0
        self.set_rate(rate)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def facts(self) -> dict[str, Any]:
        """Return facts about the updates. Skipped updates do not advance the optimizer's step count."""
        counts = [float(state["step"]) for state in self.optimizer.state.values() if "step" in state]
        updates = int(min(counts, default=0))
        return {
            "updates": updates,
            "skipped_steps": self.steps_taken - updates,
            "loss_scale": self.scaler.get_scale() if self.scaler else None,
        }

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the adapters and their moments as tensors, and the loss scale and number of steps as facts."""
        tensors = {"adapter." + name: parameter.detach() for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            for moment in OPTIMIZER_STATE:
                if moment in self.optimizer.state[parameter]:
                    tensors[f"{moment}.{name}"] = torch.as_tensor(self.optimizer.state[parameter][moment])
        scaler = self.scaler.state_dict() if self.scaler else None
        return tensors, {"taken": self.steps_taken, "scaler": scaler}

    def restore(self, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        """Restore what `state` returned. Raises DataError if a tensor or the loss scale is missing."""
        prefix = "adapter."
        fill(self.parameters, {name[len(prefix) :]: tensors[name] for name in tensors if name.startswith(prefix)})
        moments = {}
        for index, name in enumerate(self.parameters):
            saved = {moment: tensors.get(f"{moment}.{name}") for moment in OPTIMIZER_STATE}
            if any(tensor is None for tensor in saved.values()):
                raise DataError(f"the checkpoint has no moments for {name}", "resume from another checkpoint")
            moments[index] = saved
        self.optimizer.load_state_dict(
            {"state": moments, "param_groups": self.optimizer.state_dict()["param_groups"]}
        )
        if self.scaler is not None:
            if not facts["scaler"]:
                raise DataError("the checkpoint has no loss scale", "resume from another checkpoint")
            self.scaler.load_state_dict(facts["scaler"])
            self._last_scale = self._loss_scale()
        self.steps_taken = int(facts["taken"])


def ignore_frozen(module: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> None:
    """Make DistributedDataParallel ignore the frozen weights and the buffers.

    They are equal on all ranks from the start, as verified by the parameter check of the record.
    """
    trained = {id(parameter) for parameter in parameters.values()}
    frozen = [name for name, parameter in module.named_parameters() if id(parameter) not in trained]
    names = frozen + [name for name, _ in module.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)


def open_engine(context: Context, module: Any, parameters: dict[str, torch.nn.Parameter]) -> Engine:
    """Create the configured engine for this rank. `parameters`: the adapters by name."""
    if context.config["engine"]["name"] == "deepspeed":
        return engine_deepspeed.DeepSpeedEngine(context, module, parameters)
    return TorchEngine(context, module, parameters)


def refuse(config: dict[str, Any], device: torch.device, world: int) -> None:
    """Raise UsageError for settings that the configured engine does not support, before anything is loaded."""
    engine = config["engine"]
    if engine["name"] == "deepspeed":
        engine_deepspeed.refuse(config, device, world)
        return
    if engine["zero_stage"]:
        raise UsageError("zero_stage requires DeepSpeed", "add --set engine=deepspeed, or omit zero_stage")
    if config["precision"] == "fp16" and not has_fused_adamw():
        raise UsageError(
            f"fp16 requires the fused AdamW of torch 2.0, but this is torch {torch.__version__}, whose scaler "
            "rejects fp16 gradients",
            "use --precision bf16 or tf32, or a stack with a newer torch",
        )
