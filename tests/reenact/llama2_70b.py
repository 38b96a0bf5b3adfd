"""FlagPerf's Llama2-70B loop again on one device: Megatron-LM's training step of January 2024 by its operators.

An iteration reads its micro-batches, runs each forward and backward into a buffer of fp32 gradients, clips them,
updates fp32 copies of the parameters and copies these back through the memory of the gradients. It waits for the
device in every micro-batch, for its tokens and for its loss, and at the end, for the log. Collectives run in a group
of one, and are those of Megatron-Core 0.16: gloo copies what NCCL would not, in each of its collectives differently.
torch's AdamW and norms, tensor by tensor, stand for Apex's kernels, and weight gradients are accumulated by
an operator of their own, which Apex's kernel fuses into the product.

Source: FlagScale 26cd6643, pretrain_llama.py, megatron/training.py, megatron/optimizer, megatron/core/distributed and
the options of FlagPerf 1b5a0303, training/benchmarks/llama2_70B/megatron/megatron_main.sh.
"""

import math
import os
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _coalescing_manager

from flagbench_cases.cases.llama2_70b import data as text

from .llama2_70b_model import Model

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "tf32": torch.float32}


class Gradients:
    """All gradients in one fp32 buffer, the last parameter's first; through its memory come new parameters, too."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())[::-1]
        size = sum(parameter.numel() for parameter in self.parameters)
        device, self.dtype = self.parameters[0].device, self.parameters[0].dtype
        self.data = torch.zeros(size, device=device)
        self.of_parameters = self.data.view(self.dtype)[:size]
        self.main: Dict[nn.Parameter, Tensor] = {}
        self.new: Dict[nn.Parameter, Tensor] = {}
        self._hooked: List[Any] = []
        at = 0
        for parameter in self.parameters:
            end = at + parameter.numel()
            self.main[parameter] = self.data[at:end].view(parameter.shape)
            self.new[parameter] = self.of_parameters[at:end]
            accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            accumulator.register_hook(self._hook(parameter))
            self._hooked.append(accumulator)
            at = end

    def _hook(self, parameter: nn.Parameter) -> Any:
        def add(*_: Any) -> None:
            assert parameter.grad is not None
            self.main[parameter].add_(parameter.grad.data)
            parameter.grad = None

        return add

    def average(self) -> None:
        """Divide by the number of replicas."""
        self.data /= 1

    def reduce(self) -> None:
        """The mean over replicas."""
        self.average()
        with _coalescing_manager(dist.group.WORLD):
            dist.reduce_scatter_tensor(self.data, self.data)

    def flat(self, parameter: nn.Parameter) -> Tensor:
        """The gradient of a parameter, fp32."""
        return self.main[parameter].view(-1).float()

    def write(self, parameter: nn.Parameter, values: Tensor) -> None:
        """The new values of a parameter."""
        self.new[parameter].copy_(values)

    def check(self, norm: Tensor) -> None:
        """Look whether a norm of all gradients is a number, which waits for the device."""
        assert not norm.isnan()

    def spread(self) -> None:
        """Gather the new parameters of all ranks, copy them into the model, and clear the gradients."""
        with _coalescing_manager(dist.group.WORLD):
            dist.all_gather_into_tensor(self.of_parameters, self.of_parameters)
        self.take()
        self.data.zero_()

    def take(self) -> None:
        """Copy the new parameters into the model."""
        for parameter in self.parameters:
            parameter.view(-1).detach().copy_(self.new[parameter])


class Optimizer:
    """AdamW on fp32 copies, after clipping by the norm of all gradients."""

    def __init__(self, gradients: Gradients, train: Dict[str, Any]) -> None:
        self.gradients, self.clip = gradients, train["clip"]
        self.copies = {
            parameter: nn.Parameter(parameter.detach().clone().view(-1).float())
            for parameter in gradients.parameters[::-1]
        }
        decays = [[], []]
        for parameter, copy in self.copies.items():
            decays[parameter.dim() == 1].append(copy)
        self.adam = torch.optim.AdamW(
            [{"params": decays[0]}, {"params": decays[1], "weight_decay": 0.0}],
            lr=train["learning_rate"],
            weight_decay=train["weight_decay"],
            betas=(train["beta1"], train["beta2"]),
            eps=train["epsilon"],
        )
        self.one = torch.tensor([1.0], device=gradients.data.device)

    @torch.no_grad()
    def step(self) -> None:
        """One update, whose gradients are all finite."""
        gradients = self.gradients
        for parameter, copy in self.copies.items():
            copy.grad = gradients.flat(parameter)
        self._clip([copy.grad for group in self.adam.param_groups for copy in group["params"]])
        self.adam.step()
        for parameter, copy in self.copies.items():
            gradients.write(parameter, copy)
        gradients.spread()

    def _clip(self, found: List[Tensor]) -> None:
        norm = torch.norm(torch.tensor([torch.norm(gradient) for gradient in found]))
        total = torch.tensor([float(norm)], device=found[0].device) ** 2.0
        self.gradients.check(total)
        dist.all_reduce(total)
        factor = self.clip / (total.item() ** 0.5 + 1.0e-6)
        if factor < 1.0:
            for gradient in found:
                gradient.mul_(factor)


class Schedule:
    """The learning rate: a linear rise, then half a cosine, by samples."""

    def __init__(self, train: Dict[str, Any], adam: torch.optim.Optimizer) -> None:
        self.high, self.low, self.end = train["learning_rate"], train["min_learning_rate"], train["schedule_samples"]
        self.rise, self.adam, self.samples = train["warmup_share"] * self.end, adam, 0
        self.step(0)

    def step(self, samples: int) -> None:
        """After an update by so many samples."""
        self.samples += samples
        if self.rise > 0 and self.samples <= self.rise:
            rate = self.high * self.samples / self.rise
        elif self.samples > self.end:
            rate = self.low
        else:
            part = (self.samples - self.rise) / (self.end - self.rise)
            rate = self.low + 0.5 * (math.cos(math.pi * part) + 1.0) * (self.high - self.low)
        for group in self.adam.param_groups:
            group["lr"] = rate


def inputs(block: Tensor, device: torch.device) -> Tuple[Tensor, ...]:
    """On the device: tokens and labels [B, T], and the weight of each loss. The masks of the attention, which its
    kernel does not read, and the positions are made, too."""
    sizes = torch.tensor([*block.shape, 0, 0, 0], device=device)
    dist.broadcast(sizes, 0)
    sizes.cpu()
    flat = torch.cat([block.contiguous().view(-1)], dim=0).to(device)
    dist.broadcast(flat, 0)
    tokens = flat.narrow(0, 0, block.numel()).view(block.shape).long()
    labels, tokens = tokens[:, 1:].contiguous(), tokens[:, :-1].contiguous()
    length = tokens.shape[1]
    triangle = torch.tril(torch.ones((1, length, length), device=device)).view(1, 1, length, length)
    counts = torch.ones(tokens.shape, dtype=torch.float, device=device)
    torch.arange(length, dtype=torch.long, device=device).unsqueeze(0).expand_as(tokens)
    triangle < 0.5  # noqa: B015 - made, and not used
    return tokens, labels, counts


def forward(model: nn.Module, given: Tuple[Tensor, ...]) -> Tuple[Tensor, Tensor]:
    """The loss of a micro-batch, and its mean over replicas, for the log."""
    *arguments, counts = given
    losses = model(*arguments).float()
    counts = counts.view(-1).float()
    loss = torch.sum(losses.view(-1) * counts) / counts.sum()
    assert not loss.isnan()
    logged = torch.cat([loss.clone().detach().view(1)])
    dist.all_reduce(logged)
    return loss * 1, (logged / 1)[0]


def build(config: Dict[str, Any], rows: int, device: torch.device) -> nn.Module:
    """The model on the device."""
    model = Model(config["model"], rows).to(device, DTYPES[config["precision"]])
    model.frequencies = model.frequencies.to(device)
    return model


class Parts(NamedTuple):
    """What releases of Megatron-LM do in their own way."""

    build: Callable[[Dict[str, Any], int, torch.device], nn.Module] = build
    buffers: Callable[[nn.Module], Gradients] = Gradients
    inputs: Callable[[Tensor, torch.device], Tuple[Tensor, ...]] = inputs


OF_2024 = Parts()


def steps(
    config: Dict[str, Any],
    device: torch.device,
    weights: Optional[Dict[str, Any]] = None,
    parts: Parts = OF_2024,
) -> Iterator[Optional[float]]:
    """The loss of each step of a resolved configuration."""
    if weights is None:
        raise ValueError("give the weights of the case's own module")
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    torch._C._jit_set_texpr_fuser_enabled(False)
    torch._C._debug_set_autodiff_subgraph_inlining(False)  # else the layers' dropout is not differentiated as a node
    train = config["train"]
    model = parts.build(config, len(weights["embedding.word_embeddings.weight"]), device)
    model.load_state_dict({name: tensor for name, tensor in weights.items() if isinstance(tensor, Tensor)})
    gradients = parts.buffers(model.train())
    optimizer = Optimizer(gradients, train)
    schedule = Schedule(train, optimizer.adam)
    micro, samples = train["micro_batch_size"], train["batch_size"]
    count = samples // micro
    planned = max(1, train["schedule_samples"] // samples)
    blocks = text.load(config["data"], config["model"], None, planned * samples, config["seed"]).blocks
    value, begun = None, time.time()
    with open(os.devnull, "w", encoding="utf-8") as sink:
        while True:
            for number, batch in enumerate(text.batches(blocks, planned, 0, 1, micro, count)):
                yield value
                logged = []
                for block in batch:
                    loss, shown = forward(model, parts.inputs(block, device))
                    logged.append(shown)
                    (optimizer.one * (loss / count)).backward()
                gradients.reduce()
                optimizer.step()
                schedule.step(samples)
                value = float(torch.zeros(1, device=device) + sum(logged) / count)
                seconds, begun = time.time() - begun, time.time()
                print("iteration %d | %.1f ms | loss %.6E" % (number, seconds * 1e3, value), file=sink, flush=True)
