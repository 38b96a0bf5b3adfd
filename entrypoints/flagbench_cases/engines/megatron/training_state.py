"""The state from which a rank resumes training with Megatron-Core: the fp32 weights that it updates, Adam's moments.

With the distributed optimizer, each data-parallel rank updates a part of the parameters of its stage. The parts of
all ranks together are the model, so that weights in half precision are not saved: they follow from the fp32 ones.

Megatron-Core's own functions do not fit: `dist_checkpointing` and `save_parameter_state` write pickles, and
`get_parameter_state_dp_zero` collects the parts of all replicas on one rank.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any, Callable, Iterator, NamedTuple

import torch

from flagbench_cases.shared.errors import DataError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Apex and Transformer Engine are absent
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.optimizer.optimizer import MixedPrecisionOptimizer
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

MOMENTS = ("exp_avg", "exp_avg_sq")
GENERATOR = "generator."
REMEDY = "resume from another checkpoint"


class Part(NamedTuple):
    """A parameter, or the part of it that this rank updates.

    `name` has the range of elements of a part, as NAME[128:256]. `values` are its fp32 values, `state` is what
    torch's optimizer keeps for it, empty before the first update.
    """

    name: str
    values: torch.Tensor
    state: dict[str, Any]


def parts(module: torch.nn.Module, optimizer: Any) -> Iterator[Part]:
    """The parts that an optimizer of Megatron-Core updates on this rank."""
    inner = optimizer.optimizer
    names = {parameter: name for name, parameter in module.named_parameters()}
    if isinstance(optimizer, DistributedOptimizer):
        for parameter, (group, order) in optimizer.model_param_group_index_map.items():
            part = optimizer._get_model_param_range_map(parameter)["param"]
            values = inner.param_groups[group]["params"][order]
            yield Part(f"{names[parameter]}[{part.start}:{part.end}]", values, inner.state[values])
    else:
        # The copies in fp32 have the order of the parameters in half precision; there are none in fp32.
        copies = dict(
            zip(
                itertools.chain(*getattr(optimizer, "float16_groups", [])),
                itertools.chain(*getattr(optimizer, "fp32_from_float16_groups", [])),
            )
        )
        for parameter, name in names.items():
            values = copies.get(parameter, parameter)
            yield Part(name, values, inner.state[values])


def gather_parts(model: Any, optimizer: Any) -> None:
    """Take the parts of the parameters that other data-parallel ranks update. Called by every rank."""
    if hasattr(model, "start_param_sync"):
        model.start_param_sync(force_sync=True)
    else:  # Megatron-Core 0.8, which does so only after an update
        optimizer.update_successful = True
        optimizer._reset_metadata_and_sync_gather_all_model_params(force_sync=True)


def tensors_of(module: torch.nn.Module, optimizer: Any) -> dict[str, torch.Tensor]:
    """The state of this rank, by name."""
    tensors = {}
    for part in parts(module, optimizer):
        tensors[part.name] = part.values.detach()
        for name in MOMENTS:
            if name in part.state:
                tensors[f"{part.name}.{name}"] = part.state[name]
    for name, state in get_cuda_rng_tracker().get_states().items():
        tensors[GENERATOR + name] = state
    return tensors


def check(tensors: dict[str, torch.Tensor], module: torch.nn.Module, optimizer: Any, updates: int) -> None:
    """Raise DataError unless names, types and shapes are those that this rank has after as many updates."""
    wanted = {}
    for part in parts(module, optimizer):
        wanted[part.name] = _form(part.values)
        if updates:
            for name in MOMENTS:
                wanted[f"{part.name}.{name}"] = _form(part.values)
    for name, state in get_cuda_rng_tracker().get_states().items():
        wanted[GENERATOR + name] = _form(state)
    forms = {name: _form(tensor) for name, tensor in tensors.items()}
    for name in sorted({*wanted, *forms}):
        if name not in forms:
            raise DataError(f"the checkpoint has no tensor {name}", REMEDY)
        if name not in wanted:
            raise DataError(f"the checkpoint has the tensor {name}, which this rank does not have", REMEDY)
        if forms[name] != wanted[name]:
            raise DataError(f"the checkpoint has {name} as {forms[name]}, not {wanted[name]}", REMEDY)


def _form(tensor: torch.Tensor) -> str:
    """Type and shape, as float32 [64]."""
    return f"{str(tensor.dtype).replace('torch.', '')} {list(tensor.shape)}"


def restore(
    tensors: dict[str, torch.Tensor],
    module: torch.nn.Module,
    optimizer: Any,
    updates: int,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Copy what `tensors_of` returned after `updates` updates. The model's weights are then those of this rank's part
    only: the caller must gather the others."""
    inner = optimizer.optimizer
    counts_itself = isinstance(inner, (torch.optim.Adam, torch.optim.AdamW))
    with torch.no_grad():
        for part in parts(module, optimizer):
            beat()
            part.values.copy_(tensors[part.name])
            if not updates:
                continue
            for name in MOMENTS:
                saved = tensors[f"{part.name}.{name}"]
                part.state[name] = saved.to(part.values.device, copy=True)
            if counts_itself:
                part.state["step"] = torch.tensor(float(updates))
    if updates and not counts_itself:  # Apex's and Transformer Engine's count for a group of parameters
        for group in inner.param_groups:
            group["step"] = updates
    if isinstance(optimizer, MixedPrecisionOptimizer):
        optimizer._copy_main_params_to_model_params()
    tracker = get_cuda_rng_tracker()
    tracker.set_states({name: tensors[GENERATOR + name].clone() for name in tracker.get_states()})


def scaler_of(optimizer: Any) -> Any:
    """The loss scaler; None without one."""
    return getattr(optimizer, "grad_scaler", None)


def scaler_facts(scaler: Any) -> dict[str, Any]:
    """The state of a loss scaler as JSON."""
    facts: dict[str, Any] = {}
    for name, value in scaler.state_dict().items():
        if name == "scale":
            facts[name] = float(value)
        else:
            facts[name] = int(value)
    return facts


def restore_scaler(scaler: Any, facts: dict[str, Any]) -> None:
    """Restore what `scaler_facts` returned. The scaler's own `load_state_dict` needs a CUDA device."""
    scaler._scale.fill_(facts["scale"])
    scaler._growth_tracker = facts["growth_tracker"]
    scaler._hysteresis_tracker = facts["hysteresis_tracker"]
