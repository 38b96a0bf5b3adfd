"""Measures the roofs of a device, the rates that it reaches without a model: of matmuls, copies and all-reduces.

The tensors are random numbers. The loop in flagbench_cases.rank repeats and times the operations that RoofsWorkload
returns.
"""

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

MEMORY_DIVISOR = 8
"""No copy or all-reduce is larger than this fraction (1/8) of a rank's memory, of its device and of its host."""
PROBE_SIZE = 1024
"""Rows and columns of a matmul that takes little time, but more time than its launch on a device."""
FIXED_SIZE = {"cuda": 4096, "cpu": 512}
"""Most rows and columns of the matmul that is compared bit by bit, by type of device: enough to use all of it."""
PROVABLE = ("fp32", "tf32", "fp16", "bf16")
"""Precisions that the error of a matmul can prove."""
PUBLISHED_BY_MAMF = ("bf16", "fp8")
"""Precisions for which MAMF (maximum achievable matmul FLOPS, by Stas Bekman) has published rates of devices."""
CLEARED_BYTES = {"cpu": 2**24, "cuda": 2**28}
"""The size of the buffer that clears the caches before a matmul. MAMF uses that of `cuda` on every device."""
FLOAT_BYTES = 4
"""The size of an element in copies and all-reduces, which are of fp32."""
FP8_MULTIPLE = 16
"""The sizes of an fp8 matmul must be multiples of this number."""
COPY = "copy"
"""A copy within the memory of the device."""
TO_DEVICE = "h2d"
"""A copy from the host to the device."""
TO_HOST = "d2h"
"""A copy from the device to the host."""


