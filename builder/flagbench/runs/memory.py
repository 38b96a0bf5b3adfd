"""Whether the devices have as much memory as a run was measured to use."""

from __future__ import annotations

from dataclasses import dataclass

from flagbench.expect.memory import lacking, measured_memory
from flagbench.machine.devices import this_machine
from flagbench.manifests.model import MeasuredMemory
from flagbench.runs.request import RunRequest


@dataclass(frozen=True)
class MemoryHere:
    """The memory that a run was measured to use, and that of the devices of this machine."""

    request: RunRequest
    measured: MeasuredMemory
    gib: float | None
    """Memory of the smallest device of this machine, GiB; None if no tool reports it."""

    @property
    def shortage(self) -> str | None:
        """How much memory is missing, and what to do; None where it is enough or not known."""
        if self.gib is None or self.measured.gib <= self.gib:
            return None
        return lacking(self.request.case, self.measured, self.gib, self.request.options.ranks)


def memory_here(request: RunRequest) -> MemoryHere | None:
    """The measured memory of a run beside that of this machine's devices, as the vendors' tools report it.

    None on a processor, and where no such run was measured.
    """
    if request.stack.device_kind == "cpu":
        return None
    config = request.configuration
    measured = measured_memory(request.case, config, config["precision"], request.options.ranks)
    if measured is None:
        return None
    return MemoryHere(request, measured, this_machine().memory_gib)
