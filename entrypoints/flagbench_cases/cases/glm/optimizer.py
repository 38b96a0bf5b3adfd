"""GLM's optimizer: AdamW on fp32 master copies of fp16 parameters, a dynamic loss scale, and the schedule.

The order of operations and the device synchronisations are those of FlagPerf
training/benchmarks/glm/pytorch/optimizers (an `FP16_Optimizer` derived from Megatron) and its `backward_step`. AdamW
is apex's FusedAdam if available, as published, else torch's.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

BETAS = (0.9, 0.999)
"""AdamW's betas, as published."""
EPSILON = 1e-8
"""AdamW's epsilon, as published."""
CLIP_EPSILON = 1e-6
"""Keeps the clipping coefficient finite for a zero gradient."""


class LossScaler:
    """The dynamic loss scale: halved when gradients overflow, doubled after `window` updates without overflow.

    After each doubling (and at the start), the first `hysteresis` - 1 overflows are tolerated; each further overflow
    halves the scale.
    """

    FACTOR = 2.0
    """The factor by which the scale is changed, as published."""

    def __init__(self, scale: float, window: int, hysteresis: int, minimum: float) -> None:
        self.scale = float(scale)
        self.window = window
        self.hysteresis = hysteresis
        self.minimum = float(minimum)
        self._tolerance = hysteresis
        """An overflow lowers it by one until it is 1, and from then on halves the scale."""
        self._steps = 0
        self._last_overflow_step = -1

    def update(self, overflow: bool) -> None:
        """Adjust the scale after a step."""
        if overflow:
            if self._tolerance > 1:
                self._tolerance -= 1
            else:
                self.scale = max(self.scale / self.FACTOR, self.minimum)
            self._last_overflow_step = self._steps
        elif (self._steps - self._last_overflow_step) % self.window == 0:
            self._tolerance = self.hysteresis
            self.scale *= self.FACTOR
        self._steps += 1


class Schedule:
    """The learning rate of each update: linear from zero to `peak`, then linear to `floor` times it.

    It has `total_updates`, of which the fraction `warmup_share` is warm-up. The first update has the rate zero, as
    published. Skipped updates do not count.
    """

    def __init__(self, peak: float, total_updates: int, warmup_share: float, floor: float) -> None:
        self.peak = peak
        self.warmup_updates = warmup_share * total_updates
        self.decay_updates = total_updates - self.warmup_updates
        self.floor = floor

    def rate(self, update: int) -> float:
        """Return the learning rate of update number `update`, counted from 0."""
        if self.warmup_updates > 0 and update <= self.warmup_updates:
            return self.peak * update / self.warmup_updates
        decayed = min(1.0, (update - self.warmup_updates) / self.decay_updates)
        return self.peak - self.peak * (1 - self.floor) * decayed

    def describe(self) -> str:
        """Return the `schedule` condition, which is compared with that of a published result."""
        warmup = round(self.warmup_updates, 6)
        decay = round(self.decay_updates, 6)
        return f"linear warm-up {warmup:g} steps, then linear to {self.floor:g} over {decay:g} steps"


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameter groups with and without weight decay, in this order.

    Biases are exempt. Gains of layer norms are not, since the publisher's rule does not recognise apex's layer norm.
    """
    biases: list[Tensor] = []
    decayed: list[Tensor] = []
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            biases.append(parameter)
        else:
            decayed.append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": biases, "weight_decay": 0.0}]


def adamw(groups: list[dict[str, Any]], rate: float) -> tuple[torch.optim.Optimizer, str]:
    """Return AdamW for the groups, and the name of its implementation.

    On a device it is apex's if that can be imported, as published; otherwise torch's, fused if available.
    """
    devices: set[str] = set()
    for group in groups:
        devices.update(parameter.device.type for parameter in group["params"])
    if devices == {"cuda"}:
        try:
            from apex.optimizers import FusedAdam
        except ImportError:
            pass
        else:
            return FusedAdam(groups, lr=rate, betas=BETAS, eps=EPSILON, adam_w_mode=True), "apex"
        if "fused" in inspect.signature(torch.optim.AdamW.__init__).parameters:
            return torch.optim.AdamW(groups, lr=rate, betas=BETAS, eps=EPSILON, fused=True), "torch, fused"
    return torch.optim.AdamW(groups, lr=rate, betas=BETAS, eps=EPSILON), "torch"


def has_overflowed(tensor: Tensor) -> bool:
    """Return whether a tensor has an infinity or NaN, according to its sum in fp32; synchronises."""
    return not math.isfinite(float(tensor.float().sum()))


def any_overflow(gradients: Iterable[Tensor], device: torch.device) -> bool:
    """Return whether the gradients of any rank have an overflow.

    Synchronises for each tensor up to the first overflow, and once for the result of all ranks.
    """
    overflow = any(has_overflowed(gradient) for gradient in gradients)
    flag = torch.tensor([overflow], dtype=torch.uint8, device=device)
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag[0].item())


def clip(parameters: list[Tensor], limit: float) -> float:
    """Scale gradients down to a global norm of `limit`. Returns the norm before.

    Synchronises for each tensor's norm, and once more for the sum of squares.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squared = sum(float(gradient.norm(2)) ** 2 for gradient in gradients)
    # The sum is copied to the device and back, as the publisher does: this rounds it to fp32, and the synchronisation
    # is part of the published step time.
    squared_on_device = torch.tensor([squared], dtype=torch.float32, device=parameters[0].device)
    norm = math.sqrt(squared_on_device[0].item())
    coefficient = limit / (norm + CLIP_EPSILON)
    if coefficient < 1:
        for gradient in gradients:
            gradient.mul_(coefficient)
    return norm


