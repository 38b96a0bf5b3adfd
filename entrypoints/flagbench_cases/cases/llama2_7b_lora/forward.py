"""The forward pass of the publisher's versions, transformers 4.31 and peft 0.4.

Newer versions compute the same with different operators, which save or copy less: labels are padded instead of
copying the logits, the mask is boolean, an adapter is not added in place.

Shapes: B batch, T tokens, D model width, H heads, K heads of keys and values, W width of a head, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple, Tuple

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Pair = Tuple[torch.Tensor, torch.Tensor]


class Output(NamedTuple):
    """What the model computes: see PublishedForward."""

    loss: torch.Tensor | None
    logits: torch.Tensor


class PublishedForward:
    """The `forward` of a Llama."""

    def __init__(self, model: Any, shape: Any, dtype: torch.dtype, device: torch.device) -> None:
        """Make the rotary tables of a model.

        `shape`: its LlamaShape; `dtype`: that of its parameters.
        """
        self.model = model
        self.shape = shape
        self.recompute = False
        """Whether layers are computed again in the backward pass."""
        self.tables = rotary_tables(shape, device)
        if dtype == torch.float16:  # for bf16, the publisher's tables stay in fp32
            cos, sin = self.tables
            self.tables = cos.half(), sin.half()

    def __call__(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """Return fp32 logits [B, T, V] of tokens [B, T] and, with labels [B, T], the mean loss in nats.

        `attention_mask` [B, T] is 0 for padding; without it, there is none. Other arguments are ignored.
        """
        base = self.model.model
        length = input_ids.shape[1]
        if attention_mask is None:
            attention_mask = torch.ones(input_ids.shape, dtype=torch.bool, device=input_ids.device)
        positions = torch.arange(0, length, dtype=torch.long, device=input_ids.device).unsqueeze(0).view(-1, length)
        hidden = base.embed_tokens(input_ids)
        mask = expanded(attention_mask, hidden.dtype) + causal(length, hidden).expand(len(input_ids), 1, -1, -1)
        for layer in base.layers:
            step = functools.partial(self._layer, layer, mask=mask, positions=positions)
            if self.recompute and torch.is_grad_enabled():
                hidden = checkpoint(step, hidden, use_reentrant=False)
            else:
                hidden = step(hidden)
        logits = self.model.lm_head(base.norm(hidden)).float()
        if labels is None:
            return Output(loss=None, logits=logits)
        return Output(loss=shifted_loss(logits, labels), logits=logits)

    def _layer(self, layer: Any, hidden: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self._attend(layer.self_attn, layer.input_layernorm(hidden), mask, positions)
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    def _attend(
        self, attention: Any, hidden: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Run attention with separate operators, its softmax in fp32: [B, T, D] to [B, T, D]."""
        shape = self.shape
        batch, length, width = hidden.shape
        head_dim = shape.dim // shape.heads
        queries_per_key = shape.heads // shape.kv_heads
        query = project(attention.q_proj, hidden).view(batch, length, shape.heads, head_dim).transpose(1, 2)
        key = project(attention.k_proj, hidden).view(batch, length, shape.kv_heads, head_dim).transpose(1, 2)
        value = project(attention.v_proj, hidden).view(batch, length, shape.kv_heads, head_dim).transpose(1, 2)
        cos, sin = (self._rows(table, value, positions) for table in self.tables)
        query = query * cos + rotate_half(query) * sin
        key = key * cos + rotate_half(key) * sin
        key = repeat_heads(key, queries_per_key)
        value = repeat_heads(value, queries_per_key)
        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(head_dim) + mask  # [B, H, T, T]
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        context = torch.matmul(weights, value).transpose(1, 2).contiguous()
        return attention.o_proj(context.reshape(batch, length, width))

    @staticmethod
    def _rows(table: torch.Tensor, like: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the rows [1, 1, T, W] of a table [1, 1, positions, W] for each token.

        As published, this is repeated in every layer.
        """
        rows = table[:, :, : like.shape[-2], ...].to(dtype=like.dtype).squeeze(1).squeeze(0)
        return rows[positions].unsqueeze(1)


def rotary_tables(shape: Any, device: torch.device) -> Pair:
    """Return cosines and sines of position / rope_theta ** (2 i / W), repeated twice: fp32 [1, 1, positions, W]."""
    width = shape.dim // shape.heads
    frequencies = 1.0 / (shape.rope_theta ** (torch.arange(0, width, 2).float() / width))
    angles = torch.outer(torch.arange(shape.positions).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)[None, None]
    return angles.cos().to(device), angles.sin().to(device)


def rotate_half(states: torch.Tensor) -> torch.Tensor:
    """Map the halves (a, b) of the last dimension to (-b, a)."""
    middle = states.shape[-1] // 2
    return torch.cat((-states[..., middle:], states[..., :middle]), dim=-1)


def repeat_heads(states: torch.Tensor, times: int) -> torch.Tensor:
    """Repeat each head of keys or values `times` times: [B, K, T, W] to [B, H, T, W]."""
    if times == 1:
        return states
    batch, heads, length, width = states.shape
    wide = states[:, :, None, :, :].expand(batch, heads, times, length, width)
    return wide.reshape(batch, heads * times, length, width)


def project(linear: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Apply a linear layer. Its adapter, if it has one, is added in place, as published."""
    if not hasattr(linear, "lora_A"):
        return linear(hidden)
    result = linear.base_layer(hidden)
    hidden = hidden.to(linear.lora_A.weight.dtype)
    result += linear.lora_B(linear.lora_A(linear.lora_dropout(hidden))) * linear.scaling
    return result


def causal(length: int, like: torch.Tensor) -> torch.Tensor:
    """Return the causal mask [1, 1, T, T] in the dtype of `like`: 0 if visible, else its lowest number."""
    mask = torch.full((length, length), torch.finfo(like.dtype).min, device=like.device)
    index = torch.arange(length, device=like.device)
    mask.masked_fill_(index < (index + 1).view(length, 1), 0)
    return mask.to(like.dtype)[None, None, :, :]


def expanded(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Expand a mask [B, T] to [B, 1, T, T]: 0 for a token, the lowest number of the dtype for padding."""
    batch, length = mask.shape
    inverted = 1.0 - mask[:, None, None, :].expand(batch, 1, length, length).to(dtype)
    return inverted.masked_fill(inverted.to(torch.bool), torch.finfo(dtype).min)


def shifted_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean next-token loss, nats per token. As published, logits and labels are copied."""
    shifted_logits = logits[..., :-1, :].contiguous()
    shifted_labels = labels[..., 1:].contiguous()
    return F.cross_entropy(shifted_logits.view(-1, shifted_logits.shape[-1]), shifted_labels.view(-1))
