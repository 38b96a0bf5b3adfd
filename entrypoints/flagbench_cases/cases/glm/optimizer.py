"""How GLM's parameters are updated: AdamW on fp32 masters of fp16 parameters, a dynamic loss scale, the schedule.

The order of operations, and each wait for the device, is that of FlagPerf training/benchmarks/glm/pytorch/optimizers
(an `FP16_Optimizer` of Megatron's line) and of its `backward_step`. AdamW itself is apex's FusedAdam where that is
there, as the publisher has it, else torch's.
"""

import inspect
import math
from typing import Any, Dict, Iterable, List, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

BETAS = (0.9, 0.999)
EPSILON = 1e-8
# What keeps the coefficient of clipping finite for a zero gradient.
CLIP_EPSILON = 1e-6


class LossScaler:
    """The dynamic loss scale: halved when gradients overflow, doubled after `window` updates without.

    The first overflow after a doubling (and after the start) only uses up one of `hysteresis`; once they are used up
    every overflow halves.
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

    `total` updates in all, a share `warmup` of them to warm up; the first update has the rate zero, as published.
    An update that was skipped does not count.
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
        """In the words of a claim's `schedule` condition."""
        parts = (round(self.warmup, 6), self.floor, round(self.decay, 6))
        return "linear warm-up %g steps, then linear to %g over %g steps" % parts


def parameter_groups(module: nn.Module, weight_decay: float) -> List[Dict[str, Any]]:
    """Biases are exempt from decay. Gains of layer norms are not: apex's norm, which the publisher swaps in, escapes
    the rule that exempts torch's."""
    named = list(module.named_parameters())
    return [
        {"params": [p for name, p in named if not name.endswith("bias")], "weight_decay": weight_decay},
        {"params": [p for name, p in named if name.endswith("bias")], "weight_decay": 0.0},
    ]


def adamw(groups: List[Dict[str, Any]], rate: float) -> Tuple[torch.optim.Optimizer, str]:
    """AdamW over the groups, and whose it is: on a device apex's fused one where it can be imported, as the publisher
    has it; else torch's, fused where torch has that."""
    if all(p.device.type == "cuda" for group in groups for p in group["params"]):
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
    """Whether there is an infinity or a NaN in it, told by its sum in fp32; waits for the device."""
    return not math.isfinite(float(tensor.float().sum()))


def any_overflow(gradients: Iterable[Tensor], device: torch.device) -> bool:
    """Whether any rank has an overflow. A wait for each tensor until the first that has, then one for the others."""
    flag = torch.tensor([any(has_overflowed(gradient) for gradient in gradients)], dtype=torch.uint8, device=device)
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag[0].item())


def clip(parameters: List[Tensor], limit: float) -> float:
    """Scale gradients down to a global norm of `limit`. Returns the norm before.

    A wait for each tensor's norm, and one more: the sum of their squares goes to the device and comes back, in fp32.
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
    """Overwrite the gradients there are with zeros."""
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
        self.parameters: List[Tensor] = list(module.parameters())
        self.adamw, self.kernel = adamw(self._groups(parameter_groups(module, weight_decay)), schedule.rate(0))

    def _groups(self, groups: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        return groups

    def backward(self, loss: Tensor) -> None:
        """The backward pass, each gradient left in its parameter."""
        loss.backward()

    def update(self) -> bool:
        """One update from the gradients there are, which are zeroed. False where it was skipped."""
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.adamw.step()
        self._advance()
        self.zero()
        return True

    def zero(self) -> None:
        """Zero the gradients or give them back, whichever the optimizer does by default."""
        self.adamw.zero_grad()

    def facts(self) -> Dict[str, Any]:
        """What a record says of the updates once training has ended."""
        return {"adamw": self.kernel, "updates": self.updates, "skipped_steps": self.skipped, "loss_scale": None}

    def _advance(self) -> None:
        self.updates += 1
        for group in self.adamw.param_groups:
            group["lr"] = self.schedule.rate(self.updates)


class MasterOptimizer(Optimizer):
    """The same for fp16 parameters: AdamW on fp32 masters, the loss scaled, overflowing steps skipped."""

    def __init__(
        self, module: nn.Module, schedule: Schedule, weight_decay: float, clip_norm: float, scaler: LossScaler
    ) -> None:
        self.scaler = scaler
        self.pairs: List[Tuple[nn.Parameter, Tensor]] = []
        super().__init__(module, schedule, weight_decay, clip_norm)

    def _groups(self, groups: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """The groups with a master for each parameter, a copy of it in fp32."""
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
        """Copy the gradients to the masters, in fp32, without the scale."""
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
        """Overwrite the gradients of masters and parameters with zeros; none is given back."""
        for group in self.adamw.param_groups:
            zero(group["params"])
        zero(self.parameters)

    def facts(self) -> Dict[str, Any]:
        return dict(super().facts(), loss_scale=self.scaler.scale)
