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
EPSILON = 1e-8
# Keeps the clipping coefficient finite for a zero gradient.
CLIP_EPSILON = 1e-6


class LossScaler:
    """The dynamic loss scale: halved when gradients overflow, doubled after `window` updates without overflow.

    After each doubling (and at the start), the first `hysteresis` - 1 overflows are tolerated; each further overflow
    halves the scale.
    """

    FACTOR = 2.0

    def __init__(self, scale: float, window: int, hysteresis: int, minimum: float) -> None:
        self.scale = float(scale)
        self.window = window
        self.hysteresis = hysteresis
        self.minimum = float(minimum)
        self._left = hysteresis
        self._steps = 0
        self._last_overflow = -1

    def update(self, overflow: bool) -> None:
        """Adjust the scale after a step."""
        if overflow:
            if self._left > 1:
                self._left -= 1
            else:
                self.scale = max(self.scale / self.FACTOR, self.minimum)
            self._last_overflow = self._steps
        elif (self._steps - self._last_overflow) % self.window == 0:
            self._left = self.hysteresis
            self.scale *= self.FACTOR
        self._steps += 1


class Schedule:
    """The learning rate of each update: linear from zero to `peak`, then linear to `floor` times it.

    `total` updates, of which the fraction `warmup` is warm-up. The first update has the rate zero, as published.
    Skipped updates do not count.
    """

    def __init__(self, peak: float, total: int, warmup: float, floor: float) -> None:
        self.peak = peak
        self.warmup = warmup * total
        self.decay = total - self.warmup
        self.floor = floor

    def rate(self, update: int) -> float:
        """The learning rate of update number `update`, counted from 0."""
        if self.warmup > 0 and update <= self.warmup:
            return self.peak * update / self.warmup
        return self.peak - self.peak * (1 - self.floor) * min(1.0, (update - self.warmup) / self.decay)

    def describe(self) -> str:
        """The value of a claim's `schedule` condition."""
        warmup, decay = round(self.warmup, 6), round(self.decay, 6)
        return f"linear warm-up {warmup:g} steps, then linear to {self.floor:g} over {decay:g} steps"


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups with and without weight decay. Biases are exempt; gains of layer norms are not, since the
    publisher's rule does not recognise apex's layer norm."""
    named = list(module.named_parameters())
    return [
        {"params": [p for name, p in named if not name.endswith("bias")], "weight_decay": weight_decay},
        {"params": [p for name, p in named if name.endswith("bias")], "weight_decay": 0.0},
    ]


def adamw(groups: list[dict[str, Any]], rate: float) -> tuple[torch.optim.Optimizer, str]:
    """AdamW for the groups, and the name of the implementation: on a device apex's if it can be imported, as
    published; else torch's, fused if available."""
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
    """Whether a tensor has an infinity or NaN, determined by its sum in fp32; synchronises."""
    return not math.isfinite(float(tensor.float().sum()))


def any_overflow(gradients: Iterable[Tensor], device: torch.device) -> bool:
    """Whether any rank has an overflow. Synchronises for each tensor up to the first overflow, and once for the
    ranks."""
    flag = torch.tensor([any(has_overflowed(gradient) for gradient in gradients)], dtype=torch.uint8, device=device)
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag[0].item())


def clip(parameters: list[Tensor], limit: float) -> float:
    """Scale gradients down to a global norm of `limit`. Returns the norm before.

    Synchronises for each tensor's norm, and once more for the sum of squares, which is copied to the device and back.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    squared = sum(float(gradient.norm(2)) ** 2 for gradient in gradients)
    norm = math.sqrt(torch.tensor([squared], dtype=torch.float32, device=parameters[0].device)[0].item())
    coefficient = limit / (norm + CLIP_EPSILON)
    if coefficient < 1:
        for gradient in gradients:
            gradient.mul_(coefficient)
    return norm


def zero(parameters: Iterable[Tensor]) -> None:
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
        self.adamw, self.kernel = adamw(self._groups(parameter_groups(module, weight_decay)), schedule.rate(0))

    def _groups(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return groups

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass."""
        loss.backward()

    def update(self) -> bool:
        """Update the parameters and zero the gradients. Returns False if the update was skipped."""
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.adamw.step()
        self._advance()
        self.zero()
        return True

    def zero(self) -> None:
        """Zero or release the gradients, as the optimizer does by default."""
        self.adamw.zero_grad()

    def facts(self) -> dict[str, Any]:
        """Facts about the updates for the record."""
        return {"adamw": self.kernel, "updates": self.updates, "skipped_steps": self.skipped, "loss_scale": None}

    def _advance(self) -> None:
        self.updates += 1
        for group in self.adamw.param_groups:
            group["lr"] = self.schedule.rate(self.updates)


class MasterOptimizer(Optimizer):
    """The optimizer for fp16 parameters: fp32 master copies, a scaled loss, and skipped updates on overflow."""

    def __init__(
        self, module: nn.Module, schedule: Schedule, weight_decay: float, clip_norm: float, scaler: LossScaler
    ) -> None:
        self.scaler = scaler
        self.pairs: list[tuple[nn.Parameter, Tensor]] = []
        super().__init__(module, schedule, weight_decay, clip_norm)

    def _groups(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The groups with an fp32 master copy of each parameter."""
        mastered = []
        for group in groups:
            masters = [p.detach().clone().float().requires_grad_() for p in group["params"]]
            self.pairs.extend(zip(group["params"], masters))
            mastered.append(dict(group, params=masters))
        return mastered

    def backward(self, loss: Tensor) -> None:
        (loss.float() * self.scaler.scale).backward()

    def update(self) -> bool:
        gradients = (p.grad for p, _ in self.pairs if p.grad is not None)
        overflow = any_overflow(gradients, self.pairs[0][0].device)
        if not overflow:
            self._gather()
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
        self.zero()
        return not overflow

    def _gather(self) -> None:
        """Copy the unscaled gradients to the master copies, in fp32."""
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

    def zero(self) -> None:
        """Overwrite the gradients of master copies and parameters with zeros; none is released."""
        for group in self.adamw.param_groups:
            zero(group["params"])
        zero(self.parameters)

    def facts(self) -> dict[str, Any]:
        return dict(super().facts(), loss_scale=self.scaler.scale)
