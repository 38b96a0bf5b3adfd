"""What one step does: operators by name and count, the bytes they move, and the bytes kept for the backward pass.

Both are counted while a step runs, and slow it down: a step whose time is taken is not counted.
"""

import gc
from collections import Counter
from typing import Any, Callable, Dict, Tuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _python_dispatch
from torch.utils._pytree import tree_flatten

WARMUP = 3
# torch 1.12 has no such mode that is entered by `with`: operators are not counted there.
TorchDispatchMode: Any = getattr(_python_dispatch, "TorchDispatchMode", object)


def storage_of(tensor: torch.Tensor) -> Any:
    """The storage of a tensor, by the name that this torch has for it."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def moved(tensor: torch.Tensor) -> int:
    """Bytes read or written of a tensor: an expanded one is read from what its storage holds."""
    return min(tensor.numel() * tensor.element_size(), storage_of(tensor).nbytes())


def is_view(operator: Any) -> bool:
    """Whether everything that an operator returns is its argument seen otherwise, so that it moves nothing."""
    returns = [value.alias_info for value in operator._schema.returns]
    return bool(returns) and all(alias is not None and not alias.is_write for alias in returns)


class Operators(TorchDispatchMode):
    """Counts every operator below autograd and autocast, forward and backward, while it is entered.

    `count` and `bytes` by name ("aten.addmm.default"); bytes are those of the tensors read and written, of a view 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count: Dict[str, int] = Counter()
        self.bytes: Dict[str, int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Tuple = (), kwargs: Any = None) -> Any:
        """Run the operator and count it."""
        result = func(*args, **(kwargs or {}))
        name = str(func)
        self.count[name] += 1
        if not is_view(func):
            tensors = [x for x in tree_flatten((args, kwargs, result))[0] if isinstance(x, torch.Tensor)]
            self.bytes[name] += sum(moved(tensor) for tensor in tensors)
        return result

    def found(self) -> Dict[str, Any]:
        """What was counted, plain data."""
        return {"operators": dict(self.count), "bytes": dict(self.bytes)}


def _is_stored(parameter: torch.Tensor) -> bool:
    """Whether a parameter has a storage: neither one on the meta device nor one whose tensor is gone already has."""
    try:
        return parameter.device.type != "meta"
    except RuntimeError:
        return False


class Saved(saved_tensors_hooks):
    """Counts the distinct storages that autograd keeps for the backward pass, while it is entered.

    Each is held until the end of the step, so that none is counted twice or taken for one that was freed. Parameters
    are there anyway, and may share one storage: only those that are needed are counted.
    """

    def __init__(self) -> None:
        self._storages: Dict[int, Tuple[Any, int, str]] = {}
        parameters = [each for each in gc.get_objects() if type(each) is torch.nn.Parameter and _is_stored(each)]
        self._of_parameters = {storage_of(each).data_ptr() for each in parameters}
        super().__init__(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = storage_of(tensor)
        what = "%s%s" % (str(tensor.dtype).replace("torch.", ""), list(tensor.shape))
        if storage.data_ptr() in self._of_parameters:
            self._storages.setdefault(tensor.data_ptr(), (storage, moved(tensor), what))
        else:
            self._storages.setdefault(storage.data_ptr(), (storage, storage.nbytes(), what))
        return tensor

    def found(self) -> Dict[str, Any]:
        """Bytes, and how many storages there are of each kind; a kind is that of the first tensor saved in it."""
        return {
            "saved_bytes": sum(size for _, size, _ in self._storages.values()),
            "saved": dict(Counter(what for *_, what in self._storages.values())),
        }


def of_step(take: Callable[[], Any]) -> Dict[str, Any]:
    """What one call of `take` does and keeps, after three to warm up: a compiled graph has settled by then."""
    for _ in range(WARMUP):
        take()
    found: Dict[str, Any] = {}
    for counter in (Operators(), Saved()):
        with counter:
            take()
        found.update(counter.found())
    return found


COUNTERS: Dict[str, Any] = {"operators": Operators, "saved": Saved}
