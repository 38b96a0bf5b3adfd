"""The device of a rank behind one interface: the CPU, or any device that its torch exposes as torch.cuda.

Cases and engines use a part of the interface (contract.Device); the loops use all of it (RankDevice).
"""

from __future__ import annotations

import resource
from typing import Any, Protocol

import torch

from flagbench_cases.contract import Device
from flagbench_cases.rank.stopwatch import CudaClock, HostClock
from flagbench_cases.shared import system

KIBIBYTE = 1024
"""Bytes; Linux's unit of `ru_maxrss`."""


class RankDevice(Device, Protocol):
    """The device of a rank, as the loops use it."""

    clock: Any
    """The clock for marks on the device's timeline: a HostClock or a CudaClock."""

    def reset_peak(self) -> None:
        """Forget the peaks of memory so far, and release the memory that torch's allocator keeps for reuse."""

    def allocator_peak(self) -> int | None:
        """Return the peak sum of live tensors, bytes; None without a device allocator."""


class CpuDevice:
    """The CPU. It works synchronously, so there is nothing to wait for."""

    kind = "cpu"
    backend = "gloo"

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.clock = HostClock()

    def synchronize(self) -> None:
        """Return at once: the CPU has finished all work."""

    def describe(self, index: int) -> dict[str, Any]:
        """`index`, `name` of the processor, and `memory_bytes` of the host."""
        return {"index": index, "name": system.processor_name(), "memory_bytes": system.memory_bytes()}

    def reset_peak(self) -> None:
        """Do nothing: the kernel's peak of a process cannot be reset."""

    def allocator_peak(self) -> int | None:
        """None: there is no device allocator."""
        return None

    def sample_memory_peak(self) -> int:
        """Peak resident set size of this rank, bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE


class CudaDevice:
    """A CUDA device, or one of another vendor whose torch exposes it as torch.cuda."""

    kind = "cuda"
    backend = "nccl"

    def __init__(self, local_rank: int) -> None:
        torch.cuda.set_device(local_rank)
        self.torch_device = torch.device("cuda", local_rank)
        self.clock = CudaClock()
        self._peak_used = 0
        """The most used memory that `sample_memory_peak` has read so far, bytes."""

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        torch.cuda.synchronize(self.torch_device)

    def describe(self, index: int) -> dict[str, Any]:
        """`index`, and `name` and `memory_bytes` of the device as reported by the driver."""
        properties = torch.cuda.get_device_properties(self.torch_device)
        return {"index": index, "name": properties.name, "memory_bytes": properties.total_memory}

    def reset_peak(self) -> None:
        """Forget the peaks so far, and release the memory that the allocator keeps for reuse."""
        # Memory that the allocator keeps counts as used, so a reading would include the peak that is to be forgotten.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        self._peak_used = 0

    def allocator_peak(self) -> int | None:
        """Peak sum of live tensors, bytes."""
        return int(torch.cuda.max_memory_allocated(self.torch_device))

    def sample_memory_peak(self) -> int:
        """Read the used memory of the device, and return the maximum of all readings so far, bytes.

        It includes the device's context and the memory of other processes. It must be called at the end of training,
        and before a case empties the cache of torch's allocator: the allocator does not release memory by itself, so
        the maximum of these readings is the peak.
        """
        free, total = torch.cuda.mem_get_info(self.torch_device)
        self._peak_used = max(self._peak_used, int(total - free))
        return self._peak_used


def open_device(stack: dict[str, Any], local_rank: int) -> RankDevice:
    """Open the device of this rank: of the kind that the stack names, with the index `local_rank` if it is a GPU."""
    if stack["device"]["kind"] == "cpu":
        return CpuDevice()
    return CudaDevice(local_rank)
