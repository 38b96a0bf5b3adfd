"""Memory of the ranks of a stage, in bytes: what is always there, what a step adds, and what a device holds beside.

Each term is a tensor that torch or Megatron-Core 0.16 allocates, not a fit. The accounting follows Korthikanti et
al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023, for the modules that the cases use.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flagbench.plan.model import Layout, Software

MIB = 2**20
CONTEXT = 1343 * MIB
"""A process with loaded kernels before it allocates anything: 1343 MB on a V100 with CUDA 11.2, printed in Hugging
Face transformers, docs/source/en/model_memory_anatomy.md. Not measured on the devices of the claims."""
COMMUNICATOR_OF_TWO = 544 * MIB
COMMUNICATOR = 688 * MIB
"""NCCL's buffers for a process group of two, and of more devices: 544 and 688 MB, measured on four A100 with NVLink
in NVIDIA/nccl issue 964. Not measured on the devices of the claims."""


@dataclass(frozen=True)
class StageMemory:
    """Bytes on each rank of one stage."""

    stage: int
    """From 0."""
    weights: int
    gradients: int
    optimizer: int
    """fp32 copies of the weights, where they are not fp32 already, and two moments."""
    inputs: int
    """Token ids of a step."""
    buffers: int
    """Megatron-Core's global buffer, which gathered sequences and attention scores share, and rotary angles."""
    activations: int
    """Saved for backward, of all micro-batches in flight."""
    working: int
    """More than `activations` at the moment of a forward or backward pass that needs most."""
    update: int
    """Temporaries of the optimizer, when there are no activations."""
    kept: int
    """The part of `update` that blocks freed by activations cannot hold, so that torch's allocator keeps more."""
    context: int
    communicators: int

    @property
    def tensors(self) -> int:
        """Peak of the bytes in live tensors."""
        always = self.weights + self.gradients + self.optimizer + self.inputs + self.buffers
        return always + max(self.activations + self.working, self.update)

    @property
    def in_use(self) -> int:
        """What the device reports as used once a step was made: tensors, cached blocks, context and communicators.

        torch's allocator keeps freed blocks, and never joins blocks of two allocations, so a temporary of the
        optimizer that is larger than every activation needs new memory. Before it fails it frees what it keeps;
        a layout may therefore run, more slowly, where this is somewhat above the device's memory.
        """
        spent = self.activations + self.working + self.kept
        always = self.weights + self.gradients + self.optimizer + self.inputs + self.buffers
        return always + max(spent, self.update) + self.context + self.communicators

    def to_dict(self) -> dict[str, int]:
        """All terms, and both sums."""
        return {**asdict(self), "tensors": self.tensors, "in_use": self.in_use}


def margin(layout: Layout, software: Software, *, training: bool) -> dict[str, int]:
    """`context` and `communicators` of a rank: one for each axis of the layout with several ranks, and in training
    one for the group that adds up the norm of the gradients."""
    if not software.device:
        return {"context": 0, "communicators": 0}
    groups = [layout.tp, layout.pp, layout.dp]
    if training:
        groups.append(layout.ranks)
    sizes = [COMMUNICATOR_OF_TWO if ranks == 2 else COMMUNICATOR for ranks in groups if ranks > 1]
    return {"context": CONTEXT, "communicators": sum(sizes)}
