"""Adds LoRA to q_proj and v_proj, as peft does.

An old peft cannot read adapters saved by a new one, whose configuration has unknown keys. So peft's files are not
used: adapters are plain tensors `layers.N.q_proj.A` and `.B`, and their settings are in the manifest.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import nn

from flagbench_cases.cases.llama2_7b_lora.model import LlamaShape, LoraShape
from flagbench_cases.shared.errors import DataError

TARGETS = ("q_proj", "v_proj")
"""The projections that have adapters."""
ADAPTER_NAME = re.compile(r".*\.layers\.(\d+)\.self_attn\.(q_proj|v_proj)\.lora_(A|B)\.weight")
"""The name of the parameter of an adapter in the model."""


class Adapted(nn.Module):
    """A projection with its adapter, which `forward.project` computes with. A is random, B is zero."""

    def __init__(self, base_layer: nn.Linear, lora: LoraShape, dtype: torch.dtype) -> None:
        """Draws from torch's generator for the processor as peft does, which initialises both matrices twice."""
        super().__init__()
        weight = base_layer.weight
        self.base_layer = base_layer
        self.lora_dropout = nn.Dropout(lora.dropout)
        self.lora_A = nn.Linear(base_layer.in_features, lora.r, bias=False)
        self.lora_B = nn.Linear(lora.r, base_layer.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)
        for matrix in (self.lora_A, self.lora_B):
            matrix.to(device=weight.device, dtype=weight.dtype).to(dtype)
        self.scaling = lora.alpha / lora.r


def attach(model: Any, shape: LlamaShape, recompute: bool) -> Any:
    """Add adapters to the projections TARGETS of each layer; returns the model, in which only they are trainable.

    The adapters have the dtype of the base model, as in the publisher's peft 0.4; newer versions would use fp32 for
    fp16. With a bf16 base, which was not published, they are fp32: AdamW's moments have the adapters' dtype, and in
    bf16 the second moment could not decay (1.0 x 0.999 rounds to 1.0).
    """
    dtype = next(model.parameters()).dtype
    if dtype == torch.bfloat16:
        dtype = torch.float32
    for layer in model.model.layers:
        for name in TARGETS:
            setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name), shape.lora, dtype))
    model.forward.recompute = recompute
    return model


def adapters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the adapters by name, in the order of the forward pass: A [r, in], B [out, r]."""
    parameters = {}
    for name, parameter in module.named_parameters():
        match = ADAPTER_NAME.fullmatch(name)
        if match:
            layer, projection, matrix = match.groups()
            parameters[f"layers.{layer}.{projection}.{matrix}"] = parameter
    return parameters


def fill(parameters: dict[str, torch.nn.Parameter], tensors: dict[str, torch.Tensor]) -> None:
    """Set the adapters to `tensors` of the same names. Raises DataError if names or shapes differ."""
    for name, parameter in parameters.items():
        tensor = tensors.get(name)
        remedy = "resume from a checkpoint of this model"
        if tensor is None:
            raise DataError(f"the checkpoint has no adapter {name}", remedy)
        if tensor.shape != parameter.shape:
            raise DataError(f"the checkpoint has an adapter {name} of another shape", remedy)
        with torch.no_grad():
            parameter.copy_(tensor)
