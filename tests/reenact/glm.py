"""FlagPerf's GLM loop again: fp16 parameters with fp32 masters, a dynamic loss scale, a host clock around each step.

The device is waited for by the loss between forward and backward, by the sum of every gradient (has it overflowed?),
by the norm of every master gradient and of all, and, after the clock, by the loss that is logged. Loading and
hand-over are outside of the clock. One device has no process group and reduces nothing. The model is glm_model.py.

Source: FlagPerf 1b5a0303, training/benchmarks/glm/pytorch (train/trainer.py, optimizers, and its configurations) and
training/nvidia/glm-pytorch/extern/trainer_adapter.py.
"""

import math
import time
from typing import Any, Dict, Iterator, List, Optional

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

from flagbench_cases.cases.glm import data as dataset

from .glm_model import Model, random_parameters


class LossScale:
    """Halved when gradients overflow a second time and from then on, doubled after `window` steps without."""

    def __init__(self, settings: Dict[str, Any]) -> None:
        self.value = float(settings["loss_scale"])
        self.window = settings["loss_scale_window"]
        self.minimum = settings["loss_scale_min"]
        self.patience = self.left = settings["loss_scale_hysteresis"]
        self.good = 0

    def adjust(self, overflow: bool) -> None:
        """After the gradients of a step were looked at."""
        self.good = 0 if overflow else self.good + 1
        if overflow and self.left > 1:
            self.left -= 1
        elif overflow:
            self.value = max(self.value / 2, self.minimum)
        elif self.good % self.window == 0:
            self.value, self.left = self.value * 2, self.patience


def rate(update: int, settings: Dict[str, Any]) -> float:
    """The learning rate of an update, from 0 on: up from zero, then down to a share of the peak, both linear."""
    peak, total = settings["learning_rate"], settings["decay_steps"]
    warmup = settings["warmup_share"] * total
    if update <= warmup:
        return peak * update / warmup
    done = min(1.0, (update - warmup) / (total - warmup))
    return peak - peak * (1 - settings["final_share"]) * done


def adamw(parameters: Dict[str, torch.Tensor], weight_decay: float) -> torch.optim.Optimizer:
    """apex's FusedAdam where there is one, as published, else torch's, fused on a device. Only biases never decay."""
    biases = [p for name, p in parameters.items() if name.endswith("bias")]
    groups = [
        {"params": [p for name, p in parameters.items() if not name.endswith("bias")], "weight_decay": weight_decay},
        {"params": biases, "weight_decay": 0.0},
    ]
    options: Dict[str, Any] = {"lr": 0.0, "betas": (0.9, 0.999), "eps": 1e-8}
    if biases[0].is_cuda:
        try:
            from apex.optimizers import FusedAdam

            return FusedAdam(groups, adam_w_mode=True, **options)
        except ImportError:
            options["fused"] = True
    return torch.optim.AdamW(groups, **options)


def to_host(value: Any, kind: torch.dtype, device: torch.device) -> Any:
    """A number by way of the device."""
    return torch.tensor([value], dtype=kind, device=device)[0].item()


class Masters:
    """fp32 copies of fp16 parameters, which are what is updated."""

    def __init__(self, parameters: Dict[str, torch.Tensor], settings: Dict[str, Any]) -> None:
        self.copies = {name: p.detach().clone().float().requires_grad_() for name, p in parameters.items()}
        groups = sorted(parameters.items(), key=lambda item: item[0].endswith("bias"))
        self.pairs = [(p, self.copies[name]) for name, p in groups]
        self.device = self.pairs[0][0].device
        self.scale, self.limit = LossScale(settings), settings["clip_norm"]
        self.optimizer = adamw(self.copies, settings["weight_decay"])

    def step(self, loss: torch.Tensor) -> bool:
        """Backward and update; False where a gradient has overflowed and nothing is updated."""
        factor = self.scale.value
        (loss.float() * factor).backward()
        found = any(not math.isfinite(p.grad.float().sum().item()) for p, _ in self.pairs)
        overflow = bool(to_host(found, torch.uint8, self.device))
        if not overflow:
            gradients = self._gradients(factor)
            self._clip(gradients)
            self.optimizer.step()
            with torch.no_grad():
                for parameter, master in self.pairs:
                    parameter.copy_(master)
        self.scale.adjust(overflow)
        for tensor in (tensor for pair in self.pairs for tensor in pair):
            if tensor.grad is not None:  # overwritten, not given back
                tensor.grad.detach_()
                tensor.grad.zero_()
        return not overflow

    def _gradients(self, factor: float) -> List[torch.Tensor]:
        """Those of the copies: the parameters' own without the scale."""
        for parameter, master in self.pairs:
            if master.grad is None:
                master.grad = torch.empty_like(master)
            master.grad.copy_(parameter.grad)
        for _, master in self.pairs:
            if factor != 1.0:
                master.grad.mul_(1 / factor)
        return [master.grad for _, master in self.pairs]

    def _clip(self, gradients: List[torch.Tensor]) -> None:
        """To a global norm of `limit`, each tensor's own norm fetched to the host."""
        squared = sum(gradient.norm(2).item() ** 2 for gradient in gradients)
        norm = math.sqrt(to_host(squared, torch.float32, self.device))
        if norm > self.limit:
            for gradient in gradients:
                gradient.mul_(self.limit / (norm + 1e-6))


class Plain:
    """The same where the parameters are what is updated."""

    def __init__(self, parameters: Dict[str, torch.Tensor], settings: Dict[str, Any]) -> None:
        self.parameters, self.limit = list(parameters.values()), settings["clip_norm"]
        self.optimizer = adamw(parameters, settings["weight_decay"])

    def step(self, loss: torch.Tensor) -> bool:
        """Backward and update."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.limit)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return True


def loaded(config: Dict[str, Any], device: torch.device) -> Iterator[Any]:
    """Batches on the host, epoch after epoch."""
    examples = dataset.load(config["data"], config["model"], None, config["seed"]).train
    sampler: Any = DistributedSampler(examples, 1, 0)  # shuffles by its own seed and the epoch
    loader = DataLoader(
        examples,
        config["train"]["batch_size"],
        sampler=sampler,
        num_workers=config["data"]["workers"],
        collate_fn=dataset.collate,
        pin_memory=device.type == "cuda",
    )
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def steps(
    config: Dict[str, Any], device: torch.device, weights: Optional[Dict[str, Any]] = None
) -> Iterator[Optional[float]]:
    """The loss of each step of a resolved configuration, from random weights unless `weights` has others."""
    settings, half = config["train"], config["precision"] == "fp16"
    torch.manual_seed(config["seed"])
    begun = weights or random_parameters(config["model"])
    kind = torch.float16 if half else torch.float32
    table = {name: value.detach().to(device, kind, copy=True).requires_grad_() for name, value in begun.items()}
    model, updates = Model(config["model"], table), 0
    updater: Any = (Masters if half else Plain)(table, settings)
    loss = None
    for batch in loaded(config, device):
        yield loss
        *inputs, choices, labels = (tensor.to(device) for tensor in batch[:7])
        time.time()
        scores = model.scores(*inputs)
        mean = F.cross_entropy(scores * choices - 10000.0 * (1.0 - choices), labels)
        mean /= 1  # steps to accumulate
        reduced = mean.detach().clone().view(1) / 1  # devices
        loss = float(reduced.float().sum())
        for group in updater.optimizer.param_groups:
            group["lr"] = rate(updates, settings)
        if math.isfinite(loss):
            updates += updater.step(mean)
        time.time()
        str(mean)
        mean.item()
