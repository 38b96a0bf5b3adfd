"""DistilBERT for sequence classification, with the operators of the published run.

Shapes: B batch, T sequence length, D model width, H heads, C labels. Parameter names are those of Hugging
Face's DistilBertForSequenceClassification, so that its checkpoints can be loaded directly. Attention is the eager
implementation of the publisher's transformers 4.33.0, without a fused kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYER_NORM_EPSILON = 1e-12


@dataclass(frozen=True)
class DistilBertConfig:
    """Sizes of the model; every field is a key of the case manifest's `model` section."""

    name: str
    layers: int
    dim: int
    heads: int
    hidden_dim: int
    vocab_size: int
    positions: int
    labels: int
    dropout: float
    attention_dropout: float
    classifier_dropout: float
    initializer_range: float
    pad_token_id: int

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} is not a multiple of {self.heads} heads")


class Embeddings(nn.Module):
    """The sum of word and learned position embeddings, normalised: [B, T] ids to [B, T, D]."""

    position_ids: Tensor

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.dim, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.positions, config.dim)
        self.LayerNorm = nn.LayerNorm(config.dim, eps=LAYER_NORM_EPSILON)
        self.dropout = nn.Dropout(config.dropout)
        # Not in checkpoints. As a buffer, DistributedDataParallel broadcasts it before each forward pass.
        self.register_buffer("position_ids", torch.arange(config.positions).expand(1, -1), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = self.position_ids[:, : input_ids.size(1)]  # [1, T]
        embeddings = self.word_embeddings(input_ids) + self.position_embeddings(positions)
        return self.dropout(self.LayerNorm(embeddings))


class SelfAttention(nn.Module):
    """Multi-head self-attention, [B, T, D] to [B, T, D]; columns with mask 0 are hidden."""

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_dim = config.dim // config.heads
        self.dropout = nn.Dropout(config.attention_dropout)
        self.q_lin = nn.Linear(config.dim, config.dim)
        self.k_lin = nn.Linear(config.dim, config.dim)
        self.v_lin = nn.Linear(config.dim, config.dim)
        self.out_lin = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, dim = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.heads, self.head_dim).transpose(1, 2)  # [B, H, T, D/H]

        q, k, v = split(self.q_lin(x)), split(self.k_lin(x)), split(self.v_lin(x))
        scores = torch.matmul(q / math.sqrt(self.head_dim), k.transpose(2, 3))  # [B, H, T, T]
        hidden = (mask == 0).view(batch, 1, 1, length).expand_as(scores)
        scores = scores.masked_fill(hidden, torch.tensor(torch.finfo(scores.dtype).min))
        weights = self.dropout(F.softmax(scores, dim=-1))
        context = torch.matmul(weights, v).transpose(1, 2).contiguous().view(batch, length, dim)
        return self.out_lin(context)


class FeedForward(nn.Module):
    """The MLP of a layer: [B, T, D] to the hidden width and back to [B, T, D], with the exact (erf) GELU."""

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__()
        self.lin1 = nn.Linear(config.dim, config.hidden_dim)
        self.lin2 = nn.Linear(config.hidden_dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.lin2(F.gelu(self.lin1(x))))


class Block(nn.Module):
    """One post-norm layer: attention and feed-forward, each added and normalised."""

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.sa_layer_norm = nn.LayerNorm(config.dim, eps=LAYER_NORM_EPSILON)
        self.ffn = FeedForward(config)
        self.output_layer_norm = nn.LayerNorm(config.dim, eps=LAYER_NORM_EPSILON)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.sa_layer_norm(self.attention(x, mask) + x)
        return self.output_layer_norm(self.ffn(x) + x)


class Transformer(nn.Module):
    """The stack of blocks."""

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Block(config) for _ in range(config.layers)])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for block in self.layer:
            x = block(x, mask)
        return x


class DistilBert(nn.Module):
    """The encoder: [B, T] ids and mask to [B, T, D]."""

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.transformer = Transformer(config)

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        return self.transformer(self.embeddings(input_ids), mask)


class DistilBertClassifier(nn.Module):
    """The encoder and a two-layer head on the first token: [B, T] to logits [B, C]."""

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__()
        self.config = config
        self.distilbert = DistilBert(config)
        self.pre_classifier = nn.Linear(config.dim, config.dim)
        self.classifier = nn.Linear(config.dim, config.labels)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        """Normal weights of the configured spread, zero biases, a zero vector for the pad token."""
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        first = self.distilbert(input_ids, mask)[:, 0]  # [B, D]
        return self.classifier(self.dropout(F.relu(self.pre_classifier(first))))


def config_from(section: dict[str, Any]) -> DistilBertConfig:
    """Return the model configuration of a resolved `model` section."""
    return DistilBertConfig(**section)
