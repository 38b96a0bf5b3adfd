"""GLM with its head for multi-token cloze, with the operators of the published run.

Shapes: B examples of C choices each, N = B * C sequences, T sequence length, D model width, H heads, V vocabulary.
Parameter names are those of THUDM's GLM checkpoints (under `module`), so that these can be loaded directly. The
operators, and the tensors saved for backward, are the publisher's: eager attention, a TorchScript GELU, separately
added output biases. tests/reenact/glm.py has an independent implementation of the model, which tests compare operator
by operator. Sources: FlagPerf training/benchmarks/glm/pytorch/model and training/nvidia/glm-pytorch/extern, and the
paper arXiv:2103.10360.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

LAYER_NORM_EPSILON = 1e-5
HIDDEN = -65504.0
"""Added to the scores of hidden columns: the lowest finite fp16 number, in every precision."""
PADDED_TRAINING = -1e4
"""The score of padding choices in training."""
PADDED_EVALUATION = -1e9
"""The score of padding choices in evaluation."""


@dataclass(frozen=True)
class GlmConfig:
    """Sizes of the model; every field is a key of the case manifest's `model` section.

    `positions` is the size of each position table, one more than the longest sequence. `recompute` saves only the
    input of each layer for the backward pass and recomputes the rest.
    """

    name: str
    layers: int
    dim: int
    heads: int
    vocab_size: int
    positions: int
    dropout: float
    attention_dropout: float
    embedding_dropout: float
    initializer_range: float
    recompute: bool

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} is not a multiple of {self.heads} heads")


@torch.jit.script
def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU, in TorchScript as published: x/2 * (1 + tanh(sqrt(2/pi) * x * (1 + 0.044715 * x * x))).

    Its compiled graph saves x and six intermediate results for the backward pass; torch's own GELU saves only x.
    """
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * x * (1.0 + 0.044715 * x * x)))


def layer_norm(dim: int) -> nn.Module:
    """Return a layer norm: apex's fused one if apex and its extension can be imported, else torch's.

    The publisher's code for NVIDIA, MetaX, Iluvatar and Hygon devices uses apex's. The parameter names are the same.
    """
    try:
        from apex.normalization import FusedLayerNorm

        return FusedLayerNorm(dim, eps=LAYER_NORM_EPSILON)
    except ImportError:  # apex imports its extension when a layer is made
        return nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON)


def block_mask(sep: Tensor, like: Tensor) -> Tensor:
    """Return which columns each row sees: [N, 1, T, T] of 1 and 0 in the dtype of `like` [N, T, ...].

    Part A (the columns before `sep` [N]) is visible to all rows. Of the others, a row sees those up to itself.
    """
    count, length = like.shape[:2]
    mask = like.new_ones((1, length, length)).tril().expand(count, -1, -1)
    part_a = torch.arange(length, device=sep.device, dtype=sep.dtype).view(1, -1) < sep.view(-1, 1)  # [N, T]
    return mask.masked_fill(part_a.unsqueeze(1).expand_as(mask), 1).unsqueeze(1)


