"""Counts the bytes of live tensors, by their storages.

torch's MemTracker cannot be used: it calls `buffers()` of every module, which Megatron-Core's DistributedDataParallel
replaces by a list.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


def storages() -> Any:
    """The storages of all tensors that Python knows, weakly; not of those that existed at `gc.freeze()`."""
    gc.collect()
    found = WeakIdKeyDictionary()
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor) and thing.device.type == "cpu":
            found[thing.untyped_storage()] = True
    return found


class LiveBytes(TorchDispatchMode):
    """While it is entered, follows every storage that an operator returns, forward and backward, until it is freed.

    A storage exists as long as a tensor, a view or autograd refers to it.
    """

    def __init__(self, there: Iterable[Any] = ()) -> None:
        """`there`: storages that exist already."""
        super().__init__()
        self.known = WeakIdKeyDictionary()
        self.now = self.peak = 0
        for storage in there:
            self._add(storage)
        self.start = self.now
        """Bytes at the beginning."""

    def _add(self, storage: Any) -> None:
        if storage in self.known:
            return
        size = storage.nbytes()
        self.known[storage] = True
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                self._add(leaf.untyped_storage())
        return result
