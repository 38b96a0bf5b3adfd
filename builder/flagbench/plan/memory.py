"""Predicts the bytes that each rank of a model split over several devices holds on its device.

`stage_memory` predicts a training step on one pipeline stage, `fullest_stage` the stage that needs most, and
`forward_memory` a forward pass alone. `flagbench plan` compares these predictions with the memory of a device.

Each term is a tensor that torch or Megatron-Core 0.16 allocates, not a fit to measurements. Training has
Megatron-Core's buffers and optimizer, and the activations of its 1F1B pipeline schedule, with sequence parallelism if
t > 1; the accounting follows Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models,
MLSys 2023. A forward pass has no sequence parallelism, and unfused attention in fp32, as in Megatron-LM of 2023.

Symbols in the docstrings: b micro-batch and s sequence length (tokens = b x s), h width, f width of the SwiGLU,
k width of keys and of values, V vocabulary, t tensor-parallel ranks, e bytes of a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from flagbench.plan.model import GPU, MemoryTraits, Model, ParallelLayout, Step

FP32 = 4
"""Bytes of a value in fp32."""
TOKEN_ID = 8
"""Bytes of a token id, which torch has as int64."""
MIB = 2**20
CONTEXT = 1343 * MIB
"""A process with loaded kernels before it allocates anything: 1343 MB on a V100 with CUDA 11.2, printed in Hugging
Face transformers, docs/source/en/model_memory_anatomy.md. Not measured on the devices of the claims."""
COMMUNICATOR_OF_TWO = 544 * MIB
"""NCCL's buffers for a process group of two devices, measured on A100 with NVLink in NVIDIA/nccl issue 964. Not
measured on the devices of the claims."""
COMMUNICATOR = 688 * MIB
"""NCCL's buffers for a process group of more than two devices, from the same source: four A100."""


@dataclass(frozen=True)
class StageMemory:
    """Bytes on each rank of one pipeline stage, separated by purpose."""

    weights: int
    gradients: int
    optimizer: int
    """Two fp32 moments of every weight, and an fp32 copy of weights that have another precision."""
    inputs: int
    """Token ids of a step."""
    buffers: int
    """Megatron-Core's global buffer, which gathered sequences and attention scores share, and rotary angles."""
    activations: int
    """Tensors saved for the backward passes of all micro-batches in flight."""
    peak_extra: int
    """Bytes needed beyond `activations` at the worst moment of a forward or backward pass; it can be negative."""
    optimizer_temporaries: int
    """Temporaries of the optimizer, which exist when there are no activations."""
    optimizer_blocks: int
    """The part of `optimizer_temporaries` for which no block freed by activations is large enough, so that torch's
    allocator reserves more memory."""
    context: int
    """Bytes of the process's CUDA context; 0 on CPU."""
    communicators: int
    """Bytes of NCCL's buffers; 0 on CPU."""

    @property
    def permanent(self) -> int:
        """Bytes of tensors that live through every step."""
        return self.weights + self.gradients + self.optimizer + self.inputs + self.buffers

    @property
    def tensors(self) -> int:
        """Peak of the bytes in live tensors."""
        return self.permanent + max(self.activations + self.peak_extra, self.optimizer_temporaries)

    @property
    def in_use(self) -> int:
        """Bytes that the device reports as used after a step: tensors, cached blocks, context and communicators.

        torch's allocator keeps freed blocks, and never joins blocks of two allocations, so a temporary of the
        optimizer that is larger than every activation needs new memory. Before the allocator fails it frees the
        blocks that it keeps; a layout may therefore run, more slowly, if this is somewhat above the device's memory.
        """
        cached = self.activations + self.peak_extra + self.optimizer_blocks
        return self.permanent + max(cached, self.optimizer_temporaries) + self.context + self.communicators

    def to_dict(self) -> dict[str, int]:
        """Both sums in bytes, for JSON."""
        return {"tensors": self.tensors, "in_use": self.in_use}


