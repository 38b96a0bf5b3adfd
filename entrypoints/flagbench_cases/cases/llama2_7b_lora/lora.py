"""LoRA on q_proj and v_proj through peft, and the adapters under names that no version of peft decides.

An adapter saved by a new peft cannot be read by an old one (its configuration has keys the old one does not know). So
peft's own files are not used: adapters are plain tensors `layers.N.q_proj.A` and `.B`, and their few settings are in
the manifest.
"""

import re
import warnings
from typing import Any, Dict

import torch

from flagbench_cases.cases.llama2_7b_lora.model import LlamaShape, library
from flagbench_cases.shared.errors import CaseError, DataError

TARGETS = ("q_proj", "v_proj")
PARAMETER = re.compile(r".*\.layers\.(\d+)\.self_attn\.(q_proj|v_proj)\.lora_(A|B)\.default\.weight")


def attach(model: Any, shape: LlamaShape, recompute: bool) -> Any:
    """The model with adapters, a PeftModel; only they train. A is drawn from torch's generator, B is zero.

    They have the type of the base, as with the publisher's peft 0.4, where newer ones would lift fp16 to fp32. Over a
    base in bf16, which nobody published, they are fp32: AdamW's moments have their type, and in bf16 the second one
    could not decay (1.0 x 0.999 is 1.0 again).
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
    base = next(model.parameters()).dtype
    lifted = base == torch.bfloat16
    with warnings.catch_warnings():
        # peft uses a name that transformers 5 has deprecated: nothing that a reader of the log can fix.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        module = peft.get_peft_model(model, config, autocast_adapter_dtype=lifted)
    # Not by transformers' own switch: with peft it asks for a gradient of the embeddings, which nobody needs.
    model.forward.recompute = recompute
    verify(module, shape, torch.float32 if lifted else base)
    return module


def verify(module: torch.nn.Module, shape: LlamaShape, dtype: torch.dtype) -> None:
    """The adapters, and nothing else, train; as many and of the type that was asked for."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in trainable)
    types = {parameter.dtype for parameter in trainable}
    ours = list(adapters(module).values())
    same = len(ours) == len(trainable) and all(a is b for a, b in zip(ours, trainable))
    if count != shape.adapter_parameters or types != {dtype} or not same:
        raise CaseError(
            "peft made %d trainable parameters of %s, not %d of %s"
            % (count, "/".join(sorted(str(t) for t in types)), shape.adapter_parameters, dtype),
            "use the peft of this image's lock",
        )


def adapters(module: torch.nn.Module) -> Dict[str, torch.nn.Parameter]:
    """The adapters by our names, in the order of the forward pass: A [r, in], B [out, r]."""
    found = {}
    for name, parameter in module.named_parameters():
        match = PARAMETER.fullmatch(name)
        if match:
            found["layers.%s.%s.%s" % match.groups()] = parameter
    return found


def fill(parameters: Dict[str, torch.nn.Parameter], tensors: Dict[str, torch.Tensor]) -> None:
    """Set the adapters to `tensors` of the same names. Raises DataError where names or shapes differ."""
    for name, parameter in parameters.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != parameter.shape:
            what = "no adapter %s" % name if tensor is None else "an adapter %s of another shape" % name
            raise DataError("the checkpoint has %s" % what, "resume from a checkpoint of this model")
        with torch.no_grad():
            parameter.copy_(tensor)
