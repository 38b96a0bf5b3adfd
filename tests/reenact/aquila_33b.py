"""FlagPerf's Aquila-33B loop again on one device: Megatron-LM of 2023 by its operators, a host clock for each step.

A step copies a sentence to the device, which waits for the step before, makes its mask, and computes the losses of
all positions. They are summed on the device and never read. Loading, both printed lines and the sum over replicas are
outside of the clock. What did not change until 2024 is in llama2_70b_model.py. The softmax is that of a rank with six
heads, which has no fused one.

Verified beside the publisher's own code of that commit, which ran on a CPU with the same weights and tokens, four
layers in fp32 and in bf16: all logits and losses are equal, and so are the operators by name, count and bytes, views
included, of a layer and of a step with the sum over replicas. In bf16 the publisher's wrapper also detaches three
inputs and the logits, which moves nothing and is left out. For this, the norm of both was the same few operators, in
Apex's rounding.

Source: FlagPerf e4c7e52d, inference/benchmarks/Aquila_33b (flagscale/tasks/aquila/evaluate.py and what it calls).
"""

import contextlib
import math
import os
import time
from typing import Any, Dict, Iterator, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

from flagbench_cases.cases.aquila_33b import sentences

from .llama2_70b_model import CrossEntropy, Linear, Norm, Same, SwiGLU

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
HIDDEN = -10000.0


def viewless(x: Tensor) -> Tensor:
    """Its memory under a tensor that is no view."""
    found = torch.empty((1,), dtype=x.dtype, device=x.device)
    found.data = x.data
    return found


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """x [T, 1, H, W] by the rotary angles [T, 1, 1, W]: cosines and sines are computed for it alone."""
    width = angles.shape[-1]
    x, rest = x[..., :width], x[..., width:]  # nothing is left, and is joined again
    along = x * angles.cos()
    low, high = torch.chunk(x, 2, dim=-1)
    across = torch.cat((-high, low), dim=-1) * angles.sin()
    return torch.cat((along + across, rest), dim=-1)


class Softmax(nn.Module):
    """Softmax in fp32 of scores [1, H, T, T], each operator on its own, and back to the precision of the model."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, scores: Tensor, hidden: Tensor) -> Tensor:
        """Scores are first multiplied by the number of the layer, by which they were divided."""
        dtype = scores.dtype
        scores = scores.float() * self.number
        return nn.Softmax(dim=-1)(scores.masked_fill_(hidden, HIDDEN)).to(dtype)


class Core(nn.Module):
    """What queries [T, 1, H, W] find in values under keys of that shape: [T, 1, H W]."""

    buffer: Optional[Tensor] = None  # memory that all layers use for their scores
    random: Optional[Tensor] = None  # the state of a rank's own generator, for dropout

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.softmax = Softmax(number)
        self.dropout = nn.Dropout(0.1)

    def _memory(self, like: Tensor, *shape: int) -> Tensor:
        count = math.prod(shape)
        if Core.buffer is None or Core.buffer.numel() < count or Core.buffer.dtype is not like.dtype:
            Core.buffer = torch.empty(count, dtype=like.dtype, device=like.device)
        return Core.buffer[:count].view(shape)

    @contextlib.contextmanager
    def _own_random_state(self, cuda: bool) -> Iterator[None]:
        generator: Any = torch.cuda if cuda else torch
        others = generator.get_rng_state()
        generator.set_rng_state(others if Core.random is None else Core.random)
        yield
        Core.random = generator.get_rng_state()
        generator.set_rng_state(others)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Tensor:
        """`hidden` [1, 1, T, T] is True where a position may not look."""
        length, _, heads, width = query.shape
        query, key = query.reshape(length, heads, -1), key.view(length, heads, -1)
        scores = torch.baddbmm(
            self._memory(query, heads, length, length),
            query.transpose(0, 1),
            key.transpose(0, 1).transpose(1, 2),
            beta=0.0,
            alpha=1.0 / (math.sqrt(width) * self.number),
        )
        shares = self.softmax(scores.view(1, heads, length, length), hidden)
        with self._own_random_state(query.is_cuda):
            shares = self.dropout(shares)
        value = value.view(length, heads, -1)
        found = torch.bmm(shares.view(heads, length, -1), value.transpose(0, 1)).view(1, heads, length, width)
        return found.permute(2, 0, 1, 3).contiguous().view(length, 1, -1)


class Attention(nn.Module):
    """H heads of W; keys and values of G groups are copied for each head."""

    def __init__(self, sizes: Dict[str, Any], number: int) -> None:
        super().__init__()
        self.heads, self.groups, self.width = sizes["heads"], sizes["kv_heads"], sizes["dim"] // sizes["heads"]
        self.linear_qkv = Linear(sizes["dim"], sizes["dim"] + 2 * self.groups * self.width, "rows")
        self.core = Core(number)
        self.linear_proj = Linear(sizes["dim"], sizes["dim"], "columns")

    def forward(self, x: Tensor, hidden: Tensor, angles: Tensor) -> Tensor:
        """[T, 1, D]."""
        length, heads, groups, width = x.shape[0], self.heads, self.groups, self.width
        mixed = self.linear_qkv(x).view(length, 1, groups, -1)
        query, key, value = torch.split(mixed, [heads // groups * width, width, width], dim=3)
        query = query.reshape(length, 1, heads, width)
        key, value = (part.repeat_interleave(heads // groups, dim=2) for part in (key, value))
        query = turned(query, angles)
        key = turned(key, angles)
        found = self.core(query, key, value, hidden)
        return self.linear_proj(found)


class Layer(nn.Module):
    """The layer of this number, from 1 on."""

    def __init__(self, sizes: Dict[str, Any], number: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(sizes)
        self.self_attention = Attention(sizes, number)
        self.pre_mlp_layernorm = Norm(sizes)
        self.mlp = SwiGLU(sizes)

    def forward(self, x: Tensor, hidden: Tensor, angles: Tensor) -> Tensor:
        """[T, 1, D]. Tensors live as long as the publisher's, which have names: that costs caches."""
        normed = self.input_layernorm(x)
        attended = self.self_attention(normed, hidden, angles)
        middle = x + F.dropout(attended, 0.1, training=False)
        normed = self.pre_mlp_layernorm(middle)
        found = self.mlp(normed)
        return middle + F.dropout(found, 0.1, training=False)