def stage_memory(
    model: Model, step: Step, layout: ParallelLayout, stage: int, traits: MemoryTraits = GPU
) -> StageMemory:
    """Predict the memory of each rank of a stage from the second step on.

    The first stage has min(p, m) micro-batches in flight, for p stages and m micro-batches. Every later stage has one
    fewer, but at least one.
    """
    sizes = _Sizes.of(model, step, layout, traits)
    activations = _StageActivations(model, step, layout, stage, traits, sizes)
    parameters = model.parameters(layout, stage)
    weights = sum(parameters)  # their padding in the buffers is less than a thousandth
    optimizer_shards = layout.dp if step.distributed_optimizer else 1
    moments_of_weight = 2 * FP32
    if step.bytes != FP32:
        moments_of_weight += FP32  # the fp32 copy of the weight
    update = _predict_update(parameters, step, optimizer_shards, sizes, traits)
    rotary_angles = FP32 * step.sequence_length * model.dim // model.heads
    return StageMemory(
        weights=step.bytes * weights,
        gradients=FP32 * weights,
        optimizer=moments_of_weight * weights // optimizer_shards,
        inputs=TOKEN_ID * step.micro_batches * step.micro_batch * (step.sequence_length + 1),
        buffers=_global_buffer(step, layout, sizes) + rotary_angles,
        activations=activations.in_flight,
        peak_extra=activations.peak() - activations.in_flight,
        optimizer_temporaries=update.temporaries,
        optimizer_blocks=update.new_blocks,
        context=_context(traits),
        communicators=_communicators([layout.tp, layout.pp, layout.dp, layout.ranks], traits),
    )


def fullest_stage(model: Model, step: Step, layout: ParallelLayout, traits: MemoryTraits = GPU) -> StageMemory:
    """Predict the memory of the stage whose ranks use most."""
    stages = [stage_memory(model, step, layout, stage, traits) for stage in range(layout.pp)]
    return max(stages, key=lambda memory: memory.in_use)


def forward_memory(model: Model, step: Step, layout: ParallelLayout, traits: MemoryTraits = GPU) -> StageMemory:
    """Predict the memory of each rank while it scores `micro_batch` sequences."""
    tokens = step.tokens
    score_elements = step.micro_batch * model.heads // layout.tp * step.sequence_length**2
    logit_elements = tokens * model.padded_vocabulary(layout.tp) // layout.tp
    hidden = step.bytes * tokens * model.dim
    query = step.bytes * tokens * model.dim // layout.tp
    ffn = step.bytes * tokens * model.ffn // layout.tp
    residual_and_norm = 2 * hidden
    moments = [
        residual_and_norm + 3 * query + _softmax_bytes(step) * score_elements,  # queries, repeated keys and values
        residual_and_norm + 4 * ffn,  # both halves of the SwiGLU, the activation and the product
        hidden + _logit_bytes(step) * logit_elements,
    ]
    causal_mask = step.sequence_length**2  # bool: a byte an element
    return StageMemory(
        weights=step.bytes * sum(model.parameters(layout, 0)),
        gradients=0,
        optimizer=0,
        inputs=TOKEN_ID * step.micro_batch * (step.sequence_length + 1),
        buffers=step.bytes * score_elements + causal_mask,  # scores are computed into a buffer
        activations=0,
        peak_extra=max(moments),
        optimizer_temporaries=0,
        optimizer_blocks=0,
        context=_context(traits),
        communicators=_communicators([layout.tp, layout.pp, layout.dp], traits),
    )


def _softmax_bytes(step: Step) -> int:
    """Bytes for each attention score in a forward pass: the score, its product in fp32, and its softmax in fp32.

    In half precision there is also a copy of the softmax.
    """
    scaled_and_softmax = 2 * FP32
    if step.bytes == FP32:
        return step.bytes + scaled_and_softmax
    return 2 * step.bytes + scaled_and_softmax


def _logit_bytes(step: Step) -> int:
    """Bytes for each logit in a forward pass."""
    size = step.bytes
    if step.micro_batch > 1:
        size += step.bytes  # several sequences are copied into another order
    if step.bytes != FP32:
        size += FP32  # the loss is computed in fp32
    return size


def _context(traits: MemoryTraits) -> int:
    """Bytes of a process's context on its device."""
    if traits.device:
        return CONTEXT
    return 0


def _communicators(group_sizes: list[int], traits: MemoryTraits) -> int:
    """Bytes of NCCL's buffers for process groups of these numbers of ranks.

    Every axis of the layout has a group; training has one more of all ranks, which adds up the norm of the gradients.
    """
    if not traits.device:
        return 0
    total = 0
    for ranks in group_sizes:
        if ranks == 2:
            total += COMMUNICATOR_OF_TWO
        elif ranks > 2:
            total += COMMUNICATOR
    return total


