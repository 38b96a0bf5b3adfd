"""The roofs case: matrix products, copies and all-reduces of random numbers, without a model and without data."""

import functools
from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist

from flagbench_cases.contract import Context, Measurement, MeasureWorkload, Operation
from flagbench_cases.engines import precision_switches as precisions
from flagbench_cases.engines.products import fixed_results, mamf_product, product
from flagbench_cases.shared import system
from flagbench_cases.shared.errors import DataError
from flagbench_core.evidence.roofs import ALL_REDUCE, MAMF, MAMF_PUBLISHED, PRODUCT

MEMORY_SHARE = 8
"""No copy or all-reduce is larger than that part of the memory of a rank, of its device and of its host."""
PROBE = 1024
"""Rows and columns of a product that takes little time, and more than its launch on a device."""
FIXED = {"cuda": 4096, "cpu": 512}
"""Rows and columns of the product that is compared bit by bit, at most: work for all of a device."""
PROVEN = ("fp32", "tf32", "fp16", "bf16")
"""Precisions whose products can be told apart by their error."""
PUBLISHED_BY_MAMF = ("bf16", "fp8")
CLEARED_BYTES = {"cpu": 2**24, "cuda": 2**28}
"""Of the buffer that clears the caches before a product. MAMF's is that of `cuda`, of any device."""


