"""The model and its process groups by Megatron-Core 0.4.0, which also runs with Python 3.8 and torch 1.12.

Of all releases, it is nearest to the code of the publishers of 2023. Its modules are those of the `local` layer
specification; the norm is the same as for current releases.
"""

import logging
import sys
import types
import warnings
from typing import Any

import torch

from flagbench_cases.contract import Context
from flagbench_cases.engines.megatron import cpu_shims
from flagbench_cases.engines.megatron.shape import Shape
from flagbench_cases.engines.process_group import ensure_group

# It reports that Zarr, for checkpoints, is absent.
logging.getLogger("megatron.core.dist_checkpointing.strategies").setLevel(logging.ERROR)

from flagbench_cases.engines.megatron.common import (  # noqa: E402
    ExpandedSelfAttention,
    Norm,
    config_arguments,
    model_arguments,
    sum_over_replicas,
    token_losses,
)

_TRANSFORMER_ENGINE = "megatron.core.transformer.custom_layers.transformer_engine"


def _without_transformer_engine() -> types.ModuleType:
    """In place of the module that imports Transformer Engine, which this release requires though only the final norm
    is taken from it."""
    module: Any = types.ModuleType(_TRANSFORMER_ENGINE)
    module.TENorm = Norm
    module.TEColumnParallelLinear = module.TERowParallelLinear = None
    module.TELayerNormColumnParallelLinear = module.TEDotProductAttention = None
    return module  # type: ignore[no-any-return]


sys.modules[_TRANSFORMER_ENGINE] = _without_transformer_engine()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

__all__ = ["RELEASE", "build", "start", "sum_over_replicas", "token_losses"]

RELEASE = "0.4"


def start(context: Context) -> None:
    """Create Megatron-Core's process groups for the layout, and its generators for dropout."""
    device, layout = context.device, context.layout
    ensure_group(device.backend)
    if device.kind == "cpu":
        cpu_shims.install()
    parallel_state.initialize_model_parallel(layout.tp, layout.pp)
    tensor_parallel.model_parallel_cuda_manual_seed(context.config["seed"])


def build(context: Context, shape: Shape, dtype: torch.dtype, of_2023: bool = False) -> torch.nn.Module:
    """This rank's stage with uninitialised parameters: tokens [B, T] to logits [B, T, V / tp].

    `of_2023`: as in `mcore`.
    """
    config = TransformerConfig(**config_arguments(context, shape, dtype, of_2023))
    layer = get_gpt_layer_local_spec()
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    if of_2023:
        layer.submodules.self_attention.module = ExpandedSelfAttention
    model = GPTModel(config=config, transformer_layer_spec=layer, **model_arguments(context, shape))
    if of_2023:
        # It computes the angles in every forward pass, in the precision of the frequencies.
        model.rotary_pos_emb.inv_freq = model.rotary_pos_emb.inv_freq.to(dtype)
    return model