class OutputLinear(nn.Linear):
    """A linear layer that adds its bias in a separate operator, as published."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) + self.bias


class SelfAttention(nn.Module):
    """Multi-head self-attention under a mask of 1 and 0: [N, T, D] and [N, 1, T, T] to [N, T, D]."""

    def __init__(self, config: GlmConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_dim = config.dim // config.heads
        self.query_key_value = nn.Linear(config.dim, 3 * config.dim)  # rows q, then k, then v
        self.attention_dropout = nn.Dropout(config.attention_dropout)
        self.dense = OutputLinear(config.dim, config.dim)
        self.output_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        count, length, dim = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(count, length, self.heads, self.head_dim).permute(0, 2, 1, 3)  # [N, H, T, D/H]

        q, k, v = (split(part) for part in self.query_key_value(x).split(dim, dim=-1))
        scores = torch.matmul(q, k.transpose(-1, -2) / math.sqrt(self.head_dim))  # [N, H, T, T]
        scores = scores * mask + HIDDEN * (1.0 - mask)
        weights = self.attention_dropout(F.softmax(scores, dim=-1))
        context = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous().view(count, length, dim)
        return self.output_dropout(self.dense(context))


class FeedForward(nn.Module):
    """The MLP of a layer: [N, T, D] to four times the width and back to [N, T, D]."""

    def __init__(self, config: GlmConfig) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(config.dim, 4 * config.dim)
        self.dense_4h_to_h = OutputLinear(4 * config.dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.dense_4h_to_h(gelu(self.dense_h_to_4h(x))))


class Layer(nn.Module):
    """One pre-norm layer: attention and MLP, each on normalised input and with a residual connection."""

    def __init__(self, config: GlmConfig) -> None:
        super().__init__()
        self.input_layernorm = layer_norm(config.dim)
        self.attention = SelfAttention(config)
        self.post_attention_layernorm = layer_norm(config.dim)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.input_layernorm(x), mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    """Position tables, layers, final norm: word embeddings [N, T, D] to [N, T, D]."""

    def __init__(self, config: GlmConfig) -> None:
        super().__init__()
        self.recompute = config.recompute
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.position_embeddings = nn.Embedding(config.positions, config.dim)
        self.block_position_embeddings = nn.Embedding(config.positions, config.dim)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.final_layernorm = layer_norm(config.dim)

    def forward(self, x: Tensor, positions: Tensor, sep: Tensor) -> Tensor:
        """`positions` [N, 2, T]: position in part A, and position within the answer (0 in part A)."""
        mask = block_mask(sep, x)
        x = x + self.position_embeddings(positions[:, 0])
        x = x + self.block_position_embeddings(positions[:, 1])
        x = self.embedding_dropout(x)
        recompute = self.recompute and torch.is_grad_enabled()  # nothing is saved without gradients
        for layer in self.layers:
            # Reentrant, as published: the whole layer is run again with the same random state.
            x = checkpoint(layer, x, mask, use_reentrant=True) if recompute else layer(x, mask)
        return self.final_layernorm(x)


class Glm(nn.Module):
    """The language model: tokens [N, T], positions [N, 2, T], length of part A [N] to logits [N, T, V]."""

    def __init__(self, config: GlmConfig) -> None:
        super().__init__()
        self.config = config
        self.word_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.transformer = Transformer(config)
        self._initialise()

    def _initialise(self) -> None:
        """Normal weights; the standard deviation of residual output weights is divided by sqrt(2 * layers)."""
        spread = self.config.initializer_range
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith(("attention.dense.weight", "mlp.dense_4h_to_h.weight")):
                nn.init.normal_(parameter, std=spread / math.sqrt(2 * self.config.layers))
            elif parameter.dim() > 1:  # the gain of a layer norm stays at one
                nn.init.normal_(parameter, std=spread)

    def forward(self, tokens: Tensor, positions: Tensor, sep: Tensor) -> Tensor:
        hidden = self.transformer(self.word_embeddings(tokens), positions, sep)
        return F.linear(hidden, self.word_embeddings.weight)


class GlmForCloze(Glm):
    """A score for each choice: the log-probability of its tokens where the blank was.

    tokens [B, C, T], positions [B, C, 2, T], sep [B, C], targets [B, C, T], target_mask [B, C, T], all integers, to
    [B, C] in fp32. As published, every position is projected onto the whole vocabulary and normalised, although only
    those of the answer are used.
    """

    def forward(  # type: ignore[override]
        self, tokens: Tensor, positions: Tensor, sep: Tensor, targets: Tensor, target_mask: Tensor
    ) -> Tensor:
        choices, length = tokens.shape[1:]
        targets = targets.reshape(-1, length)  # [N, T]
        logits = super().forward(tokens.reshape(-1, length), positions.reshape(-1, 2, length), sep.reshape(-1))
        log_probabilities = F.log_softmax(logits, dim=-1)  # [N, T, V]
        rows = torch.arange(len(targets), device=targets.device).unsqueeze(1).expand_as(targets)
        columns = torch.arange(length, device=targets.device).unsqueeze(0).expand_as(targets)
        picked = log_probabilities[rows, columns, targets]  # [N, T]
        scores = (picked * target_mask.reshape(-1, length)).sum(dim=1)
        return scores.view(-1, choices).float()


def mask_choices(scores: Tensor, choice_mask: Tensor, padded: float) -> Tensor:
    """Return the scores [B, C] with those of padding choices (`choice_mask` 0) replaced by `padded`."""
    return scores * choice_mask - -padded * (1.0 - choice_mask)  # with the publisher's operators: a subtraction


def cloze_loss(scores: Tensor, choice_mask: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy over the choices [B, C], nats; `labels` [B] are the right ones, all 0."""
    return F.cross_entropy(mask_choices(scores, choice_mask, PADDED_TRAINING), labels)


def config_from(section: dict[str, Any]) -> GlmConfig:
    """Return the model configuration of a resolved `model` section."""
    return GlmConfig(**section)
