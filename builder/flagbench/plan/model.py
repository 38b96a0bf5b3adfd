"""The inputs of a memory prediction: the sizes of a model, a step, a layout, and traits of the software that runs it.

`plan.layouts` makes these from a case's configuration, and `plan.memory` predicts bytes from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flagbench.manifests.stack import Stack
from flagbench_core.evidence.generation import BYTES
from flagbench_core.flops import padded_vocabulary


class ParallelLayout(NamedTuple):
    """How a model is split over devices: `dp` replicas of `pp` pipeline stages, whose layers `tp` ranks share."""

    tp: int
    pp: int
    dp: int

    @property
    def ranks(self) -> int:
        """The number of ranks of the job."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class Model:
    """Sizes of a model of the Llama family: RMSNorm, grouped queries, SwiGLU. Defaults are those of llama2-70b."""

    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn: int
    vocab_size: int
    vocab_multiple: int
    """The embeddings have a multiple of this number of rows on every tensor-parallel rank."""
    positions: int = 0
    """Rows of the table of a learned position embedding."""
    position_embedding: str = "rope"
    """`rope` or `learned`."""
    bias: bool = False
    tied: bool = False
    """Whether the input and the output embedding are one table."""
    dropout: float = 0.0
    legacy_layers: bool = True
    """Whether layers are Megatron-Core's legacy ones. They repeat keys and values for every query, keep the activated
    half of a SwiGLU, and keep the mask of a dropout of 0."""

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Model:
        """The sizes in a `model` section of a case's manifest. Raises TypeError if it is another kind of model."""
        return cls(**{name: section[name] for name in cls.__dataclass_fields__ if name in section})

    @property
    def kv_dim(self) -> int:
        """Width of all keys, or of all values, of a token."""
        return self.dim // self.heads * self.kv_heads

    def padded_vocabulary(self, tp: int) -> int:
        """Rows of the embeddings over all of `tp` ranks."""
        return padded_vocabulary(self.vocab_size, self.vocab_multiple, tp)

    def parameters(self, layout: ParallelLayout, stage: int) -> list[int]:
        """Elements of each parameter on a rank of a stage, in the order of the module."""
        tp = layout.tp
        is_first = stage == 0
        is_last = stage == layout.pp - 1
        embedding = self.padded_vocabulary(tp) // tp * self.dim
        parameters = []
        if is_first:
            parameters.append(embedding)
            if self.position_embedding == "learned":
                parameters.append(self.positions * self.dim)
        parameters += self._layer_parameters(tp) * (self.layers // layout.pp)
        if is_last:
            parameters.append(self.dim)  # the last norm
            # With several stages, the last one has a copy of a tied table.
            if not self.tied or layout.pp > 1:
                parameters.append(embedding)
        return parameters

    def _layer_parameters(self, tp: int) -> list[int]:
        """Elements of each parameter of one layer on a rank: norms and matrices in order, then the biases."""
        qkv_width = self.dim + 2 * self.kv_dim
        norm = self.dim
        qkv = qkv_width * self.dim // tp
        projection = self.dim * self.dim // tp
        fc1 = 2 * self.ffn * self.dim // tp
        fc2 = self.ffn * self.dim // tp
        parameters = [norm, qkv, projection, norm, fc1, fc2]
        if self.bias:
            parameters += [qkv_width // tp, self.dim, 2 * self.ffn // tp, self.dim]
        return parameters


@dataclass(frozen=True)
class Step:
    """One optimizer step of a replica."""

    sequence_length: int
    micro_batch: int
    """Sequences of a micro-batch."""
    micro_batches: int
    """Micro-batches that a replica accumulates."""
    precision: str
    """A key of `BYTES`."""
    recompute: str = "none"
    """What the backward pass computes again: `none`; `selective`, the core of the attention; `full`, whole layers, of
    which only the input is saved."""
    recomputed_layers: int | None = None
    """With `full`, how many layers of a stage are recomputed, from its first on; None: all."""
    fused_attention: bool = True
    distributed_optimizer: bool = True
    """Whether the replicas share the optimizer's state."""

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.sequence_length * self.micro_batch

    @property
    def bytes(self) -> int:
        """Bytes of a weight or an activation."""
        return BYTES[self.precision]

    @property
    def recomputes_all_layers(self) -> bool:
        """Whether every layer is recomputed as a whole."""
        return self.recompute == "full" and self.recomputed_layers is None


@dataclass(frozen=True)
class MemoryTraits:
    """Traits of the software on which the memory of the same model depends."""

    fused_norm: bool = True
    """Whether rms_norm is one kernel, which saves its input and output; torch's composite also saves an fp32 copy of
    both. CUDA devices have a fused one from torch 2.9 on (pytorch#153666)."""
    foreach_adam: bool = True
    """Whether AdamW updates all parameters at once, with a temporary of each; torch's default on CUDA devices: "the
    foreach implementation uses ~ sizeof(params) more peak memory than the for-loop version" (torch.optim.AdamW)."""
    copying_reduce_scatter: bool = False
    """Whether a reduce-scatter copies its input, as gloo's does."""
    device: bool = True
    """Whether the memory is a device's, in which a process also has a context and NCCL's buffers."""


GPU = MemoryTraits()
"""An accelerator with torch 2.9 or later."""
CPU = MemoryTraits(fused_norm=False, foreach_adam=False, copying_reduce_scatter=True, device=False)
"""CPU ranks."""
FUSED_NORM_FROM = (2, 9)
"""The first release of torch with a fused rms_norm on CUDA devices."""
FOREACH_ADAM_FROM = (2, 0)
"""The first release of torch whose AdamW updates all parameters at once by default."""


def memory_traits_of(stack: Stack) -> MemoryTraits:
    """The traits of a stack, from its kind of device and its release of torch."""
    if stack.device_kind == "cpu":
        return CPU
    # A stack may expect a series of releases, such as `2`.
    release = tuple(int(part) for part in stack.expects["torch"].split(".")[:2])
    return MemoryTraits(fused_norm=release >= FUSED_NORM_FROM, foreach_adam=release >= FOREACH_ADAM_FROM)
