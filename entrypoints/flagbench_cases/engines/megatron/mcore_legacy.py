"""The model and its process groups by Megatron-Core 0.8.0, which also runs with Python 3.8 and torch 1.12.

It is the last release for them, and the first with an optimizer that can do without Apex and Transformer Engine. Apex
is used where it can be imported. Transformer Engine is not: with other releases of it, this one cannot be imported.
"""

from __future__ import annotations

import logging
import math
import sys
import warnings
from typing import Any

import torch

from flagbench_cases.contract import Context
from flagbench_cases.engines.groups import ensure_group
from flagbench_cases.engines.megatron import cpu_shims
from flagbench_cases.engines.megatron.attention import ATTENTIONS, UNFUSED
from flagbench_cases.engines.megatron.norm import NORMS, TORCH
from flagbench_cases.engines.megatron.shape import LOCAL, Shape

sys.modules.setdefault("transformer_engine", None)  # type: ignore[arg-type]  # an import of it fails
# It reports that Zarr, for checkpoints, is absent.
logging.getLogger("megatron.core.dist_checkpointing.strategies").setLevel(logging.ERROR)

from flagbench_cases.engines.megatron.common import (  # noqa: E402
    ExpandedSelfAttention,
    config_arguments,
    fuse_pointwise,
    fuse_weight_gradients,
    model_arguments,
    place_positions,
    sum_over_replicas,
    token_losses,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Apex and Transformer Engine are absent
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import param_and_grad_buffer
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import distrib_optimizer
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

RELEASE = "0.8"


def _lcm(a: int, b: int) -> int:
    """math.lcm, which Python 3.8 lacks."""
    return a * b // math.gcd(a, b)


# It pads the buffers of the distributed optimizer with it; nothing else of it is missing in Python 3.8.
param_and_grad_buffer.math = cpu_shims.Overlay(math, lcm=_lcm)
if not distrib_optimizer.HAVE_APEX_OR_TE:
    # It refuses torch's Adam, with which it could not save its own checkpoints; later releases take it.
    distrib_optimizer.HAVE_APEX_OR_TE, distrib_optimizer.Adam = True, torch.optim.AdamW


def start(context: Context) -> None:
    """Create Megatron-Core's process groups for the layout, and its generators for dropout."""
    device, layout = context.device, context.layout
    ensure_group(device.backend)
    if device.kind == "cpu":
        cpu_shims.install()
    parallel_state.initialize_model_parallel(layout.tp, layout.pp)
    tensor_parallel.model_parallel_cuda_manual_seed(context.config["seed"])


def choose_layers(device: torch.device) -> str:
    """Megatron-Core's own."""
    return LOCAL


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
    """This rank's stage with uninitialised parameters: tokens [B, T] to logits [B, T, V / tp]. Arguments as in
    `mcore`."""
    config = TransformerConfig(**config_arguments(context, shape, dtype, of_2023), **settings)
    layer = get_gpt_layer_local_spec()
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = NORMS[norm]
    if of_2023 or of_2024:
        layer.submodules.self_attention.module = ExpandedSelfAttention
    if attention != UNFUSED:
        layer.submodules.self_attention.submodules.core_attention = ATTENTIONS[attention]
    model = GPTModel(
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules(
            layer_specs=[layer] * (shape.layers // context.layout.pp), layer_norm=NORMS[norm]
        ),
        **model_arguments(context, shape),
    )
    place_positions(model, context.device.torch_device, dtype)
    if of_2023:
        # It computes the angles in every forward pass, in the precision of the frequencies.
        model.rotary_pos_emb.inv_freq = model.rotary_pos_emb.inv_freq.to(dtype)
    return model
