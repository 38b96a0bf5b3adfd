"""Memory of the ranks of a stage, in bytes: what is always there, what a step adds, and what a device holds beside.

Each term is a tensor that torch or Megatron-Core 0.16 allocates, not a fit. Training has Megatron-Core's buffers and
optimizer, and the activations of its 1F1B schedule, with sequence parallelism if t > 1; the accounting follows
Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023. A forward pass has no
sequence parallelism, and unfused attention in fp32, as in Megatron-LM of 2023.

Bytes for: b micro-batch and s sequence length (tokens = b x s), h width, f width of the SwiGLU, k width of keys and
values, V vocabulary, t tensor-parallel ranks, e bytes of a value.
"""

from __future__ import annotations

from dataclasses import dataclass

from flagbench.plan.model import GPU, MemoryTraits, Model, ParallelLayout, Step

FP32 = 4
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
    def always(self) -> int:
        """Tensors that live through every step."""
        return self.weights + self.gradients + self.optimizer + self.inputs + self.buffers

    @property
    def tensors(self) -> int:
        """Peak of the bytes in live tensors."""
        return self.always + max(self.activations + self.working, self.update)

    @property
    def in_use(self) -> int:
        """What the device reports as used once a step was made: tensors, cached blocks, context and communicators.

        torch's allocator keeps freed blocks, and never joins blocks of two allocations, so a temporary of the
        optimizer that is larger than every activation needs new memory. Before it fails it frees what it keeps;
        a layout may therefore run, more slowly, where this is somewhat above the device's memory.
        """
        spent = self.activations + self.working + self.kept
        return self.always + max(spent, self.update) + self.context + self.communicators

    def to_dict(self) -> dict[str, int]:
        """Both sums, bytes."""
        return {"tensors": self.tensors, "in_use": self.in_use}


def _margin(layout: ParallelLayout, traits: MemoryTraits, *, training: bool) -> dict[str, int]:
    """`context` and `communicators` of a rank: one for each axis of the layout with several ranks, and in training
    one for the group that adds up the norm of the gradients."""
    if not traits.device:
        return {"context": 0, "communicators": 0}
    groups = [layout.tp, layout.pp, layout.dp]
    if training:
        groups.append(layout.ranks)
    communicators = 0
    for ranks in groups:
        if ranks == 2:
            communicators += COMMUNICATOR_OF_TWO
        elif ranks > 2:
            communicators += COMMUNICATOR
    return {"context": CONTEXT, "communicators": communicators}


@dataclass(frozen=True)
class _Sizes:
    """Bytes of the tensors of one micro-batch on one rank."""

    hidden: int
    """The residual stream, [s / t, b, h] with sequence parallelism: e x tokens x h / t."""
    whole: int
    """The same, gathered: e x tokens x h."""
    norm_input: int
    """What a norm saves beside its output."""
    keeps_input: bool
    """Whether that is its input itself, not a copy."""
    query: int
    """Also the context of the attention: e x tokens x h / t."""
    keys: int
    """Keys, or values; repeated for every query in legacy layers: e x tokens x k / t, or h in place of k."""
    scores: int
    """e x b x heads / t x s x s."""
    mask: int
    """bool, s x s: Megatron-Core's modules make one for every layer."""
    lse: int
    """fp32 log of the softmax's sum, of a fused kernel: b x heads / t x s."""
    angles: int
    """Cosines and sines, of queries and of keys: 4 x e x s x h / heads; 0 without a rotary embedding."""
    masks: int
    """Bytes of the mask of a dropout, one an element; none where there is no dropout, but in legacy layers."""
    swiglu: int
    """Tensors of `unit` bytes that a SwiGLU saves."""
    unit: int
    """e x tokens x f / t: a tensor inside the SwiGLU."""
    logits: int
    """Elements: tokens x V / t."""

    @classmethod
    def of(cls, model: Model, step: Step, layout: ParallelLayout, traits: MemoryTraits) -> _Sizes:
        tokens, e, t, h = step.tokens, step.bytes, layout.tp, model.dim
        hidden = e * tokens * h // t
        wide = FP32 * tokens * h // t
        heads = step.micro_batch * model.heads // t * step.sequence_length
        # Without a fused norm: the scaled input and the input, both in fp32.
        saved_by_norm = hidden if traits.fused_norm else 2 * wide
        key_width = h if model.legacy_layers else model.kv_dim
        has_masks = model.legacy_layers or model.dropout
        angles = 0
        if model.position_embedding == "rope":
            angles = 4 * e * step.sequence_length * h // model.heads
        return cls(
            hidden=hidden,
            whole=e * tokens * h,
            keeps_input=traits.fused_norm or e == FP32,
            norm_input=saved_by_norm + FP32 * tokens // t,  # and the reciprocal root of each token
            query=e * tokens * h // t,
            scores=e * heads * step.sequence_length,
            mask=step.sequence_length**2,
            lse=FP32 * heads,
            keys=e * tokens * key_width // t,
            angles=angles,
            masks=tokens * h // t if has_masks else 0,
            swiglu=4 if model.legacy_layers else 3,
            unit=e * tokens * model.ffn // t,
            logits=tokens * model.padded_vocabulary(t) // t,
        )


