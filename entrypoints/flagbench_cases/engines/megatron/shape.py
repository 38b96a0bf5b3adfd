"""A model of the Llama family: RMSNorm, grouped queries, SwiGLU; unless told otherwise, rotary embeddings, no biases,
untied embeddings and no dropout.

Shapes: B sequences, T tokens, D model width, F width of the SwiGLU, V vocabulary; G key-value heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flagbench_core.flops import padded_vocabulary

LEARNED = "learned"
LOCAL, TRANSFORMER_ENGINE = "local", "transformer_engine"
"""Whose layers: Megatron-Core's own, or Transformer Engine's."""


class Shape(NamedTuple):
    """Sizes of the model; every field is a key of the case manifest's `model` section."""

    name: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn: int
    vocab_size: int
    positions: int
    norm_eps: float
    rope_theta: float
    initializer_range: float
    norm_init: float
    """Initial weight of the norms; 1 unless the publisher trained with another."""
    vocab_multiple: int
    """The embeddings have a multiple of this number of rows on every tensor-parallel rank."""
    position_embedding: str = "rope"
    """`rope`, or `learned`: a table that is added to the token embeddings."""
    bias: bool = False
    """Whether every linear layer but the output layer has a bias."""
    tied: bool = False
    """Whether the output layer is the token embedding."""
    dropout: float = 0.0
    """In attention, before both residual additions, and of the embedding."""
    legacy_layers: bool = True
    """Training with the operators of Megatron-LM's layers from before Megatron-Core's."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.heads

    @property
    def kv_dim(self) -> int:
        """Width of keys and values."""
        return self.head_dim * self.kv_heads

    @property
    def parameters(self) -> int:
        """Parameters of the whole model, without the padding of the vocabulary."""
        layer = 2 * self.dim * (self.dim + self.kv_dim) + 3 * self.dim * self.ffn + 2 * self.dim
        if self.bias:
            layer += 3 * self.dim + 2 * self.kv_dim + 2 * self.ffn
        tables = (1 if self.tied else 2) * self.vocab_size
        if self.position_embedding == LEARNED:
            tables += self.positions
        return self.layers * layer + tables * self.dim + self.dim

    def padded_vocabulary(self, tp: int) -> int:
        """Rows of the embeddings over all of `tp` ranks."""
        return padded_vocabulary(self.vocab_size, self.vocab_multiple, tp)


def shape_of(section: dict[str, Any]) -> Shape:
    """The sizes of a resolved `model` section."""
    return Shape(**section)
