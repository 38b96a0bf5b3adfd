"""Lets Megatron-Core run on CPU ranks. Only the cpu stack uses it.

Megatron-Core allocates on `torch.cuda.current_device()` and forks generators of CUDA. Here its modules see a `torch`
that differs in these names; torch itself, and everybody else's, is not changed.

It creates some twenty process groups, most of them of the same ranks. Each would have a thread of gloo that wakes up
a hundred times a second: together two percent of a core, which would be counted as work of the model. Here, groups of
the same ranks are one.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
from typing import Any, Callable, Sequence

import torch

from flagbench_cases.engines.megatron.versions import torch_release

CPU = torch.device("cpu")
FACTORIES = ("arange", "empty", "full", "ones", "zeros")
_PACKAGE = "megatron.core"


class Overlay(types.ModuleType):
    """A module in which some names are replaced."""

    def __init__(self, base: types.ModuleType, **names: Any) -> None:
        super().__init__(base.__name__)
        self.__dict__.update(names, _base=base)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_base"], name)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The factory, for which device="cuda" means the CPU."""

    @functools.wraps(factory)
    def call(*arguments: Any, **options: Any) -> torch.Tensor:
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = CPU
        return factory(*arguments, **options)

    return call


def _all_reduce(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    """All-reduce, in fp32 for bf16, which gloo lacks before torch 2.6."""
    if tensor.dtype is not torch.bfloat16:
        return torch.distributed.all_reduce(tensor, *arguments, **options)
    wide = tensor.float()
    torch.distributed.all_reduce(wide, *arguments, **options)
    return tensor.copy_(wide)


class _Done:
    """A collective that has ended."""

    def wait(self) -> None:
        """Nothing is left to wait for."""


def _all_gather(output: torch.Tensor, part: torch.Tensor, group: Any = None, async_op: bool = False) -> _Done:
    """The parts of all ranks, one after the other; gloo of torch 1.12 takes lists alone, and not of bf16."""
    parts = list(output.view(-1).view(torch.uint8).chunk(torch.distributed.get_world_size(group)))
    torch.distributed.all_gather(parts, part.contiguous().view(-1).view(torch.uint8), group=group)
    return _Done()


def _reduce_scatter(
    output: torch.Tensor,
    whole: torch.Tensor,
    op: Any = torch.distributed.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> _Done:
    """This rank's part of the sum, which gloo of torch 1.12 lacks. `output` may be that part of `whole`."""
    total = whole.clone()
    _all_reduce(total, op=op, group=group)
    size, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
    output.copy_(total.view(-1).chunk(size)[rank].view_as(output))
    return _Done()


def _tensor(*arguments: Any, **options: Any) -> torch.Tensor:
    """torch.tensor, whose result is on the CPU although Megatron-Core 0.8 calls its `cuda`."""
    tensor = _on_cpu(torch.tensor)(*arguments, **options)
    tensor.cuda = lambda *_, **__: tensor  # type: ignore[method-assign]
    return tensor


class _Groups:
    """The process groups of a job by their ranks. Every rank asks for the same ones, in the same order."""

    def __init__(self) -> None:
        self._world: Any = None
        self._made: dict[tuple[int, ...] | None, Any] = {}

    def new_group(self, ranks: Sequence[int] | None = None, *arguments: Any, **options: Any) -> Any:
        """The group of these ranks, created when first asked for; None: of all ranks."""
        if self._world is not torch.distributed.group.WORLD:  # that of a job which has ended
            self._world, self._made = torch.distributed.group.WORLD, {}
        key = None
        if ranks is not None:
            key = tuple(ranks)
        if key not in self._made:
            self._made[key] = torch.distributed.new_group(ranks, *arguments, **options)
        return self._made[key]


_GROUPS = _Groups()


def _overlay() -> Overlay:
    cuda = Overlay(
        torch.cuda,
        current_device=lambda: CPU,  # where parameters, buffers and gathered outputs are allocated
        synchronize=_nothing,
        empty_cache=_nothing,
        manual_seed=torch.manual_seed,
        get_rng_state=lambda *_: torch.get_rng_state(),  # the tracker's generators, and recomputation
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
    )
    names: dict[str, Any] = {name: _on_cpu(getattr(torch, name)) for name in FACTORIES}
    names["tensor"] = _on_cpu(torch.tensor)
    replaced: dict[str, Any] = {"new_group": _GROUPS.new_group}
    if torch_release() < (2, 6):
        names["tensor"] = _tensor
        replaced.update(all_reduce=_all_reduce, _all_gather_base=_all_gather, _reduce_scatter_base=_reduce_scatter)
    return Overlay(torch, cuda=cuda, distributed=Overlay(torch.distributed, **replaced), **names)


def install() -> None:
    """Replace the name `torch` in all imported modules of Megatron-Core. May be repeated after further imports."""
    overlay = _overlay()
    for name, module in list(sys.modules.items()):
        if (name == _PACKAGE or name.startswith(_PACKAGE + ".")) and getattr(module, "torch", None) is torch:
            module.torch = overlay  # type: ignore[attr-defined]
    random: Any = sys.modules[_PACKAGE + ".tensor_parallel.random"]
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    logging.getLogger(random.__name__).setLevel(logging.ERROR)  # it warns that the CPU's generator was used
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    language: Any = sys.modules[_PACKAGE + ".models.common.language_module.language_module"]
    # A stage would take the first one's embedding to a CUDA device; it is filled afterwards.
    language.torch = Overlay(overlay, distributed=Overlay(torch.distributed, is_initialized=lambda: False))
    language.LanguageModule.embedding_warning_printed = True
    optimizer: Any = sys.modules.get(_PACKAGE + ".optimizer.optimizer")
    if optimizer is not None:
        optimizer.clip_grad_by_total_norm_fp32 = _clip


def _clip(parameters: list[Any], max_norm: float, total_norm: float, use_decoupled_grad: bool = False) -> None:
    """Megatron-Core's own refuses gradients that are not on a CUDA device."""
    factor = max_norm / (total_norm + 1.0e-6)
    if not factor < 1.0:  # NaN too
        return
    name = "decoupled_grad" if use_decoupled_grad else "grad"
    for parameter in parameters:
        gradient = getattr(parameter, name, None)
        if gradient is not None:
            gradient.mul_(factor)


_TYPES = {
    torch.float32: "torch.cuda.FloatTensor",
    torch.float16: "torch.cuda.HalfTensor",
    torch.bfloat16: "torch.cuda.BFloat16Tensor",
}


def mark_types(module: torch.nn.Module) -> None:
    """Let the parameters name their type as on a CUDA device: the optimizer groups them by these names."""
    for parameter in module.parameters():

        def type_of(dtype: Any = None, *arguments: Any, tensor: torch.Tensor = parameter, **options: Any) -> Any:
            if dtype is None:
                return _TYPES[tensor.dtype]
            return torch.Tensor.type(tensor, dtype, *arguments, **options)

        parameter.type = type_of  # type: ignore[assignment]