class RoofsWorkload(MeasureWorkload):
    """Every rank measures its device, all at the same time, and the all-reduces of all ranks."""

    def __init__(self, context: Context) -> None:
        if context.data is not None or context.weights is not None:
            raise DataError("roofs measures without data and weights", "omit --data and --weights")
        self.context = context
        self.config = context.config
        self.device = context.device.torch_device
        # A copy from the host needs as much memory there, which the ranks of a node share.
        host_bytes = system.usable_memory_bytes() // self.config["gpus"]
        device_bytes = context.device.describe(context.local_rank)["memory_bytes"]
        max_bytes = torch.tensor(min(device_bytes, host_bytes) // MEMORY_DIVISOR, device=self.device)
        if context.world > 1:
            # All ranks use the smallest limit, since an all-reduce of different sizes hangs. This is also the first
            # collective, which starts NCCL and is slow, so that no measured one is.
            dist.all_reduce(max_bytes, op=dist.ReduceOp.MIN)
        self.max_bytes = int(max_bytes)

    def measurements(self) -> list[Measurement]:
        """Return the measurements of matmuls, copies and all-reduces."""
        measurements = []
        for precision in self.config["products"]["precisions"]:
            measurements += self._product_measurements(precision)
        copy_bytes = self.config["copies"]["bytes"]
        measurements.append(Measurement("memory_bandwidth", [self._copy(COPY, copy_bytes, pinned=False)]))
        for direction in (TO_DEVICE, TO_HOST):
            measurements.append(Measurement(direction + "_pinned", [self._copy(direction, copy_bytes, pinned=True)]))
        sizes = self.config["collectives"]
        for smaller in sizes["smaller"]:
            measurements.append(Measurement(f"{ALL_REDUCE}_{smaller}", [self._all_reduce(smaller)]))
        measurements.append(Measurement(ALL_REDUCE, [self._all_reduce(self._limit_bytes(sizes["largest"]))]))
        # Last, since it is slow and its times vary: it takes the time that is left.
        measurements.append(Measurement("h2d_pageable", [self._copy(TO_DEVICE, copy_bytes, pinned=False)]))
        return measurements

    def _product_measurements(self, precision: str) -> list[Measurement]:
        """Return the measurements of matmuls in one precision: one shape, the best of several, and MAMF's."""
        products = self.config["products"]
        shape = [products["m"], products["n"], products["k"]]
        candidates = [self._product(precision, shape, False)]
        for candidate in products["shapes"]:
            candidates.append(self._product(precision, candidate, True))
        measurements = [
            Measurement("matmul_" + precision, [self._product(precision, shape, False)]),
            Measurement(f"matmul_{precision}_best", candidates),
        ]
        if precision in PUBLISHED_BY_MAMF:
            measurements.append(Measurement(f"{MAMF}_{precision}", [self._mamf(precision, shape)]))
        published_shape = products.get("mamf_shapes", {}).get(precision)
        if published_shape is not None:
            measurements.append(
                Measurement(f"{MAMF_PUBLISHED}_{precision}", [self._mamf(precision, published_shape)])
            )
        return measurements

    def results(self) -> dict[str, str]:
        """Return digests of fixed matmuls in each precision, and of a sum.

        The matmuls are smaller on a CPU, where some precisions are slow.
        """
        products = self.config["products"]
        smallest = min(FIXED_SIZE[self.device.type], products["m"], products["n"], products["k"])
        size = max(smallest // FP8_MULTIPLE, 1) * FP8_MULTIPLE
        precisions_to_run = [name for name in products["precisions"] if self._executes(name)]
        return fixed_results(self.device, precisions_to_run, size)

    def _executes(self, precision: str) -> bool:
        """Return whether matmuls run in this precision."""
        try:
            self._prepare_in_precision(precision, lambda: lambda: None)
        except RuntimeError:  # also if this torch has no matmul in that precision
            return False
        return True

    def describe(self) -> dict[str, Any]:
        """Return the sizes, which are compared with those of a published result."""
        products = self.config["products"]
        conditions = {
            "shape": f"{products['m']} x {products['n']} x {products['k']}",
            "copy_bytes": self._limit_bytes(self.config["copies"]["bytes"]),
            "largest_collective": self._limit_bytes(self.config["collectives"]["largest"]),
        }
        return {"conditions": conditions}

    def _product(self, precision: str, shape: list[int], transposed: bool) -> Operation:
        """Return the matmul of random matrices [m, k] and [k, n]; `shape` is [m, n, k].

        `transposed`: the second matrix is stored as [n, k], as the weight of a linear layer is.
        """
        m, n, k = shape
        trial = None
        if min(shape) > PROBE_SIZE:
            trial = self._product(precision, [PROBE_SIZE] * 3, transposed)

        def make() -> Callable[[], Any]:
            return product(self.device, precision, m, n, k, transposed)

        return Operation(
            measured={"operation": PRODUCT, "precision": precision, "shape": list(shape), "transposed": transposed},
            prepare=lambda: self._prepare_in_precision(precision, make),
            trial=trial,
        )

    def _mamf(self, precision: str, shape: list[int]) -> Operation:
        """Return a transposed matmul as MAMF measures it: the caches are cleared before each."""
        m, n, k = shape
        cleared_bytes = self._limit_bytes(CLEARED_BYTES[self.device.type])
        transposed = self._product(precision, shape, True)

        def make() -> Callable[[], Any]:
            return mamf_product(self.device, precision, m, n, k, cleared_bytes)

        return Operation(
            measured=dict(transposed.measured, cleared_bytes=cleared_bytes),
            prepare=lambda: self._prepare_in_precision(precision, make),
            trial=transposed.trial,
        )

    def _prepare_in_precision(self, precision: str, make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
        """Set torch's switches for the precision, measure that matmuls run in it, and return what `make` returns.

        Raises RuntimeError if matmuls do not run in the precision.
        """
        if precision in PROVABLE:
            precisions.set_switches(precision)
            executed = precisions.measure_precision(self.device, precision)["executed"]
            if executed != precision:
                raise RuntimeError(f"a product in {precision} ran in {executed}")
        return make()

    def _copy(self, direction: str, size: int, pinned: bool) -> Operation:
        """Return a copy of `size` bytes at most; `direction` is COPY, TO_DEVICE or TO_HOST."""
        size = self._limit_bytes(size)
        measured = {"operation": direction, "bytes": size}
        if direction != COPY:
            measured["pinned"] = pinned
        return Operation(measured, functools.partial(self._prepare_copy, direction, size, pinned))

    def _limit_bytes(self, size: int) -> int:
        """Return the bytes of a copy, or of the largest all-reduce: fewer than `size` if memory is small."""
        return min(size, self.max_bytes) // FLOAT_BYTES * FLOAT_BYTES

    def _prepare_copy(self, direction: str, size: int, pinned: bool) -> Callable[[], Any]:
        """Allocate the tensors of a copy; returns the function that starts it.

        Raises RuntimeError for a copy between host and device on a CPU.
        """
        if direction != COPY and self.device.type == "cpu":
            raise RuntimeError("a processor has no memory apart from the host's")
        on_device = torch.randn(size // FLOAT_BYTES, device=self.device)
        if direction == COPY:
            copy = torch.empty_like(on_device)
            return lambda: copy.copy_(on_device)
        on_host = torch.empty(size // FLOAT_BYTES, pin_memory=pinned).copy_(on_device)
        if direction == TO_DEVICE:
            return lambda: on_device.copy_(on_host, non_blocking=pinned)
        return lambda: on_host.copy_(on_device, non_blocking=pinned)

    def _all_reduce(self, size: int) -> Operation:
        """Return an all-reduce of `size` bytes over all ranks."""
        return Operation({"operation": ALL_REDUCE, "bytes": size}, functools.partial(self._prepare_all_reduce, size))

    def _prepare_all_reduce(self, size: int) -> Callable[[], Any]:
        """Allocate the tensor of an all-reduce; returns the function that starts it.

        Raises RuntimeError for a single rank, or if the tensor is too large.
        """
        if self.context.world == 1:
            raise RuntimeError("needs at least two ranks")
        if size > self.max_bytes:
            raise RuntimeError(f"{size} bytes are more than 1/{MEMORY_DIVISOR} of the memory of a rank")
        values = torch.randn(size // FLOAT_BYTES, device=self.device)
        # A sum, which NVLink SHARP can compute for fp32, unlike other operations (NCCL, device.h). The values become
        # infinite after some repeats, which does not change the time.
        return lambda: dist.all_reduce(values)


def build(context: Context) -> RoofsWorkload:
    """Build the workload; called by flagbench_cases.rank.run."""
    return RoofsWorkload(context)