class Angles(nn.Module):
    """Of the rotary embedding, in the precision of the model."""

    def __init__(self, sizes: Dict[str, Any]) -> None:
        super().__init__()
        width = sizes["dim"] // sizes["heads"]
        powers = torch.arange(0, width, 2).float() / width
        self.register_buffer("frequencies", 1.0 / sizes["rope_theta"] ** powers, persistent=False)

    def forward(self, length: int) -> Tensor:
        """[T, 1, 1, W]."""
        places = torch.arange(length, dtype=torch.float32, device=self.frequencies.device) + 0
        found = torch.einsum("i,j->ij", places.type_as(self.frequencies), self.frequencies)
        return torch.cat((found, found), dim=-1)[:, None, None, :]


class Decoder(nn.Module):
    """All layers, and a norm."""

    def __init__(self, sizes: Dict[str, Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(sizes, number + 1) for number in range(sizes["layers"]))
        self.final_layernorm = Norm(sizes)

    def forward(self, x: Tensor, hidden: Tensor, angles: Tensor) -> Tensor:
        """[T, 1, D]."""
        x = viewless(x)
        for layer in self.layers:
            x = layer(x, hidden, angles)
        return self.final_layernorm(x)


class Model(nn.Module):
    """T tokens of V, width D. Its parameters have the names of the case's own module."""

    def __init__(self, sizes: Dict[str, Any], rows: int) -> None:
        super().__init__()
        self.embedding = nn.ModuleDict({"word_embeddings": nn.Embedding(rows, sizes["dim"])})
        self.angles = Angles(sizes)
        self.decoder = Decoder(sizes)
        self.output_layer = Linear(sizes["dim"], rows, "")

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """fp32 logits [1, T, V] of tokens [1, T]."""
        x = Same.apply(F.embedding(tokens, self.embedding["word_embeddings"].weight))
        x = F.dropout(x.transpose(0, 1).contiguous(), 0.1, training=False)
        x = self.decoder(x, hidden, self.angles(tokens.shape[1]))
        return self.output_layer(x).transpose(0, 1).contiguous().float()


def inputs(batch: Any, device: torch.device) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """On the device: tokens and labels [1, T], the mask [1, 1, T, T], and bytes [1, T], 1 where a label counts."""
    tokens, counts = batch
    counts = counts.long().to(device).contiguous().byte()
    tokens = tokens.long().to(device).contiguous()
    labels, tokens = tokens[:, 1:].contiguous(), tokens[:, :-1].contiguous()
    length = tokens.shape[1]
    triangle = torch.tril(torch.ones((1, length, length), device=device)).view(1, 1, length, length)
    torch.ones(tokens.shape, dtype=torch.float, device=device)  # a mask of the losses, not used
    torch.arange(length, dtype=torch.long, device=device).unsqueeze(0).expand_as(tokens)  # positions, not used
    return tokens, labels, triangle < 0.5, counts


def forward(model: Model, batch: Any, device: torch.device) -> Tensor:
    """The mean loss of a sentence, a scalar on the device."""
    tokens, labels, hidden, counts = inputs(batch, device)
    losses = CrossEntropy.apply(model(tokens, hidden).contiguous().float(), labels.contiguous())
    total = torch.sum(losses.view(-1) * counts.contiguous().view(-1).float())
    return total / torch.sum(counts.contiguous().view(-1).float())


def load(config: Dict[str, Any], device: torch.device, weights: Dict[str, Any]) -> Model:
    """The model with these weights, all of it in the precision of the configuration, the frequencies too."""
    model = Model(config["model"], len(weights["output_layer.weight"]))
    model.to(device, DTYPES[config["precision"]])
    model.load_state_dict({name: tensor for name, tensor in weights.items() if isinstance(tensor, Tensor)})
    return model.eval()


def steps(
    config: Dict[str, Any], device: torch.device, weights: Optional[Dict[str, Any]] = None
) -> Iterator[Optional[Tensor]]:
    """The loss of each step of a resolved configuration, a scalar on the device that was not waited for."""
    if weights is None:
        raise ValueError("give the weights of the case's own module")
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    model, data = load(config, device, weights), config["data"]
    texts = sentences.load(data, config["model"], None, config["seed"]).sentences
    loader = DataLoader(
        texts,
        config["infer"]["batch_size"],
        sampler=DistributedSampler(texts, 1, 0),
        num_workers=data["workers"],
        pin_memory=device.type == "cuda",
    )
    clock, tokens, value, total = 0.0, 0, None, 0.0
    with open(os.devnull, "w", encoding="utf-8") as sink:
        while True:
            for number, batch in enumerate(loader):
                yield value
                with torch.no_grad():
                    print("> sentence %d" % number, file=sink, flush=True)
                    begun = time.time()
                    value = forward(model, batch, device)
                    clock += time.time() - begun
                    tokens += data["sequence_length"]
                    print("tokens/s: %s" % (tokens / clock), file=sink, flush=True)
                    dist.all_reduce(value)
                    total += value