@dataclass(frozen=True)
class _Layer:
    """What one layer saves for backward, bytes."""

    core_inputs: int
    """Queries and keys after the rotary embedding, and values. Keys and values are repeated for every query."""
    core: int
    """What the core of the attention saves, its context excluded."""
    attention: int
    """All of the first half, without the core: norm, angles, context."""
    mlp: int
    """The second half: norm; of the SwiGLU its input, which are two halves, the activated half and the product. Both
    halves keep the mask of a dropout, a byte an element."""

    @classmethod
    def of(cls, model: Model, step: Step, sizes: _Sizes) -> _Layer:
        inputs = sizes.query + 2 * sizes.keys
        if step.fused_attention:
            core = inputs + sizes.lse
            if step.micro_batch > 1:
                # The kernel has the sequences one after the other: of several, its output is copied.
                core += sizes.query
        else:
            core = inputs + sizes.scores + sizes.mask
        norm = sizes.norm_input + sizes.hidden + sizes.masks
        return cls(inputs, core, norm + sizes.angles + sizes.query, norm + sizes.swiglu * sizes.unit)

    @property
    def all(self) -> int:
        return self.attention + self.core + self.mlp

    def saved(self, recompute: str, sizes: _Sizes) -> int:
        """What stays of it until its backward pass."""
        if recompute == "full":
            return sizes.hidden
        if recompute == "selective":
            return self.all - self.core + self.core_inputs
        return self.all


def stage_memory(
    model: Model, step: Step, layout: ParallelLayout, stage: int, traits: MemoryTraits = GPU
) -> StageMemory:
    """The memory of each rank of a stage, from the second step on.

    The first stage has min(p, m) micro-batches in flight, every later one a micro-batch less, at least one.
    """
    sizes = _Sizes.of(model, step, layout, traits)
    parameters = model.parameters(layout, stage)
    weights = sum(parameters)  # their padding in the buffers is less than a thousandth
    replicas = layout.dp if step.distributed_optimizer else 1
    # fp32 weights are the optimizer's own; of others it has an fp32 copy.
    of_optimizer = 2 * FP32 if step.bytes == FP32 else 3 * FP32
    saved = _saved(model, step, layout, stage, sizes)
    in_flight = min(layout.pp - stage, step.micro_batches)
    peak = _peak(model, step, layout, stage, traits, sizes, saved * in_flight, saved)
    if traits.foreach_adam:
        update = FP32 * weights // replicas
        largest = _largest_saved(step, sizes)
        kept = sum(FP32 * elements for elements in parameters if FP32 * elements > largest) // replicas
    else:
        update, kept = 2 * FP32 * max(parameters), 0  # the root of the second moment, and the step size
    if traits.copying_reduce_scatter and step.distributed_optimizer:
        update = max(update, FP32 * weights)
    return StageMemory(
        weights=step.bytes * weights,
        gradients=FP32 * weights,
        optimizer=of_optimizer * weights // replicas,
        inputs=8 * step.micro_batches * step.micro_batch * (step.sequence_length + 1),
        buffers=_global_buffer(step, layout, sizes) + FP32 * step.sequence_length * model.dim // model.heads,
        activations=saved * in_flight,
        working=peak - saved * in_flight,
        update=update,
        kept=kept,
        **_margin(layout, traits, training=True),
    )


