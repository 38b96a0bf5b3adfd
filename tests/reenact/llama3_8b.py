"""FlagPerf's Llama-3 8B loop again on one device: Megatron-LM core_v0.6.0 by its operators.

What differs from Megatron-LM of January 2024 (`llama2_70b`): Megatron-Core's layers with biases, dropout, learned
positions and a tied output layer; parameters in a buffer of their own, and a norm of all gradients before they are
reduced; a batch of five tensors from the loader, masks among them. torch's attention in one kernel stands for
flash-attn's, and torch's rms_norm for Transformer Engine's. Its functions for one kernel of pointwise operators are
compiled on a CUDA device, and called as they are on a processor.

Source: Megatron-LM cac60ce4, megatron/core (models/gpt, transformer, fusions, distributed, optimizer),
pretrain_gpt.py, and the options of FlagPerf 1b5a0303, training/benchmarks/llama3_8B/megatron/pretrain_llama3.sh.
"""

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from . import llama2_70b
from .llama2_70b_model import FLASH, CrossEntropy, Decoder, Norm, Product, Same

fused: Callable[[Any], Any] = torch.compile if torch.cuda.is_available() else lambda function: function


@fused
def swiglu(x: Tensor, bias: Tensor) -> Tensor:
    """[N, 2 F] and [2 F] to [N, F]."""
    gate, half = torch.chunk(x + bias, 2, -1)
    return F.silu(gate) * half


