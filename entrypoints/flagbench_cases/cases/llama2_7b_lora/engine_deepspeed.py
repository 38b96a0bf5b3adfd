"""The training step with DeepSpeed, ZeRO stages 0 to 2, configured by the manifest's `engine` section.

The publisher did not use DeepSpeed; `--set engine=deepspeed` selects it. ZeRO splits the optimizer's state (stage 1)
and the gradients (stage 2) over the ranks.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn

import torch

from flagbench_cases.cases.llama2_7b_lora.optimizer import OPTIMIZER, adamw, loss_of
from flagbench_cases.contract import Context
from flagbench_cases.engines import deepspeed
from flagbench_cases.shared.errors import UsageError

STAGES = (0, 1, 2)
"""The supported stages of ZeRO."""


def refuse(config: dict[str, Any], device: torch.device, world: int) -> None:
    """Raise UsageError for settings that DeepSpeed does not support here, or if it cannot be imported.

    This imports DeepSpeed, so that a run without it fails before its weights are loaded.
    """
    stage = config["engine"]["zero_stage"]
    precision = config["precision"]
    cpu_with_torch_1 = device.type == "cpu" and int(torch.__version__.split(".")[0]) < 2
    if stage not in STAGES:
        _refuse(f"ZeRO stage {stage}, which splits the frozen weights, is not supported", "use zero_stage 0 to 2")
    if device.type == "cpu" and precision == "fp16":
        _refuse("DeepSpeed does not support fp16 on a CPU", "use --precision bf16 or fp32")
    if cpu_with_torch_1 and world > 1 and stage > 0:
        _refuse(f"gloo of torch {torch.__version__} lacks the collectives of ZeRO stage {stage}", "use stage 0")
    if cpu_with_torch_1 and precision == "bf16":  # DeepSpeed broadcasts the weights even in a group of one rank
        _refuse(f"gloo of torch {torch.__version__} cannot send bf16", "use --precision fp32")
    deepspeed.load(device)


def _refuse(message: str, remedy: str) -> NoReturn:
    raise UsageError(message, remedy)


def ds_config(config: dict[str, Any], replicas: int) -> dict[str, Any]:
    """Return the ds_config of a run: the manifest's `engine.deepspeed` with batch size, stage and precision."""
    settings = copy.deepcopy(config["engine"]["deepspeed"])
    batch_size = config["train"]["batch_size"]
    settings.update(train_batch_size=batch_size * replicas, train_micro_batch_size_per_gpu=batch_size)
    settings["gradient_accumulation_steps"] = 1
    settings["zero_optimization"]["stage"] = config["engine"]["zero_stage"]
    fp16_settings = settings.pop("fp16")
    if config["precision"] == "fp16":
        settings["fp16"] = dict(fp16_settings, enabled=True)
    elif config["precision"] == "bf16":
        settings["bf16"] = {"enabled": True}
    return settings


class DeepSpeedEngine:
    """Forward, backward and update of the adapters with DeepSpeed; see `engine.Engine`. Each rank has one."""

    def __init__(self, context: Context, module: Any, parameters: dict[str, torch.nn.Parameter]) -> None:
        self.context = context
        config = context.config
        self.ds_config = ds_config(config, context.layout.dp)
        trained = list(parameters.values())
        optimizer = adamw(trained, config["train"], fused=False)
        self.network = deepspeed.initialize(context, module, optimizer, trained, self.ds_config)
        # In 16 bits with stage 0, initialize() takes a step with zero gradients to allocate AdamW's moments; without
        # this reset AdamW would count it as an update.
        optimizer.state.clear()
        self.version = deepspeed.version(context.device.torch_device)
        self.steps_taken = 0
        self._skipped_before = 0
        self.name = f"deepspeed-zero{config['engine']['zero_stage']}"
        """The `engine` condition, such as `deepspeed-zero1`."""
        self.condition = OPTIMIZER % config["train"]["weight_decay"]
        """The `optimizer` condition."""
        if config["precision"] not in ("fp32", "tf32"):
            # In 16 bits, DeepSpeed updates fp32 copies of the adapters; the published step updates the adapters
            # directly.
            self.condition += ", fp32 masters"

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        """Run one step on a batch of `data.batch_of`; returns this rank's mean loss, nats per token."""
        loss = loss_of(self.network, batch)
        self.network.backward(loss)
        self.context.probe.backward_done()
        self.network.step()
        self.steps_taken += 1
        return float(loss.detach())

    def poll_skipped(self) -> bool:
        """Return whether the loss scaler skipped the last step. Must be called once for each step."""
        skipped = int(self.network.skipped_steps)
        has_skipped = skipped > self._skipped_before
        self._skipped_before = skipped
        return has_skipped

    def begin(self, rate: float) -> None:
        """Start an epoch with its learning rate."""
        self.set_rate(rate)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""
        for group in self.network.optimizer.param_groups:
            group["lr"] = rate

    def facts(self) -> dict[str, Any]:
        """Return facts about the updates, and DeepSpeed's configuration."""
        skipped = int(self.network.skipped_steps)
        scale = None
        if "fp16" in self.ds_config:
            scale = float(self.network.optimizer.loss_scale)
        return {
            "updates": self.steps_taken - skipped,
            "skipped_steps": skipped,
            "loss_scale": scale,
            "deepspeed": self.version,
            "ds_config": self.ds_config,
        }

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Raise UsageError: checkpoints are not supported, and rejected before a run starts."""
        raise UsageError("the deepspeed engine cannot write checkpoints", "use engine=torch")

    def restore(self, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        """Raise UsageError: checkpoints are not supported, and rejected before a run starts."""
        raise UsageError("the deepspeed engine cannot resume from a checkpoint", "use engine=torch")
