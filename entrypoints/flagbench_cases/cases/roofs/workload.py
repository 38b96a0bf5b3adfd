"""The roofs case: matrix products, copies and all-reduces of random numbers, without a model and without data."""

from __future__ import annotations

import functools
from typing import Any, Callable

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
"""The size of the buffer that clears the caches before a product. MAMF uses that of `cuda` on every device."""


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

    def measurements(self) -> list[Measurement]:
        """Products, copies, all-reduces."""
        products = self.config["products"]
        shape = [products["m"], products["n"], products["k"]]
        measurements = []
        for name in products["precisions"]:
            measurements.append(Measurement("matmul_" + name, [self._product(name, shape, False)]))
            candidates = [self._product(name, candidate, True) for candidate in products["shapes"]]
            measurements.append(Measurement(f"matmul_{name}_best", [self._product(name, shape, False), *candidates]))
            if name in PUBLISHED_BY_MAMF:
                measurements.append(Measurement(f"{MAMF}_{name}", [self._mamf(name, shape)]))
            published = products.get("mamf_shapes", {}).get(name)
            if published is not None:
                measurements.append(Measurement(f"{MAMF_PUBLISHED}_{name}", [self._mamf(name, published)]))
        size = self.config["copies"]["bytes"]
        measurements.append(Measurement("memory_bandwidth", [self._copy("copy", size, pinned=False)]))
        for way in ("h2d", "d2h"):
            measurements.append(Measurement(way + "_pinned", [self._copy(way, size, pinned=True)]))
        sizes = self.config["collectives"]
        for smaller in sizes["smaller"]:
            measurements.append(Measurement(f"{ALL_REDUCE}_{smaller}", [self._all_reduce(smaller)]))
        measurements.append(Measurement(ALL_REDUCE, [self._all_reduce(self._limit_bytes(sizes["largest"]))]))
        # Last, since it is slow and scatters: it takes the time that is left.
        measurements.append(Measurement("h2d_pageable", [self._copy("h2d", size, pinned=False)]))
        return measurements

    def results(self) -> dict[str, str]:
        """Fixed products in each precision, and a sum; on a processor smaller ones, some precisions being slow."""
        products = self.config["products"]
        most = FIXED[self.device.type]
        size = min(most, products["m"], products["n"], products["k"]) // 16 * 16 or 16  # fp8 takes multiples of 16
        names = [name for name in products["precisions"] if self._executes(name)]
        return fixed_results(self.device, names, size)

    def _executes(self, name: str) -> bool:
        try:
            self._prepare_in_precision(name, lambda: lambda: None)
        except RuntimeError:  # also where this torch has no product in that precision
            return False
        return True

    def describe(self) -> dict[str, Any]:
        """The sizes that are compared with those of a claim."""
        products = self.config["products"]
        conditions = {
            "shape": f"{products['m']} x {products['n']} x {products['k']}",
            "copy_bytes": self._limit_bytes(self.config["copies"]["bytes"]),
            "largest_collective": self._limit_bytes(self.config["collectives"]["largest"]),
        }
        return {"conditions": conditions}

    def _product(self, name: str, shape: list[int], transposed: bool) -> Operation:
        probe = None
        if min(shape) > PROBE:
            probe = self._product(name, [PROBE] * 3, transposed)
        measured = {"operation": PRODUCT, "precision": name, "shape": list(shape), "transposed": transposed}
        m, n, k = shape
        return Operation(
            measured,
            lambda: self._prepare_in_precision(name, lambda: product(self.device, name, m, n, k, transposed)),
            probe,
        )

    def _mamf(self, name: str, shape: list[int]) -> Operation:
        m, n, k = shape
        size, usual = self._limit_bytes(CLEARED_BYTES[self.device.type]), self._product(name, shape, True)
        return Operation(
            dict(usual.measured, cleared_bytes=size),
            lambda: self._prepare_in_precision(name, lambda: mamf_product(self.device, name, m, n, k, size)),
            usual.probe,
        )

    def _prepare_in_precision(self, name: str, make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
        """The function that starts a product. Raises RuntimeError if products do not run in that precision."""
        if name in PROVEN:
            precisions.set_switches(name)
            executed = precisions.prove(self.device, name)["executed"]
            if executed != name:
                raise RuntimeError(f"a product in {name} ran in {executed}")
        return make()

    def _copy(self, way: str, size: int, pinned: bool) -> Operation:
        size = self._limit_bytes(size)
        measured = {"operation": way, "bytes": size}
        if way != "copy":
            measured["pinned"] = pinned
        return Operation(measured, functools.partial(self._prepare_copy, way, size, pinned))

    def _limit_bytes(self, size: int) -> int:
        """The bytes of a copy, or of the largest all-reduce, which are fewer where memory is small."""
        return min(size, self.most) // 4 * 4

    def _prepare_copy(self, way: str, size: int, pinned: bool) -> Callable[[], Any]:
        if way != "copy" and self.device.type == "cpu":
            raise RuntimeError("a processor has no memory apart from the host's")
        numbers = torch.randn(size // 4, device=self.device)
        if way == "copy":
            copy = torch.empty_like(numbers)
            return lambda: copy.copy_(numbers)
        host = torch.empty(size // 4, pin_memory=pinned).copy_(numbers)
        if way == "h2d":
            return lambda: numbers.copy_(host, non_blocking=pinned)
        return lambda: host.copy_(numbers, non_blocking=pinned)

    def _all_reduce(self, size: int) -> Operation:
        return Operation({"operation": ALL_REDUCE, "bytes": size}, functools.partial(self._prepare_all_reduce, size))

    def _prepare_all_reduce(self, size: int) -> Callable[[], Any]:
        if self.context.world == 1:
            raise RuntimeError("needs at least two ranks")
        if size > self.most:
            raise RuntimeError(f"{size} bytes are more than 1/{MEMORY_SHARE} of the memory of a rank")
        values = torch.randn(size // 4, device=self.device)
        # The sum, although that of sums soon is infinite: NVLink SHARP has no other for fp32 (NCCL, device.h).
        return lambda: dist.all_reduce(values)


def build(context: Context) -> RoofsWorkload:
    """Build the workload; called by flagbench_cases.rank.run."""
    return RoofsWorkload(context)