def _global_buffer(step: Step, layout: ParallelLayout, sizes: _Sizes) -> int:
    """Bytes that gathered sequences and attention scores share, so that the larger of them counts."""
    gathered, scores = 0, 0
    if layout.tp > 1:
        gathered = sizes.whole
    if not step.fused_attention:
        scores = sizes.scores
    return max(gathered, scores)


def fullest_stage(model: Model, step: Step, layout: ParallelLayout, traits: MemoryTraits = GPU) -> StageMemory:
    """The stage whose ranks use most."""
    stages = [stage_memory(model, step, layout, stage, traits) for stage in range(layout.pp)]
    return max(stages, key=lambda memory: memory.in_use)


def _saved(model: Model, step: Step, layout: ParallelLayout, stage: int, sizes: _Sizes) -> int:
    """Bytes that a micro-batch leaves on a stage until its backward pass."""
    layer, layers = _Layer.of(model, step, sizes), model.layers // layout.pp
    recomputed = layers
    if step.recompute == "full" and step.recomputed_layers is not None:
        recomputed = step.recomputed_layers
    saved = recomputed * layer.saved(step.recompute, sizes) + (layers - recomputed) * layer.all
    if stage == 0:
        saved += 8 * step.tokens  # ids, for the gradient of the embedding
        if model.dropout:
            saved += sizes.masks
    elif not sizes.keeps_input and step.recompute != "full":
        saved += sizes.hidden  # the input, which the schedule holds until its gradient is sent
    if stage == layout.pp - 1:
        return saved + _saved_by_loss(sizes)
    return saved + sizes.hidden  # the output, which the schedule holds until its gradient arrives


def _saved_by_loss(sizes: _Sizes) -> int:
    """The last norm, and the softmax, which is fp32 in every precision."""
    return sizes.norm_input + sizes.hidden + FP32 * sizes.logits


def _largest_saved(step: Step, sizes: _Sizes) -> int:
    """Bytes of the largest block that every layer of every micro-batch leaves behind when it is freed."""
    if step.recompute == "full" and step.recomputed_layers is None:
        return sizes.hidden
    if step.fused_attention or step.recompute != "none":
        return 2 * sizes.unit
    return max(2 * sizes.unit, sizes.scores)


def _mask_gradient(step: Step, layer: _Layer, sizes: _Sizes) -> int:
    """The change since the start of a layer's backward pass when it comes to the mask of its scores.

    The second half of the layer is freed, and of the first the softmax, the values and the context, but there is a
    gradient of the values. The mask was applied in place to a view, for which autograd needs four tensors of scores.
    The caller adds the gradient that the first half got, where somebody still holds that of the layer's output.
    """
    change = 3 * sizes.scores - layer.mlp - sizes.query
    if step.recompute == "selective":
        change += layer.core  # scores and mask are there again, with the context, its gradient and that of the values
    return change


