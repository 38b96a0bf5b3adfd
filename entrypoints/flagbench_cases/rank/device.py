"""The device of a rank behind one small face: cpu, or anything that answers to torch.cuda."""

import os
import platform
import resource
from typing import Any, Dict, Optional

import torch

from flagbench_cases.rank.stopwatch import CudaClock, HostClock


class CpuDevice:
    """The processor as a device: it has no queue, so nothing is ever waited for."""

    kind = "cpu"
    backend = "gloo"

    def __init__(self, local_rank: int) -> None:
        self.torch = torch.device("cpu")
        self.clock = HostClock()

    def synchronize(self) -> None:
        """Nothing runs behind the host's back."""

    def describe(self, index: int) -> Dict[str, Any]:
        """Name and memory: the host's."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {"index": index, "name": processor_name(), "memory_bytes": pages}

    def allocator_peak(self) -> Optional[int]:
        """There is no device allocator."""
        return None

    def memory_peak(self) -> int:
        """Bytes of the largest resident set of this rank."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class CudaDevice:
    """A CUDA device, or one of a vendor whose torch answers to torch.cuda."""

    kind = "cuda"
    backend = "nccl"

    def __init__(self, local_rank: int) -> None:
        torch.cuda.set_device(local_rank)
        self.torch = torch.device("cuda", local_rank)
        self.clock = CudaClock()
        self._used = 0

    def synchronize(self) -> None:
        """Wait until the device has done everything it was given."""
        torch.cuda.synchronize(self.torch)

    def describe(self, index: int) -> Dict[str, Any]:
        """Name and memory as the driver reports them."""
        properties = torch.cuda.get_device_properties(self.torch)
        return {"index": index, "name": properties.name, "memory_bytes": properties.total_memory}

    def allocator_peak(self) -> Optional[int]:
        """Bytes of the largest sum of live tensors."""
        return int(torch.cuda.max_memory_allocated(self.torch))

    def memory_peak(self) -> int:
        """Bytes in use on the device, other tenants and the context included: the most of all calls so far.

        Read at the end of training, and before a case gives back what torch's caching allocator holds: by itself it
        gives nothing back, so that is the peak.
        """
        free, total = torch.cuda.mem_get_info(self.torch)
        self._used = max(self._used, int(total - free))
        return self._used


def processor_name() -> str:
    """The processor's model as the kernel names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def open_device(stack: Dict[str, Any], local_rank: int) -> Any:
    """The device of this rank."""
    return CpuDevice(local_rank) if stack["device"]["kind"] == "cpu" else CudaDevice(local_rank)
