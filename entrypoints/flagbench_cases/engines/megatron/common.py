"""What the modules of both releases of Megatron-Core share: attention and arguments of the model."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from flagbench_cases.contract import Context
from flagbench_cases.engines.megatron.shape import LEARNED, Shape
from flagbench_cases.engines.megatron.versions import torch_release

warnings.filterwarnings("ignore", "`torch.distributed.* is deprecated", FutureWarning)  # Megatron-Core calls these
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Apex and Transformer Engine are absent; pynvml has another name
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.fusions import fused_bias_dropout, fused_bias_swiglu
    from megatron.core.tensor_parallel import layers
    from megatron.core.transformer.attention import SelfAttention
    from megatron.core.transformer.dot_product_attention import DotProductAttention


class ExpandedSelfAttention(SelfAttention):
    """Keys and values are repeated for all queries of their group before the rotary embedding, as in the legacy
    layers of Megatron-LM until 2024; every release of Megatron-Core repeats them after it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        core = self.core_attention
        if isinstance(core, DotProductAttention):  # there is nothing left to repeat for it
            core.num_query_groups_per_partition = core.num_attention_heads_per_partition

    def get_query_key_value_tensors(self, *arguments: Any, **options: Any) -> Any:
        query, key, value = super().get_query_key_value_tensors(*arguments, **options)
        times = query.shape[2] // key.shape[2]
        return query, key.repeat_interleave(times, dim=2), value.repeat_interleave(times, dim=2)


def _uninitialised(weight: torch.Tensor) -> torch.Tensor:
    """The initial values of parameters that are filled later."""
    return weight


def config_arguments(context: Context, shape: Shape, dtype: torch.dtype, of_2023: bool) -> dict[str, Any]:
    """The arguments of `TransformerConfig` in every release."""
    layout = context.layout
    return {
        "num_layers": shape.layers,
        "hidden_size": shape.dim,
        "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.kv_heads,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "hidden_dropout": shape.dropout,
        "attention_dropout": shape.dropout,
        "normalization": "RMSNorm",
        "layernorm_epsilon": shape.norm_eps,
        "add_bias_linear": shape.bias,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "apply_query_key_layer_scaling": of_2023,
        # The scaling needs it; FlagPerf passes it for llama3_8B, not for llama2_70B. Fused attention ignores it.
        "attention_softmax_in_fp32": of_2023 or not shape.legacy_layers,
        "masked_softmax_fusion": False,  # its kernels are Apex's
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "fp16": dtype is torch.float16,
        # It also marks which parameters are split, which the norm of the gradients depends on.
        "perform_initialization": True,
        "init_method": _uninitialised,
        "output_layer_init_method": _uninitialised,
        "use_cpu_initialization": context.device.kind == "cpu",
    }


def model_arguments(context: Context, shape: Shape) -> dict[str, Any]:
    """The arguments of `GPTModel` in every release, except the configuration and the layers."""
    layout, at = context.layout, context.layout.coordinates(context.rank)
    return {
        "vocab_size": shape.padded_vocabulary(layout.tp),
        "max_sequence_length": shape.positions,
        "pre_process": at.pp == 0,
        "post_process": at.pp == layout.pp - 1,
        "parallel_output": True,
        "share_embeddings_and_output_weights": shape.tied,
        "position_embedding_type": "learned_absolute" if shape.position_embedding == LEARNED else "rope",
        "rotary_base": shape.rope_theta,
    }


COMPILED, SCRIPTED = "torch.compile", "torchscript"
_POINTWISE = (
    (fused_bias_dropout, ("bias_dropout_add_fused_train", "bias_dropout_add_fused_inference")),
    (fused_bias_swiglu, ("swiglu", "swiglu_back", "bias_swiglu", "bias_swiglu_back")),
)


def fuse_pointwise(device: torch.device) -> str:
    """How Megatron-Core makes one kernel each of bias, dropout and addition, and of bias and SwiGLU.

    It decorates them with torch.compile, or before torch 2.2 with TorchScript. Where a device has no compiler, and on
    the CPU, where one takes minutes, they are called as they are.
    """
    if torch_release() < (2, 2):
        return SCRIPTED
    if device.type == "cuda" and _compiles(device):
        return COMPILED
    for module, names in _POINTWISE:
        for name in names:
            function = getattr(module, name)
            setattr(module, name, getattr(function, "_torchdynamo_orig_callable", function))
    return "none"


def _compiles(device: torch.device) -> bool:
    """Whether torch.compile works: it needs Triton, a C compiler, Python's headers and a folder to write to."""
    try:
        torch.compile(lambda tensor: tensor + 1)(torch.zeros(1, device=device))
    except Exception:  # each missing part raises another kind
        return False
    return True


def place_positions(model: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Bring a table of positions to the device and the precision of the other parameters, as Megatron-LM does."""
    table = getattr(getattr(model, "embedding", None), "position_embeddings", None)
    if table is not None:
        table.to(device, dtype)


SEPARATE, BY_APEX, BY_TORCH = "separate", "fused by apex", "fused by torch"
FUSED_BY_TORCH_FROM = (2, 8)
"""torch.addmm of half-precision matrices to an fp32 sum, on CUDA devices."""


def fuse_weight_gradients(device: torch.device) -> str:
    """How a micro-batch's weight gradients are added to the sum: in the kernel of their product, as published, where
    Apex's extension or torch can. For `gradient_accumulation_fusion` of Megatron-Core, which calls that extension."""
    if device.type != "cuda":
        return SEPARATE
    if layers._grad_accum_fusion_available:
        return BY_APEX if layers.fused_weight_gradient_mlp_cuda is not _ByTorch else BY_TORCH
    if torch_release() < FUSED_BY_TORCH_FROM:
        return SEPARATE
    layers.fused_weight_gradient_mlp_cuda, layers._grad_accum_fusion_available = _ByTorch, True
    return BY_TORCH


class _ByTorch:
    """Stands in for Apex's extension."""

    @staticmethod
    def wgrad_gemm_accum_fp32(inputs: torch.Tensor, gradients: torch.Tensor, total: torch.Tensor) -> None:
        """Add a weight's gradient [O, I] to `total`, fp32, from inputs [N, I] and gradients of the output [N, O]."""
        if inputs.dtype is total.dtype:
            total.addmm_(gradients.t(), inputs)
        else:
            torch.addmm(total, gradients.t(), inputs, out_dtype=total.dtype, out=total)


def sum_over_replicas(tensor: torch.Tensor) -> None:
    """Add the tensors of all replicas, in place; with one replica, a collective of one rank."""
    dist.all_reduce(tensor, group=parallel_state.get_data_parallel_group())


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each token, nats [B, T], from this rank's part of the logits, fp32 [B, T, V / tp], which it
    overwrites."""
    return tensor_parallel.vocab_parallel_cross_entropy(logits, labels)  # type: ignore[no-any-return]
