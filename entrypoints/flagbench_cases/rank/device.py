"""The device of a rank behind a small interface: the CPU, or any device available as torch.cuda."""

from __future__ import annotations

import resource
from typing import Any

import torch

from flagbench_cases.rank.stopwatch import CudaClock, HostClock
from flagbench_cases.shared import system


class CpuDevice:
    """The CPU. It works synchronously, so there is nothing to wait for."""

    kind = "cpu"
    backend = "gloo"

    def __init__(self, local_rank: int) -> None:
        self.torch = torch.device("cpu")
        self.clock = HostClock()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def describe(self, index: int) -> dict[str, Any]:
        """Name and memory (bytes) of the host."""
        return {"index": index, "name": system.processor_name(), "memory_bytes": system.memory_bytes()}

    def reset_peak(self) -> None:
        """Nothing: the kernel's peak of a process cannot be reset."""

    def allocator_peak(self) -> int | None:
        """None: there is no device allocator."""
        return None

    def memory_peak(self) -> int:
        """Peak resident set size of this rank, bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class CudaDevice:
    """A CUDA device, or one of another vendor whose torch exposes it as torch.cuda."""

    kind = "cuda"
    backend = "nccl"

    def __init__(self, local_rank: int) -> None:
        torch.cuda.set_device(local_rank)
        self.torch = torch.device("cuda", local_rank)
        self.clock = CudaClock()
        self._used = 0

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        torch.cuda.synchronize(self.torch)

    def describe(self, index: int) -> dict[str, Any]:
        """Name and memory (bytes) as reported by the driver."""
        properties = torch.cuda.get_device_properties(self.torch)
        return {"index": index, "name": properties.name, "memory_bytes": properties.total_memory}

    def reset_peak(self) -> None:
        """Forget the peaks so far, and give back what the allocator keeps of them."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.torch)
        self._used = 0

    def allocator_peak(self) -> int | None:
        """Peak sum of live tensors, bytes."""
        return int(torch.cuda.max_memory_allocated(self.torch))

    def memory_peak(self) -> int:
        """Used memory of the device including its context and other tenants, bytes: the maximum of all calls so far.

        Read at the end of training, and before a case empties the cache of torch's allocator. The allocator does not
        release memory by itself, so this is the peak.
        """
        free, total = torch.cuda.mem_get_info(self.torch)
        self._used = max(self._used, int(total - free))
        return self._used


def open_device(stack: dict[str, Any], local_rank: int) -> Any:
    """The device of this rank."""
    if stack["device"]["kind"] == "cpu":
        return CpuDevice(local_rank)
    return CudaDevice(local_rank)
