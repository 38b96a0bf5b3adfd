"""FlagPerf's GLM loop again: fp16 parameters with fp32 masters, a dynamic loss scale, a host clock around each step.

The device is waited for by the loss between forward and backward, by the sum of every gradient (has it overflowed?)
and by the norm of every master gradient and of all. Loading and hand-over are outside of the clock. One device is a
group, too: the model is wrapped and the loss reduced. The model is the case's own model file, the only part that is
not independent: no library has this model.

Source: FlagPerf 1b5a0303, training/benchmarks/glm/pytorch (train/trainer.py, optimizers, and its configurations).
"""

import math
import time
from typing import Any, Dict, List, Optional

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from flagbench_cases.glm import data as record
from flagbench_cases.glm.model import GlmForCloze, config_from

from . import Ran


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
    return peak * (1 - done) + peak * settings["final_share"] * done


def adamw(names: List[str], masters: List[torch.Tensor], weight_decay: float) -> torch.optim.Optimizer:
    """apex's FusedAdam where there is one, as published, else torch's, fused on a device. Only biases never decay."""
    groups = [
        {"params": [p for name, p in zip(names, masters) if not name.endswith("bias")], "weight_decay": weight_decay},
        {"params": [p for name, p in zip(names, masters) if name.endswith("bias")], "weight_decay": 0.0},
    ]
    options: Dict[str, Any] = {"lr": 0.0, "betas": (0.9, 0.999), "eps": 1e-8}
    if masters[0].is_cuda:
        try:
            from apex.optimizers import FusedAdam

            return FusedAdam(groups, adam_w_mode=True, **options)
        except ImportError:
            options["fused"] = True
    return torch.optim.AdamW(groups, **options)


def clip(gradients: List[torch.Tensor], limit: float) -> None:
    """To a global norm of `limit`, each tensor's own norm fetched to the host."""
    squared = sum(gradient.norm(2).item() ** 2 for gradient in gradients)
    norm = math.sqrt(torch.tensor([squared], device=gradients[0].device).item())
    if norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / (norm + 1e-6))


def train(config: Dict[str, Any], device: torch.device, steps: int, weights: Optional[Dict[str, Any]] = None) -> Ran:
    """Take `steps` steps of a resolved configuration, from random weights unless `weights` has others."""
    settings, half, ran = config["train"], config["precision"] == "fp16", Ran([], [])
    examples = record.load(config["data"], config["model"], None, config["seed"]).train
    torch.manual_seed(config["seed"])
    model = GlmForCloze(config_from(config["model"]))
    if weights is not None:
        model.load_state_dict(weights)
    (model.half() if half else model).to(device).train()
    names, parameters = zip(*model.named_parameters())
    masters = [p.detach().float().requires_grad_() for p in parameters] if half else list(parameters)
    for master in masters:
        master.grad = torch.zeros_like(master)
    pairs = list(zip(parameters, masters)) if half else []
    optimizer, scale = adamw(list(names), masters, settings["weight_decay"]), LossScale(settings)
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    network = DistributedDataParallel(model)
    sampler: Any = DistributedSampler(examples, 1, 0)  # shuffles by its own seed and the epoch
    loader = DataLoader(
        examples,
        settings["batch_size"],
        sampler=sampler,
        num_workers=config["data"]["workers"],
        collate_fn=record.collate,
        pin_memory=device.type == "cuda",
    )
    epoch = updates = 0
    while True:
        sampler.set_epoch(epoch)
        epoch += 1
        for batch in loader:
            *inputs, choices = (tensor.to(device) for tensor in batch[:6])
            start = time.time()
            scores = network(*inputs) * choices - 10000.0 * (1 - choices)
            loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=device))
            reduced = loss.detach().clone()
            dist.all_reduce(reduced)
            ran.losses.append(reduced.item())
            if math.isfinite(ran.losses[-1]):
                factor = scale.value if half else 1.0
                (loss.float() * factor).backward()
                overflow = half and any(not math.isfinite(p.grad.float().sum().item()) for p in parameters)
                if not overflow:
                    for parameter, master in pairs:
                        master.grad.copy_(parameter.grad).mul_(1 / factor)
                    clip([master.grad for master in masters], settings["clip_norm"])
                    for group in optimizer.param_groups:
                        group["lr"] = rate(updates, settings)
                    optimizer.step()
                    updates += 1
                    for parameter, master in pairs:
                        parameter.data.copy_(master.data)
                scale.adjust(overflow)
                for tensor in (*parameters, *masters):  # overwritten, not given back
                    tensor.grad.zero_()
            ran.seconds.append(time.time() - start)
            if len(ran.losses) == steps:
                return ran