class RoofsWorkload(MeasureWorkload):
    """Every rank measures its device, all at the same time, and the all-reduces of all ranks."""

    def __init__(self, context: Context) -> None:
        if context.data is not None or context.weights is not None:
            raise DataError("roofs measures without data and weights", "omit --data and --weights")
        self.context = context
        self.config = context.config
        self.device = context.device.torch
        # A copy from the host takes as much there, where the ranks of a node share the memory.
        host = system.usable_memory_bytes() // self.config["gpus"]
        memory = min(context.device.describe(context.local_rank)["memory_bytes"], host)
        most = torch.tensor(memory // MEMORY_SHARE, device=self.device)
        if context.world > 1:  # an all-reduce of different sizes hangs; and the first one, which starts NCCL, is slow
            dist.all_reduce(most, op=dist.ReduceOp.MIN)
        self.most = int(most)

    def measurements(self) -> List[Measurement]:
        """Products, copies, all-reduces."""
        products = self.config["products"]
        own = [products["m"], products["n"], products["k"]]
        found = []
        for name in products["precisions"]:
            found.append(Measurement("matmul_" + name, [self._product(name, own, False)]))
            shapes = [self._product(name, shape, True) for shape in products["shapes"]]
            found.append(Measurement("matmul_%s_best" % name, [self._product(name, own, False), *shapes]))
            if name in PUBLISHED_BY_MAMF:
                found.append(Measurement("%s_%s" % (MAMF, name), [self._mamf(name, own)]))
            published = products.get("mamf_shapes", {}).get(name)
            if published is not None:
                found.append(Measurement("%s_%s" % (MAMF_PUBLISHED, name), [self._mamf(name, published)]))
        size = self.config["copies"]["bytes"]
        found.append(Measurement("memory_bandwidth", [self._copy("copy", size, pinned=False)]))
        found += [Measurement(way + "_pinned", [self._copy(way, size, pinned=True)]) for way in ("h2d", "d2h")]
        sizes = self.config["collectives"]
        for smaller in sizes["smaller"]:
            found.append(Measurement("%s_%d" % (ALL_REDUCE, smaller), [self._all_reduce(smaller)]))
        found.append(Measurement(ALL_REDUCE, [self._all_reduce(self._fitting(sizes["largest"]))]))
        # Last, since it is slow and scatters: it takes the time that is left.
        found.append(Measurement("h2d_pageable", [self._copy("h2d", size, pinned=False)]))
        return found

    def results(self) -> Dict[str, str]:
        """Fixed products in each precision, and a sum; on a processor smaller ones, some precisions being slow."""
        products = self.config["products"]
        most = FIXED[self.device.type]
        size = min(most, products["m"], products["n"], products["k"]) // 16 * 16 or 16  # fp8 takes multiples of 16
        names = [name for name in products["precisions"] if self._executes(name)]
        return fixed_results(self.device, names, size)

    def _executes(self, name: str) -> bool:
        try:
            self._proven(name, lambda: lambda: None)
        except RuntimeError:  # also where this torch has no product in that precision
            return False
        return True

    def describe(self) -> Dict[str, Any]:
        """The sizes that are compared with those of a claim."""
        products = self.config["products"]
        conditions = {
            "shape": "%d x %d x %d" % (products["m"], products["n"], products["k"]),
            "copy_bytes": self._fitting(self.config["copies"]["bytes"]),
            "largest_collective": self._fitting(self.config["collectives"]["largest"]),
        }
        return {"conditions": conditions}

    def _product(self, name: str, shape: List[int], transposed: bool) -> Operation:
        probe = self._product(name, [PROBE] * 3, transposed) if min(shape) > PROBE else None
        measured = {"operation": PRODUCT, "precision": name, "shape": list(shape), "transposed": transposed}
        m, n, k = shape
        return Operation(
            measured, lambda: self._proven(name, lambda: product(self.device, name, m, n, k, transposed)), probe
        )

    def _mamf(self, name: str, shape: List[int]) -> Operation:
        m, n, k = shape
        size, usual = self._fitting(CLEARED_BYTES[self.device.type]), self._product(name, shape, True)
        return Operation(
            dict(usual.measured, cleared_bytes=size),
            lambda: self._proven(name, lambda: mamf_product(self.device, name, m, n, k, size)),
            usual.probe,
        )

    def _proven(self, name: str, make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
        """What starts a product, where products run in that precision."""
        if name in PROVEN:
            precisions.set_switches(name)
            executed = precisions.prove(self.device, name)["executed"]
            if executed != name:
                raise RuntimeError("a product in %s ran in %s" % (name, executed))
        return make()

    def _copy(self, way: str, size: int, pinned: bool) -> Operation:
        size = self._fitting(size)
        measured = {"operation": way, "bytes": size, **({} if way == "copy" else {"pinned": pinned})}
        return Operation(measured, functools.partial(self._copying, way, size, pinned))

    def _fitting(self, size: int) -> int:
        """The bytes of a copy, or of the largest all-reduce, which are fewer where memory is small."""
        return min(size, self.most) // 4 * 4

    def _copying(self, way: str, size: int, pinned: bool) -> Callable[[], Any]:
        if way != "copy" and self.device.type == "cpu":
            raise RuntimeError("a processor has no memory apart from the host's")
        own = torch.randn(size // 4, device=self.device)
        if way == "copy":
            other = torch.empty_like(own)
            return lambda: other.copy_(own)
        host = torch.empty(size // 4, pin_memory=pinned).copy_(own)
        source, target = (host, own) if way == "h2d" else (own, host)
        return lambda: target.copy_(source, non_blocking=pinned)

    def _all_reduce(self, size: int) -> Operation:
        return Operation({"operation": ALL_REDUCE, "bytes": size}, functools.partial(self._reducing, size))

    def _reducing(self, size: int) -> Callable[[], Any]:
        if self.context.world == 1:
            raise RuntimeError("needs at least two ranks")
        if size > self.most:
            raise RuntimeError("%d bytes are more than 1/%d of the memory of a rank" % (size, MEMORY_SHARE))
        values = torch.randn(size // 4, device=self.device)
        # The sum, although that of sums soon is infinite: NVLink SHARP has no other for fp32 (NCCL, device.h).
        return lambda: dist.all_reduce(values)


def build(context: Context) -> RoofsWorkload:
    """Build the workload; called by flagbench_cases.rank.run."""
    return RoofsWorkload(context)
