"""The publisher's model again on one device: Megatron-LM's legacy layers of January 2024 by their operators.

Keys and values are repeated for every query of their group before the rotary embedding, whose angles are fp32 and
computed in every forward pass. torch's attention in one kernel stands for flash-attn's, and torch's rms_norm for
Apex's kernel. Collectives run in a group of one.

Source: FlagScale 26cd6643, megatron/model (llama_model.py, language_model.py, transformer.py) and what they call.
"""

from typing import Any, Callable, Dict, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

try:
    from flash_attn import flash_attn_func as FLASH
except ImportError:
    FLASH = None


class Product(torch.autograd.Function):
    """A matrix product whose backward pass is two."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
        """[T, B, I], [O, I] and maybe [O] to [T, B, O]."""
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        found = torch.matmul(x, weight.t())
        return found if bias is None else found + bias

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """The gradients of all; that of the weight is one product over all tokens."""
        x, weight = ctx.saved_tensors
        of_x = grad.matmul(weight)
        rows = grad.contiguous().view(-1, grad.shape[2])
        return of_x, rows.t().matmul(x.view(-1, x.shape[2])), rows.sum(dim=0) if ctx.biased else None


class Same(torch.autograd.Function):
    """Where ranks exchange parts, had a layer several."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """All of it."""
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """All of it."""
        return grad


class CrossEntropy(torch.autograd.Function):
    """The loss of each label under logits of which ranks could each have a part."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """fp32 [T, B, V] and [T, B] to [T, B]."""
        largest = torch.max(logits, dim=-1)[0]
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        logits = logits - largest.unsqueeze(-1)
        size = logits.shape[-1]
        elsewhere = (labels < 0) | (labels >= size)
        columns = labels.clone() - 0
        columns[elsewhere] = 0
        columns = columns.view(-1)
        rows = torch.arange(0, labels.numel(), device=logits.device)
        found = logits.view(-1, size)[rows, columns].clone().view_as(labels)
        found[elsewhere] = 0.0
        dist.all_reduce(found)
        shares = torch.exp(logits, out=logits)
        total = shares.sum(-1)
        dist.all_reduce(total)
        losses = torch.log(total) - found
        shares.div_(total.unsqueeze(-1))
        ctx.save_for_backward(shares, elsewhere, columns)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None]:
        """The softmax less one at each label, in the memory of the softmax."""
        shares, elsewhere, columns = ctx.saved_tensors
        of_rows = shares.view(-1, shares.shape[-1])
        rows = torch.arange(0, of_rows.shape[0], device=shares.device)
        of_rows[rows, columns] -= 1.0 - elsewhere.view(-1).float()
        return shares.mul_(grad.unsqueeze(-1)), None


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """x [T, B, H, W] by the rotary angles [T, 1, 1, W]: cosines and sines are computed for it alone."""
    width = angles.shape[-1]
    x, rest = x[..., :width], x[..., width:]  # nothing is left, and is joined again
    cosines, sines = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    low, high = torch.chunk(x, 2, dim=-1)
    x = (x * cosines) + (torch.cat((-high, low), dim=-1) * sines)
    return torch.cat((x, rest), dim=-1)


@torch.jit.script
def added(x: Tensor, residual: Tensor, p: float) -> Tensor:
    """The sum, after a dropout that TorchScript differentiates as one node: even that of p = 0 is run."""
    return residual + F.dropout(x, p=p, training=True)


class Norm(nn.Module):
    """A gain of D."""

    def __init__(self, sizes: Dict[str, Any]) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(sizes["dim"])), sizes["norm_eps"]

    def forward(self, x: Tensor) -> Tensor:
        """[T, B, D]."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Linear(nn.Module):
    """A layer without bias, `shared` with other ranks by its `rows` (outputs) or `columns` (inputs)."""

    def __init__(self, columns: int, rows: int, shared: str) -> None:
        super().__init__()
        self.weight, self.shared = nn.Parameter(torch.empty(rows, columns)), shared

    def forward(self, x: Tensor) -> Tensor:
        """[T, B, columns] to [T, B, rows]."""
        x = Product.apply(Same.apply(x) if self.shared == "rows" else x, self.weight)
        return Same.apply(x) if self.shared == "columns" else x


