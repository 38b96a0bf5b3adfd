"""What a prediction is about: the sizes of a model, a step, the layout, and the software that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flagbench.manifests.stack import Stack
from flagbench_core.flops import padded_vocabulary

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "tf32": 4}
"""Of a weight or an activation, by precision."""


class ParallelLayout(NamedTuple):
    """`dp` replicas, each of `pp` pipeline stages, whose layers `tp` ranks share."""

    tp: int
    pp: int
    dp: int

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
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
    position_embedding: str = "rope"
    bias: bool = False
    tied: bool = False
    dropout: float = 0.0
    legacy_layers: bool = True
    """Keys and values are repeated for every query; a SwiGLU keeps its activated half, a dropout of 0 its mask."""

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Model:
        """The sizes in a `model` section of a case's manifest. Raises TypeError if it is another kind of model."""
        return cls(**{name: section[name] for name in cls.__dataclass_fields__ if name in section})

    @property
    def kv_dim(self) -> int:
        """Width of all keys, or values, of a token."""
        return self.dim // self.heads * self.kv_heads

    def padded_vocabulary(self, tp: int) -> int:
        """Rows of the embeddings over all of `tp` ranks."""
        return padded_vocabulary(self.vocab_size, self.vocab_multiple, tp)

    def parameters(self, layout: ParallelLayout, stage: int) -> list[int]:
        """Elements of each parameter of a rank of a stage, in the order of the module."""
        h, tp = self.dim, layout.tp
        matrices = [(h + 2 * self.kv_dim) * h // tp, h * h // tp, 2 * self.ffn * h // tp, self.ffn * h // tp]
        qkv, projection, fc1, fc2 = matrices
        table = self.padded_vocabulary(tp) // tp * h
        layer = [h, qkv, projection, h, fc1, fc2]
        if self.bias:
            layer += [(h + 2 * self.kv_dim) // tp, h, 2 * self.ffn // tp, h]
        parameters = []
        if stage == 0:
            parameters.append(table)
        if stage == 0 and self.position_embedding == "learned":
            parameters.append(self.positions * h)
        parameters += layer * (self.layers // layout.pp)
        if stage == layout.pp - 1:
            parameters.append(h)
        # With several stages, the last one has a copy of a tied table.
        if stage == layout.pp - 1 and not (self.tied and layout.pp == 1):
            parameters.append(table)
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
    recompute: str = "none"
    """none; selective: the core of the attention; full: whole layers, of which only the input is kept."""
    recomputed_layers: int | None = None
    """With `full`, how many layers of a stage are recomputed, from its first on; None: all."""
    fused_attention: bool = True
    distributed_optimizer: bool = True

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.sequence_length * self.micro_batch

    @property
    def bytes(self) -> int:
        """Bytes of a weight or an activation."""
        return BYTES[self.precision]


@dataclass(frozen=True)
class MemoryTraits:
    """What the same code allocates differently with other software."""

    fused_norm: bool = True
    """rms_norm saves its input and output. torch's composite saves an fp32 copy of both, too. CUDA devices have a
    fused one from torch 2.9 on (pytorch#153666)."""
    foreach_adam: bool = True
    """AdamW updates all parameters in one go, with a temporary of each; torch's default on CUDA devices: "the foreach
    implementation uses ~ sizeof(params) more peak memory than the for-loop version" (torch.optim.AdamW)."""
    copying_reduce_scatter: bool = False
    """A reduce-scatter copies its input, as gloo's does."""
    device: bool = True
    """The memory is a device's, in which a process also has a context and NCCL's buffers."""


GPU = MemoryTraits()
"""An accelerator with torch 2.9 or later."""
CPU = MemoryTraits(fused_norm=False, foreach_adam=False, copying_reduce_scatter=True, device=False)
"""CPU ranks."""
FUSED_NORM_FROM = (2, 9)
FOREACH_ADAM_FROM = (2, 0)
"""Releases of torch."""


def memory_traits_of(stack: Stack) -> MemoryTraits:
    """What a stack allocates: by its device and its version of torch."""
    if stack.device_kind == "cpu":
        return CPU
    release = tuple(int(part) for part in stack.expects["torch"].split(".")[:2])
    return MemoryTraits(fused_norm=release >= FUSED_NORM_FROM, foreach_adam=release >= FOREACH_ADAM_FROM)