def _peak(
    model: Model,
    step: Step,
    layout: ParallelLayout,
    stage: int,
    traits: MemoryTraits,
    sizes: _Sizes,
    saved: int,
    saved_by_one: int,
) -> int:
    """Bytes of activations, gradients and temporaries at the worst moment; `saved` of them are all activations in
    flight, `saved_by_one` of each micro-batch.

    The moments are those of the backward pass of the oldest micro-batch, before anything of its first layer is freed,
    and its ends: the loss before it, the embedding after it. Gradients of weights have the precision of the model and
    live until they are added to the buffer.
    """
    layer, last = _Layer.of(model, step, sizes), stage == layout.pp - 1
    e, h, t, unit = step.bytes, model.dim, layout.tp, sizes.unit
    fc2, table = e * h * model.ffn // t, e * h * model.padded_vocabulary(t) // t
    gathered = 0
    if layout.tp > 1:
        gathered = sizes.whole
    scattered = _scattered_gradient(layout, traits, sizes)
    full = step.recompute == "full" and step.recomputed_layers is None
    if stage > 0:
        saved += sizes.hidden  # the gradient that was sent last
    start = saved + sizes.hidden  # the gradient of the stage's output
    if last:
        start -= _saved_by_loss(sizes)
    if full:
        start += layer.all + sizes.hidden  # a layer is there again, with its output
    if full and sizes.keeps_input:
        start -= sizes.hidden  # its input is saved anyway
    moments = [
        start + gathered + unit + fc2,
        start + 2 * unit,  # the product of the SwiGLU is freed, but there are gradients of it and of both halves
        start - 2 * unit + scattered + 2 * fc2,
    ]
    if not step.fused_attention:
        at_mask = start + _mask_gradient(step, layer, sizes)
        if full or not last:
            at_mask += sizes.hidden  # the gradient of the layer's output, which somebody still holds
        moments.append(at_mask)
    if last:
        moments.append(saved + _loss_gradient(step, sizes))
        moments.append(saved + (e - FP32) * sizes.logits + scattered + table)
    if stage == 0:
        moments.append(saved - saved_by_one + sizes.hidden + gathered + table)
    return max(moments)


def _scattered_gradient(layout: ParallelLayout, traits: MemoryTraits, sizes: _Sizes) -> int:
    """Bytes of a linear layer's input gradient while it is scattered: the whole, this rank's part and, by gloo, a
    copy."""
    if layout.tp == 1:
        return sizes.whole
    if traits.copying_reduce_scatter:
        return 2 * sizes.whole + sizes.hidden
    return sizes.whole + sizes.hidden


def _loss_gradient(step: Step, sizes: _Sizes) -> int:
    """Bytes of the loss's gradient, converted from fp32, which is then multiplied with the weights; none in fp32."""
    if step.bytes == FP32:
        return 0
    gradient = step.bytes * sizes.logits
    if not sizes.keeps_input:
        gradient += sizes.hidden
    return gradient


def forward_memory(model: Model, step: Step, layout: ParallelLayout, traits: MemoryTraits = GPU) -> StageMemory:
    """The memory of each rank while it scores `micro_batch` sequences."""
    tokens, e, t, h = step.tokens, step.bytes, layout.tp, model.dim
    scores = step.micro_batch * model.heads // t * step.sequence_length**2  # elements
    logits = tokens * model.padded_vocabulary(t) // t  # elements
    hidden, query, unit = e * tokens * h, e * tokens * h // t, e * tokens * model.ffn // t
    around = 2 * hidden  # the residual stream and the output of the norm
    # Scores, the same multiplied in fp32, their softmax in fp32, and in half precision its copy.
    softmax = 12 * scores
    if e != FP32:
        softmax = (8 + 2 * e) * scores
    bytes_of_logit = e
    if step.micro_batch > 1:
        bytes_of_logit += e  # several sequences are copied into another order
    if e != FP32:
        bytes_of_logit += FP32  # the loss is computed in fp32
    moments = [
        around + 3 * query + softmax,  # queries, and repeated keys and values
        around + 4 * unit,  # both halves of the SwiGLU, the activation and the product
        hidden + bytes_of_logit * logits,
    ]
    return StageMemory(
        weights=e * sum(model.parameters(layout, 0)),
        gradients=0,
        optimizer=0,
        inputs=8 * step.micro_batch * (step.sequence_length + 1),
        buffers=e * scores + step.sequence_length**2,  # where scores are computed, and the causal mask
        activations=0,
        working=max(moments),
        update=0,
        kept=0,
        **_margin(layout, traits, training=False),
    )