class Attention(nn.Module):
    """H heads of W; keys and values of G groups are copied for each head."""

    def __init__(self, sizes: Dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.groups, self.width = sizes["heads"], sizes["kv_heads"], sizes["dim"] // sizes["heads"]
        self.linear_qkv = Linear(sizes["dim"], sizes["dim"] + 2 * self.groups * self.width, "rows")
        self.linear_proj = Linear(sizes["dim"], sizes["dim"], "columns")

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """[T, B, D]."""
        length, batch, heads, groups, width = *x.shape[:2], self.heads, self.groups, self.width
        mixed = self.linear_qkv(x).view(length, batch, groups, -1)
        query, key, value = torch.split(mixed, [heads // groups * width, width, width], dim=3)
        query = query.reshape(length, batch, heads, width)
        if heads > groups:
            key, value = (part.repeat_interleave(heads // groups, dim=2) for part in (key, value))
        query, key = turned(query, angles), turned(key, angles)
        parts = [part.transpose(0, 1).contiguous() for part in (query, key, value)]
        found = self.kernel(*parts)
        return self.linear_proj(found.reshape(batch, length, -1).transpose(0, 1).contiguous())

    def kernel(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention [B, T, H, W]."""
        if FLASH is not None and query.is_cuda:
            return FLASH(query, key, value, causal=True)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)


class SwiGLU(nn.Module):
    """The gate and the linear half by one product."""

    def __init__(self, sizes: Dict[str, Any]) -> None:
        super().__init__()
        self.linear_fc1 = Linear(sizes["dim"], 2 * sizes["ffn"], "rows")
        self.linear_fc2 = Linear(sizes["ffn"], sizes["dim"], "columns")

    def forward(self, x: Tensor) -> Tensor:
        """[T, B, D]."""
        gate, half = torch.chunk(self.linear_fc1(x), 2, dim=-1)
        return self.linear_fc2(F.silu(gate) * half)


class Layer(nn.Module):
    """Attention and SwiGLU, each added to what it read."""

    def __init__(self, sizes: Dict[str, Any]) -> None:
        super().__init__()
        self.input_layernorm = Norm(sizes)
        self.self_attention = Attention(sizes)
        self.pre_mlp_layernorm = Norm(sizes)
        self.mlp = SwiGLU(sizes)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """[T, B, D]."""
        x = added(self.self_attention(self.input_layernorm(x), angles), x, 0.0)
        return added(self.mlp(self.pre_mlp_layernorm(x)), x, 0.0)


class Decoder(nn.Module):
    """All layers, and a norm."""

    def __init__(self, sizes: Dict[str, Any], layer: Callable[..., nn.Module] = Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(sizes) for _ in range(sizes["layers"]))
        self.final_layernorm = Norm(sizes)

    def forward(self, x: Tensor, angles: Any) -> Tensor:
        """[T, B, D]."""
        for layer in self.layers:
            x = layer(x, angles)
        return self.final_layernorm(x)


class Words(nn.Module):
    """The embeddings of V tokens."""

    def __init__(self, rows: int, sizes: Dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, sizes["dim"]))

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] to [B, T, D]. Tokens outside of the vocabulary are looked for, which waits for the device."""
        assert not torch.any((tokens < 0) | (tokens >= len(self.weight)))
        return Same.apply(self.weight[tokens])


class Model(nn.Module):
    """T tokens of V, width D. Its parameters have the names of the case's own module."""

    def __init__(self, sizes: Dict[str, Any], rows: int) -> None:
        super().__init__()
        width = sizes["dim"] // sizes["heads"]
        self.embedding = nn.ModuleDict({"word_embeddings": Words(rows, sizes)})
        self.decoder = Decoder(sizes)
        self.output_layer = Linear(sizes["dim"], rows, "rows")
        # No buffer, so that it stays in fp32.
        self.frequencies = 1.0 / sizes["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float32) / width)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The loss [B, T] of each label [B, T]."""
        x = self.embedding["word_embeddings"](tokens).transpose(0, 1).contiguous()
        x = F.dropout(x, 0.0, training=True)
        places = torch.arange(len(x), dtype=torch.float32, device=x.device) + 0
        angles = torch.outer(places, self.frequencies)
        logits = self.output_layer(self.decoder(x, torch.cat((angles, angles), dim=-1)[:, None, None, :]))
        return CrossEntropy.apply(logits.float(), labels.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()
