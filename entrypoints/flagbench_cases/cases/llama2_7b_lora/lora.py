"""Adds LoRA to q_proj and v_proj through peft, with adapter names that do not depend on the version of peft.

An old peft cannot read adapters saved by a new one, whose configuration has unknown keys. So peft's files are not
used: adapters are plain tensors `layers.N.q_proj.A` and `.B`, and their settings are in the manifest.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch

from flagbench_cases.cases.llama2_7b_lora.model import LlamaShape, library
from flagbench_cases.shared.errors import CaseError, DataError

TARGETS = ("q_proj", "v_proj")
"""The projections that have adapters."""
ADAPTER_NAME = re.compile(r".*\.layers\.(\d+)\.self_attn\.(q_proj|v_proj)\.lora_(A|B)\.default\.weight")
"""The name that peft gives the parameter of an adapter."""


def attach(model: Any, shape: LlamaShape, recompute: bool) -> Any:
    """Add adapters to the model; returns a PeftModel in which only they are trainable. A is random, B is zero.

    The adapters have the dtype of the base model, as in the publisher's peft 0.4; newer versions would use fp32 for
    fp16. With a bf16 base, which was not published, they are fp32: AdamW's moments have the adapters' dtype, and in
    bf16 the second moment could not decay (1.0 x 0.999 rounds to 1.0).
    """
    peft = library("peft")
    config = peft.LoraConfig(
        r=shape.lora.r,
        lora_alpha=shape.lora.alpha,
        lora_dropout=shape.lora.dropout,
        target_modules=list(TARGETS),
        bias="none",
        task_type="CAUSAL_LM",
    )
    base_dtype = next(model.parameters()).dtype
    adapters_in_fp32 = base_dtype == torch.bfloat16
    with warnings.catch_warnings():
        # peft uses a name deprecated by transformers 5, which users cannot fix.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        module = peft.get_peft_model(model, config, autocast_adapter_dtype=adapters_in_fp32)
    # Not with transformers' own switch, which with peft requires a needless gradient of the embeddings.
    model.forward.recompute = recompute
    verify(module, shape, torch.float32 if adapters_in_fp32 else base_dtype)
    return module


def verify(module: torch.nn.Module, shape: LlamaShape, dtype: torch.dtype) -> None:
    """Raise CaseError unless exactly the adapters are trainable, with the expected number and dtype."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in trainable)
    dtypes = {parameter.dtype for parameter in trainable}
    is_adapters = list(map(id, adapters(module).values())) == list(map(id, trainable))
    if count != shape.adapter_parameters or dtypes != {dtype} or not is_adapters:
        names = "/".join(sorted(map(str, dtypes)))
        raise CaseError(
            f"peft created {count} trainable parameters of {names}, not {shape.adapter_parameters} of {dtype}",
            "use the version of peft in this image's lock",
        )


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