class _Update(NamedTuple):
    """Bytes that the optimizer needs for a moment while it updates the weights."""

    temporaries: int
    new_blocks: int
    """The part of `temporaries` that is larger than every block freed by activations."""


def _predict_update(
    parameters: list[int], step: Step, optimizer_shards: int, sizes: _Sizes, traits: MemoryTraits
) -> _Update:
    """Predict the temporaries of one update of `parameters`, which are counted in elements."""
    gradients = FP32 * sum(parameters)
    if traits.foreach_adam:
        temporaries = gradients // optimizer_shards
        largest_freed = _largest_saved(step, sizes)
        new_blocks = sum(FP32 * elements for elements in parameters if FP32 * elements > largest_freed)
        new_blocks //= optimizer_shards
    else:
        temporaries = 2 * FP32 * max(parameters)  # the root of the second moment, and the step size
        new_blocks = 0
    if traits.copying_reduce_scatter and step.distributed_optimizer:
        temporaries = max(temporaries, gradients)
    return _Update(temporaries, new_blocks)


def _global_buffer(step: Step, layout: ParallelLayout, sizes: _Sizes) -> int:
    """Bytes that gathered sequences and attention scores share, so that the larger of them counts."""
    gathered = 0
    if layout.tp > 1:
        gathered = sizes.gathered_hidden
    scores = 0
    if not step.fused_attention:
        scores = sizes.scores
    return max(gathered, scores)


def _largest_saved(step: Step, sizes: _Sizes) -> int:
    """Bytes of the largest block that every layer of every micro-batch leaves behind when it is freed."""
    if step.recomputes_all_layers:
        return sizes.hidden
    swiglu_input = 2 * sizes.ffn
    if step.fused_attention or step.recompute != "none":
        return swiglu_input
    return max(swiglu_input, sizes.scores)


