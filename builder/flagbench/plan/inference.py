"""Memory of one forward pass of a model split by tensor parallelism, without sequence parallelism, with unfused
attention in fp32, as in Megatron-LM of 2023.

Bytes, with the names of `training`: tokens = b x s, h width, f width of the SwiGLU, k width of keys and values, V
vocabulary, t ranks, e bytes of a value.
"""

from __future__ import annotations

from flagbench.plan.memory import StageMemory, margin
from flagbench.plan.model import GPU, Layout, Model, Software, Step

FP32 = 4


def forward_memory(model: Model, step: Step, layout: Layout, software: Software = GPU) -> StageMemory:
    """The memory of each rank while it scores `micro_batch` sequences."""
    tokens, e, t, h = step.tokens, step.bytes, layout.tp, model.dim
    scores = step.micro_batch * model.heads // t * step.sequence_length**2  # elements
    logits = tokens * model.padded_vocabulary(t) // t  # elements
    hidden, query, unit = e * tokens * h, e * tokens * h // t, e * tokens * model.ffn // t
    around = 2 * hidden  # the residual stream and the output of the norm
    # Scores, the same multiplied in fp32, their softmax in fp32, and in half precision its copy.
    softmax = (12 if e == FP32 else 8 + 2 * e) * scores
    moments = [
        around + 3 * query + softmax,  # queries, and repeated keys and values
        around + 4 * unit,  # both halves of the SwiGLU, the activation and the product
        # The logits, which are copied into another order if there are several sequences, and in fp32.
        hidden + (e * (1 if step.micro_batch == 1 else 2) + (0 if e == FP32 else FP32)) * logits,
    ]
    return StageMemory(
        stage=0,
        weights=e * sum(model.parameters(layout, 0)),
        gradients=0,
        optimizer=0,
        inputs=8 * step.micro_batch * (step.sequence_length + 1),
        buffers=e * scores + step.sequence_length**2,  # where scores are computed, and the causal mask
        activations=0,
        working=max(moments),
        update=0,
        kept=0,
        **margin(layout, software, training=False),
    )
