"""The model and its process groups by Megatron-Core 0.16, which needs torch 2.6 and Python 3.10.

Modules are Megatron-Core's own (its `local` layer specification), since Transformer Engine and Apex are not in every
image; only the norm is ours, marked for sequence parallelism.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable

import torch
from torch.nn import functional as F

from flagbench_cases.contract import Context
from flagbench_cases.engines.groups import ensure_group
from flagbench_cases.engines.megatron import cpu_shims
from flagbench_cases.engines.megatron.attention import ATTENTIONS, UNFUSED
from flagbench_cases.engines.megatron.common import (
    ExpandedSelfAttention,
    config_arguments,
    fuse_pointwise,
    fuse_weight_gradients,
    model_arguments,
    place_positions,
    sum_over_replicas,
    token_losses,
)
from flagbench_cases.engines.megatron.norm import NORMS, TORCH
from flagbench_cases.engines.megatron.shape import LOCAL, TRANSFORMER_ENGINE, Shape

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Apex and Transformer Engine are absent; pynvml has another name
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.gpt.gpt_layer_specs import (
        HAVE_TE,
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.mlp import MLP
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

__all__ = [
    "RELEASE",
    "build",
    "choose_layers",
    "fuse_pointwise",
    "fuse_weight_gradients",
    "start",
    "sum_over_replicas",
    "token_losses",
]

RELEASE = "0.16"


def choose_layers(device: torch.device) -> str:
    """Transformer Engine's, where it can be imported; it needs a CUDA device."""
    return TRANSFORMER_ENGINE if HAVE_TE and device.type == "cuda" else LOCAL


class PlainSwiGLU(MLP):
    """Current releases add an offset, here 0, to the linear half: one more pass over [T, B, ffn / tp]."""

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, Any]:
        both, _ = self.linear_fc1(hidden)
        gate, linear = torch.chunk(both, 2, dim=-1)
        return self.linear_fc2(F.silu(gate) * linear)  # type: ignore[no-any-return]


def add_residual(*_: Any) -> Callable[..., torch.Tensor]:
    """The sum without dropout and bias, as a new tensor; current releases overwrite the output."""
    return lambda output, residual, *_: residual + output[0]


class ModelPrecisionRotary(RotaryEmbedding):
    """Angles in the precision of the model, computed in every forward pass, as in Megatron-LM of 2023, which
    converted the frequencies with the model. In bf16, angles of position 100 are off by up to 0.1."""

    def forward(self, max_seq_len: int, offset: int = 0, **_: Any) -> torch.Tensor:
        frequencies = self.inv_freq
        positions = torch.arange(max_seq_len, dtype=torch.float32, device=frequencies.device) + offset
        angles = torch.einsum("i,j->ij", positions.to(frequencies.dtype), frequencies)
        return torch.cat((angles, angles), dim=-1)[:, None, None, :]


def start(context: Context) -> None:
    """Create Megatron-Core's process groups for the layout, and its generators for dropout."""
    device, layout = context.device, context.layout
    ensure_group(device.backend)
    if device.kind == "cpu":
        cpu_shims.install()
    parallel_state.initialize_model_parallel(
        layout.tp, layout.pp, order="tp-cp-ep-dp-pp", create_gloo_process_groups=False
    )
    tensor_parallel.model_parallel_cuda_manual_seed(context.config["seed"])


def build(
    context: Context,
    shape: Shape,
    dtype: torch.dtype,
    of_2023: bool = False,
    of_2024: bool = False,
    attention: str = UNFUSED,
    norm: str = TORCH,
    layers: str = LOCAL,
    **settings: Any,
) -> torch.nn.Module:
    """This rank's stage with uninitialised parameters: tokens [B, T] to logits [B, T, V / tp].

    `of_2023`: layers with the operators of Megatron-LM at that time: scores divided by the number of the layer and
    multiplied by it in fp32, keys repeated first, angles in the precision of the model, no offset in the SwiGLU,
    residuals added out of place. It is for inference: there is no dropout.
    `of_2024`: those of its legacy layers in January 2024: keys repeated first, no offset in the SwiGLU.
    `attention`, `norm`: a name of the module of that name, for local `layers`; those of Transformer Engine have their
    own. `settings`: of Megatron-Core's TransformerConfig.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice, and about options that are not used
        config = TransformerConfig(**config_arguments(context, shape, dtype, of_2023), **settings)
    if layers == TRANSFORMER_ENGINE:
        model = GPTModel(config, get_gpt_layer_with_transformer_engine_spec(), **model_arguments(context, shape))
        place_positions(model, context.device.torch_device, dtype)
        return model
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = NORMS[norm]
    if of_2023 or of_2024:
        layer.submodules.self_attention.module = ExpandedSelfAttention
    if of_2023:
        layer.submodules.self_attn_bda = layer.submodules.mlp_bda = add_residual
    if attention != UNFUSED:
        layer.submodules.self_attention.submodules.core_attention = ATTENTIONS[attention]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GPTModel(
            config=config,
            transformer_layer_spec=TransformerBlockSubmodules(
                layer_specs=[layer] * (shape.layers // context.layout.pp), layer_norm=NORMS[norm]
            ),
            **model_arguments(context, shape),
        )
    place_positions(model, context.device.torch_device, dtype)
    if of_2023:
        model.rotary_pos_emb.__class__ = ModelPrecisionRotary
        model.rotary_pos_emb.inv_freq = model.rotary_pos_emb.inv_freq.to(dtype)
    if of_2023 or of_2024:
        for module in model.decoder.layers:
            module.mlp.__class__ = PlainSwiGLU
    return model