@dataclass(frozen=True)
class _Sizes:
    """Sizes of the tensors of one micro-batch on one rank, in bytes unless stated otherwise."""

    hidden: int
    """The residual stream, [s / t, b, h] with sequence parallelism: e x tokens x h / t."""
    gathered_hidden: int
    """The residual stream gathered from all tensor-parallel ranks: e x tokens x h."""
    norm_input: int
    """Bytes that a norm saves in addition to its output."""
    norm_saves_input_itself: bool
    """Whether a norm saves its input tensor, not a copy in another precision."""
    query: int
    """Queries, and the output of the attention: e x tokens x h / t."""
    keys: int
    """Keys, or values: e x tokens x k / t. In legacy layers they are repeated for every query: h in place of k."""
    scores: int
    """Attention scores: e x b x heads / t x s x s."""
    causal_mask: int
    """A bool mask of s x s, which Megatron-Core's modules make for every layer."""
    log_sum_exp: int
    """The fp32 logarithm of the softmax's sum that a fused kernel saves: 4 x b x heads / t x s."""
    rotary_angles: int
    """Cosines and sines, of queries and of keys: 4 x e x s x h / heads; 0 without a rotary embedding."""
    dropout_mask: int
    """The mask of a dropout, one byte an element. It is 0 without dropout, but legacy layers save it anyway."""
    swiglu_tensors: int
    """The number of tensors of `ffn` bytes that a SwiGLU saves."""
    ffn: int
    """A tensor inside the SwiGLU: e x tokens x f / t."""
    logits: int
    """The number of elements of the logits: tokens x V / t."""

    @classmethod
    def of(cls, model: Model, step: Step, layout: ParallelLayout, traits: MemoryTraits) -> _Sizes:
        """Compute the sizes for a model, a step and a layout."""
        tokens = step.tokens
        tp = layout.tp
        hidden = step.bytes * tokens * model.dim // tp
        norm_input = hidden
        if not traits.fused_norm:
            norm_input = 2 * (FP32 * tokens * model.dim // tp)  # the scaled input and the input, both in fp32
        norm_input += FP32 * tokens // tp  # the reciprocal root of each token
        key_width = model.dim if model.legacy_layers else model.kv_dim
        score_rows = step.micro_batch * model.heads // tp * step.sequence_length
        rotary_angles = 0
        if model.position_embedding == "rope":
            rotary_angles = 4 * step.bytes * step.sequence_length * model.dim // model.heads
        dropout_mask = 0
        if model.legacy_layers or model.dropout:
            dropout_mask = tokens * model.dim // tp
        return cls(
            hidden=hidden,
            gathered_hidden=step.bytes * tokens * model.dim,
            norm_input=norm_input,
            norm_saves_input_itself=traits.fused_norm or step.bytes == FP32,
            query=step.bytes * tokens * model.dim // tp,
            keys=step.bytes * tokens * key_width // tp,
            scores=step.bytes * score_rows * step.sequence_length,
            causal_mask=step.sequence_length**2,
            log_sum_exp=FP32 * score_rows,
            rotary_angles=rotary_angles,
            dropout_mask=dropout_mask,
            swiglu_tensors=4 if model.legacy_layers else 3,
            ffn=step.bytes * tokens * model.ffn // tp,
            logits=tokens * model.padded_vocabulary(tp) // tp,
        )


@dataclass(frozen=True)
class _SavedByLayer:
    """Bytes that one layer saves for its backward pass, if nothing of it is recomputed."""

    core_inputs: int
    """Queries and keys after the rotary embedding, and values; keys and values are repeated for every query."""
    core: int
    """Everything that the core of the attention saves: its inputs and its scores, but not its output."""
    attention: int
    """The first half of the layer without the core: norm, dropout mask, rotary angles, output of the core."""
    mlp: int
    """The second half of the layer: norm, dropout mask, and the tensors inside the SwiGLU."""

    @classmethod
    def of(cls, step: Step, sizes: _Sizes) -> _SavedByLayer:
        """Compute what a layer saves from the sizes of its tensors."""
        core_inputs = sizes.query + 2 * sizes.keys
        if step.fused_attention:
            core = core_inputs + sizes.log_sum_exp
            if step.micro_batch > 1:
                # The kernel lays sequences out one after the other, so the output of several is copied.
                core += sizes.query
        else:
            core = core_inputs + sizes.scores + sizes.causal_mask
        norm = sizes.norm_input + sizes.hidden + sizes.dropout_mask
        return cls(
            core_inputs=core_inputs,
            core=core,
            attention=norm + sizes.rotary_angles + sizes.query,
            mlp=norm + sizes.swiglu_tensors * sizes.ffn,
        )

    @property
    def total(self) -> int:
        """Bytes that the whole layer saves."""
        return self.attention + self.core + self.mlp

    def remaining(self, recompute: str, sizes: _Sizes) -> int:
        """Bytes that stay until the layer's backward pass under a recomputation: `none`, `selective` or `full`."""
        if recompute == "full":
            return sizes.hidden
        if recompute == "selective":
            return self.total - self.core + self.core_inputs
        return self.total


@dataclass(frozen=True)
class _StageActivations:
    """The activations of one pipeline stage in training, and the moments at which most bytes are live."""

    model: Model
    step: Step
    layout: ParallelLayout
    stage: int
    traits: MemoryTraits
    sizes: _Sizes

    @property
    def is_first(self) -> bool:
        """Whether the stage has the embedding."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage computes the loss."""
        return self.stage == self.layout.pp - 1

    @property
    def layer(self) -> _SavedByLayer:
        """Bytes saved by one layer of the stage."""
        return _SavedByLayer.of(self.step, self.sizes)

    @property
    def saved_by_loss(self) -> int:
        """Bytes saved by the last norm, and by the softmax, which is fp32 in every precision."""
        return self.sizes.norm_input + self.sizes.hidden + FP32 * self.sizes.logits

    @property
    def of_micro_batch(self) -> int:
        """Bytes that one micro-batch leaves on the stage until its backward pass."""
        step, sizes = self.step, self.sizes
        layers = self.model.layers // self.layout.pp
        recomputed_layers = layers
        if step.recompute == "full" and step.recomputed_layers is not None:
            recomputed_layers = step.recomputed_layers
        saved = recomputed_layers * self.layer.remaining(step.recompute, sizes)
        saved += (layers - recomputed_layers) * self.layer.total
        if self.is_first:
            saved += TOKEN_ID * step.tokens  # ids, for the gradient of the embedding
            if self.model.dropout:
                saved += sizes.dropout_mask
        elif not sizes.norm_saves_input_itself and step.recompute != "full":
            saved += sizes.hidden  # the input, which the schedule holds until its gradient is sent
        if self.is_last:
            saved += self.saved_by_loss
        else:
            saved += sizes.hidden  # the output, which the schedule holds until its gradient arrives
        return saved

    @property
    def in_flight(self) -> int:
        """Bytes that all micro-batches in flight leave on the stage."""
        return self.of_micro_batch * min(self.layout.pp - self.stage, self.step.micro_batches)

    def peak(self) -> int:
        """Bytes of activations, gradients and temporaries at the worst moment of a step.

        The candidates are moments of the backward pass of the oldest micro-batch, when all others are in flight: in
        its first layer before anything of that is freed, in the loss before it, and in the embedding after it.
        Gradients of weights have the precision of the model and live until they are added to the buffer.
        """
        saved = self.in_flight
        if not self.is_first:
            saved += self.sizes.hidden  # the gradient that was sent last
        moments = self._layer_moments(saved)
        if self.is_last:
            moments += self._loss_moments(saved)
        if self.is_first:
            embedding_output = self.sizes.hidden + self._gathered()
            moments.append(saved - self.of_micro_batch + embedding_output + self._embedding_gradient())
        return max(moments)

    def _layer_moments(self, saved: int) -> list[int]:
        """Bytes at the worst moments of a layer's backward pass; `saved` is what all micro-batches left."""
        sizes, step = self.sizes, self.step
        start = saved + sizes.hidden  # the gradient of the stage's output
        if self.is_last:
            start -= self.saved_by_loss
        if step.recomputes_all_layers:
            start += self.layer.total + sizes.hidden  # the recomputed layer, with its output
            if sizes.norm_saves_input_itself:
                start -= sizes.hidden  # its input is saved anyway
        # The second linear layer of the SwiGLU, of f x h weights; the first has twice as many.
        weight_gradient = step.bytes * self.model.dim * self.model.ffn // self.layout.tp
        moments = [
            start + self._gathered() + sizes.ffn + weight_gradient,
            # The product of the SwiGLU is freed, but there are gradients of it and of both halves.
            start + 2 * sizes.ffn,
            # Four tensors of the SwiGLU are freed, but there are gradients of both halves.
            start - 2 * sizes.ffn + self._scattered_gradient() + 2 * weight_gradient,
        ]
        if not step.fused_attention:
            at_mask = start + self._mask_gradient()
            if step.recomputes_all_layers or not self.is_last:
                at_mask += sizes.hidden  # the gradient of the layer's output, which its caller still holds
            moments.append(at_mask)
        return moments

    def _mask_gradient(self) -> int:
        """The change in bytes from the start of a layer's backward pass to the gradient of its masked scores.

        By then the second half of the layer is freed, and of the first half the softmax, the values and the output of
        the core, but there is a gradient of the values. The mask was applied in place to a view, for which autograd
        needs four tensors of scores.
        """
        change = 3 * self.sizes.scores - self.layer.mlp - self.sizes.query
        if self.step.recompute == "selective":
            # The core was recomputed: its scores and mask, its output, and gradients of output and values.
            change += self.layer.core
        return change

    def _loss_moments(self, saved: int) -> list[int]:
        """Bytes at the worst moments of the loss's backward pass; `saved` is what all micro-batches left."""
        sizes, step = self.sizes, self.step
        converted_gradient = 0
        if step.bytes != FP32:
            # The gradient of the loss is converted from fp32 before it is multiplied with the weights.
            converted_gradient = step.bytes * sizes.logits
            if not sizes.norm_saves_input_itself:
                converted_gradient += sizes.hidden
        # Afterwards the gradient has replaced the saved fp32 softmax.
        replaced_softmax = (step.bytes - FP32) * sizes.logits
        return [
            saved + converted_gradient,
            saved + replaced_softmax + self._scattered_gradient() + self._embedding_gradient(),
        ]

    def _embedding_gradient(self) -> int:
        """Bytes of the gradient of an embedding table, of the input or of the output."""
        vocabulary = self.model.padded_vocabulary(self.layout.tp)
        return self.step.bytes * self.model.dim * vocabulary // self.layout.tp

    def _gathered(self) -> int:
        """Bytes of a sequence gathered from all tensor-parallel ranks; 0 if there is one."""
        if self.layout.tp > 1:
            return self.sizes.gathered_hidden
        return 0

    def _scattered_gradient(self) -> int:
        """Bytes of a linear layer's input gradient while it is scattered over the tensor-parallel ranks.

        They are the whole gradient, this rank's part, and a copy of the whole where the reduce-scatter copies.
        """
        gathered, part = self.sizes.gathered_hidden, self.sizes.hidden
        if self.layout.tp == 1:
            return gathered
        if self.traits.copying_reduce_scatter:
            return 2 * gathered + part
        return gathered + part