def overwrite_gradients(parameters: Iterable[Tensor]) -> None:
    """Overwrite existing gradients with zeros."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.detach_()
            parameter.grad.zero_()


class Optimizer:
    """Updates in the parameters' own precision: clip, AdamW, and the next learning rate."""

    def __init__(self, module: nn.Module, schedule: Schedule, weight_decay: float, clip_norm: float) -> None:
        self.schedule = schedule
        self.clip_norm = clip_norm
        self.updates = 0
        self.skipped = 0
        self.parameters: list[Tensor] = list(module.parameters())
        groups = self._groups_to_update(parameter_groups(module, weight_decay))
        self.adamw, self.implementation = adamw(groups, schedule.rate(0))

    def _groups_to_update(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the groups that AdamW updates, given those of the module. A subclass may replace parameters."""
        return groups

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass."""
        loss.backward()

    def update(self) -> bool:
        """Update the parameters and zero the gradients. Returns False if the update was skipped."""
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.adamw.step()
        self._advance()
        self.clear_gradients()
        return True

    def clear_gradients(self) -> None:
        """Zero or release the gradients, as the optimizer does by default."""
        self.adamw.zero_grad()

    def facts(self) -> dict[str, Any]:
        """Return facts about the updates for the record."""
        return {
            "adamw": self.implementation,
            "updates": self.updates,
            "skipped_steps": self.skipped,
            "loss_scale": None,
        }

    def _advance(self) -> None:
        """Count an update and set the learning rate of the next one."""
        self.updates += 1
        for group in self.adamw.param_groups:
            group["lr"] = self.schedule.rate(self.updates)


class MasterOptimizer(Optimizer):
    """The optimizer for fp16 parameters: fp32 master copies, a scaled loss, and skipped updates on overflow."""

    def __init__(
        self, module: nn.Module, schedule: Schedule, weight_decay: float, clip_norm: float, scaler: LossScaler
    ) -> None:
        self.scaler = scaler
        # Set before the base class's __init__, which calls _groups_to_update, which fills it.
        self.pairs: list[tuple[nn.Parameter, Tensor]] = []
        """Each parameter with its master copy."""
        super().__init__(module, schedule, weight_decay, clip_norm)

    def _groups_to_update(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the groups with an fp32 master copy in place of each parameter, and add to `pairs`."""
        master_groups = []
        for group in groups:
            masters = [parameter.detach().clone().float().requires_grad_() for parameter in group["params"]]
            self.pairs.extend(zip(group["params"], masters))
            master_groups.append(dict(group, params=masters))
        return master_groups

    def backward(self, loss: Tensor) -> None:
        (loss.float() * self.scaler.scale).backward()

    def update(self) -> bool:
        gradients = (parameter.grad for parameter, _ in self.pairs if parameter.grad is not None)
        first_parameter, _ = self.pairs[0]
        overflow = any_overflow(gradients, first_parameter.device)
        if not overflow:
            self._copy_gradients_to_masters()
            clip([master for _, master in self.pairs], self.clip_norm)
        self.scaler.update(overflow)
        if overflow:
            self.skipped += 1
        else:
            self.adamw.step()
            with torch.no_grad():
                for parameter, master in self.pairs:
                    parameter.copy_(master)
            self._advance()
        self.clear_gradients()
        return not overflow

    def _copy_gradients_to_masters(self) -> None:
        """Copy this rank's unscaled gradients to its master copies, in fp32."""
        for parameter, master in self.pairs:
            if parameter.grad is None:
                master.grad = None
                continue
            if master.grad is None:
                master.grad = torch.empty_like(master)
            master.grad.copy_(parameter.grad)
        if self.scaler.scale != 1.0:
            for _, master in self.pairs:
                if master.grad is not None:
                    master.grad.mul_(1.0 / self.scaler.scale)

    def clear_gradients(self) -> None:
        """Overwrite the gradients of master copies and parameters with zeros; none is released."""
        for group in self.adamw.param_groups:
            overwrite_gradients(group["params"])
        overwrite_gradients(self.parameters)

    def facts(self) -> dict[str, Any]:
        return dict(super().facts(), loss_scale=self.scaler.scale)