@fused
def swiglu_back(grad: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    """The gradient of what was the sum."""
    gate, half = torch.chunk(x + bias, 2, -1)
    of_gate = grad * torch.sigmoid(gate) * (1 + gate * (1 - torch.sigmoid(gate))) * half
    return torch.cat((of_gate, grad * F.silu(gate)), -1)


class BiasedSwiGLU(torch.autograd.Function):
    """A bias and SwiGLU, of which the input alone is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        """[N, 2 F] and [2 F] to [N, F]."""
        ctx.save_for_backward(x, bias)
        return swiglu(x, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, Tensor]:
        """The same for both: autograd sums that of the bias."""
        found = swiglu_back(grad, *ctx.saved_tensors)
        return found, found


@fused
def added(x: Tensor, bias: Tensor, residual: Tensor, p: float) -> Tensor:
    """Bias, dropout and residual."""
    return residual + F.dropout(x + bias, p=p, training=True)


class Generator:
    """The random numbers of a tensor-parallel rank, beside those that all have in common."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.of = torch.cuda if device.type == "cuda" else torch
        before = self.of.get_rng_state()
        self.of.manual_seed(seed + 2718)
        self.state = self.of.get_rng_state()
        self.of.set_rng_state(before)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Draw from it."""
        before = self.of.get_rng_state()
        self.of.set_rng_state(self.state)
        yield
        self.state = self.of.get_rng_state()
        self.of.set_rng_state(before)


class Linear(nn.Module):
    """A layer with a bias, which it adds or leaves to the caller."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(rows, columns)), nn.Parameter(torch.empty(rows))


class Layer(nn.Module):
    """Attention of H heads and G groups of W, and SwiGLU, each added to what it read."""

    def __init__(self, sizes: Dict[str, Any], generator: Generator) -> None:
        super().__init__()
        self.heads, self.groups, self.width = sizes["heads"], sizes["kv_heads"], sizes["dim"] // sizes["heads"]
        self.p, self.generator, dim = sizes["dropout"], generator, sizes["dim"]
        self.input_layernorm = Norm(sizes)
        mixed = Linear(dim, dim + 2 * self.groups * self.width)
        self.self_attention = nn.ModuleDict({"linear_proj": Linear(dim, dim), "linear_qkv": mixed})
        self.pre_mlp_layernorm = Norm(sizes)
        fc1, fc2 = Linear(dim, 2 * sizes["ffn"]), Linear(sizes["ffn"], dim)
        self.mlp = nn.ModuleDict({"linear_fc1": fc1, "linear_fc2": fc2})

    def forward(self, x: Tensor, _: Any) -> Tensor:
        """[T, B, D]."""
        projection, fc1, fc2 = self.self_attention["linear_proj"], self.mlp["linear_fc1"], self.mlp["linear_fc2"]
        found = self.attention(self.input_layernorm(x))
        x = added(Same.apply(Product.apply(found, projection.weight)), projection.bias, x, self.p)
        both = Product.apply(Same.apply(self.pre_mlp_layernorm(x)), fc1.weight)
        half = BiasedSwiGLU.apply(both.view(-1, both.shape[2]), fc1.bias).view(*both.shape[:2], -1)
        return viewless(added(Same.apply(Product.apply(half, fc2.weight)), fc2.bias, x, self.p))

    def attention(self, x: Tensor) -> Tensor:
        """[T, B, D]."""
        length, batch, layer = *x.shape[:2], self.self_attention["linear_qkv"]
        mixed = Product.apply(Same.apply(x), layer.weight, layer.bias).view(length, batch, self.groups, -1)
        sizes = [self.heads // self.groups * self.width, self.width, self.width]
        query, key, value = torch.split(mixed, sizes, dim=3)
        query = query.reshape(length, batch, -1, self.width)
        parts = [part.transpose(0, 1).contiguous() for part in (query, key, value)]
        with self.generator.used() if self.p else contextlib.nullcontext():
            found = self.kernel(*parts)
        return found.flatten(2).transpose(0, 1).contiguous()

    def kernel(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention [B, T, H, W]."""
        if FLASH is not None and query.is_cuda:
            return FLASH(query, key, value, self.p, causal=True)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        options = {"dropout_p": self.p, "is_causal": True, "enable_gqa": self.groups < self.heads}
        return F.scaled_dot_product_attention(query, key, value, **options).transpose(1, 2)


class Viewless(torch.autograd.Function):
    """A tensor that is no view, in the same memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """All of it."""
        found = torch.empty((1,), dtype=x.dtype, device=x.device)
        found.data = x.data
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """All of it."""
        return grad


def viewless(x: Tensor) -> Tensor:
    """The same, no view."""
    return x if x._base is None else Viewless.apply(x)


class Model(nn.Module):
    """T tokens of V, width D. Its parameters have the names of the case's own module."""

    def __init__(self, sizes: Dict[str, Any], rows: int, generator: Generator) -> None:
        super().__init__()
        self.p = sizes["dropout"]
        words, positions = nn.Embedding(rows, sizes["dim"]), nn.Embedding(sizes["positions"], sizes["dim"])
        self.embedding = nn.ModuleDict({"word_embeddings": words, "position_embeddings": positions})
        self.decoder = Decoder(sizes, functools.partial(Layer, generator=generator))

    def forward(self, tokens: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        """The loss [B, T] of each label [B, T]."""
        words = self.embedding["word_embeddings"].weight
        x = Same.apply(words[tokens]) + self.embedding["position_embeddings"](positions)
        x = viewless(F.dropout(x.transpose(0, 1).contiguous(), self.p, training=True))
        logits = Product.apply(Same.apply(self.decoder(x, None)), words)
        return CrossEntropy.apply(logits.float(), labels.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()


class Gradients(llama2_70b.Gradients):
    """The parameters lie in a buffer of their own, which the optimizer writes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.of_parameters = torch.empty(self.data.shape, dtype=self.dtype, device=self.data.device)
        self.at, at = {}, 0
        for parameter in self.parameters:
            self.at[parameter] = slice(at, at + parameter.numel())
            part = self.of_parameters[self.at[parameter]].view(parameter.shape)
            part.copy_(parameter.data)
            parameter.data, at = part, at + parameter.numel()

    def average(self) -> None:
        """Multiply by one over the number of replicas, after a look for what is not a number."""
        super().check(self.data.norm(p=2))
        self.data *= 1.0

    def check(self, norm: Tensor) -> None:
        """Nothing is looked for when they are clipped."""

    def flat(self, parameter: nn.Parameter) -> Tensor:
        """The gradient of a parameter, fp32."""
        return self.main[parameter].view(-1)[: parameter.numel()].float()

    def write(self, parameter: nn.Parameter, values: Tensor) -> None:
        """The new values of a parameter."""
        self.of_parameters.view(-1)[self.at[parameter]].data.copy_(values)

    def take(self) -> None:
        """The new parameters are those of the model."""


@functools.lru_cache(maxsize=None)
def cached(length: int) -> Tuple[Tensor, Tensor, Tensor]:
    """What the loader makes once: weights of the losses, positions, and the mask of the attention."""
    return torch.ones(length), torch.arange(length), torch.tril(torch.ones(length, length))[None] < 0.5


def inputs(block: Tensor, device: torch.device) -> Tuple[Tensor, ...]:
    """On the device: tokens, labels and positions [B, T], and the weight of each loss. The mask, which the kernel of
    the attention does not read, is sent, too."""
    tokens, labels = block[:, :-1].contiguous(), block[:, 1:].contiguous()
    batch = [torch.stack([part] * len(block)) for part in cached(tokens.shape[1])]
    counts, positions, mask = batch
    given = [part.to(device, non_blocking=True) for part in (tokens, labels, counts, mask, positions)]
    for part in given:
        dist.broadcast(part, 0)
    tokens, labels, counts, mask, positions = given
    return tokens, labels, positions, counts


def build(config: Dict[str, Any], rows: int, device: torch.device) -> nn.Module:
    """The model on the device."""
    generator = Generator(config["seed"], device)
    return Model(config["model"], rows, generator).to(device, llama2_70b.DTYPES[config["precision"]])


def steps(
    config: Dict[str, Any], device: torch.device, weights: Optional[Dict[str, Any]] = None
) -> Iterator[Optional[float]]:
    """The loss of each step of a resolved configuration."""
    return llama2_70b.steps(config, device, weights, llama2_70b.Parts(build, Gradients, inputs))
