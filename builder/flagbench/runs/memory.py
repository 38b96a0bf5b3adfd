"""Compares the memory that a run was measured to use with that of this machine's devices.

`flagbench run` warns of a shortage before it starts (`runs.preview`).
"""

from __future__ import annotations

from dataclasses import dataclass

from flagbench.expect.memory import lacking, measured_memory
from flagbench.machine.devices import this_machine
from flagbench.manifests.model import MeasuredMemory
from flagbench.runs.request import RunRequest


@dataclass(frozen=True)
class MemoryComparison:
    """The memory that a run was measured to use, and that of the devices of this machine."""

    request: RunRequest
    measured: MeasuredMemory
    device_gib: float | None
    """Memory of the smallest device of this machine, GiB; None if no tool reports it."""

    @property
    def shortage(self) -> str | None:
        """A sentence that says how much memory is missing, and what to do; None if it is enough or not known."""
        if self.device_gib is None or self.measured.gib <= self.device_gib:
            return None
        return lacking(self.request.case, self.measured, self.device_gib, self.request.options.ranks)


def compare_memory(request: RunRequest) -> MemoryComparison | None:
    """Compare the measured memory of a run with that of this machine's devices, as the vendors' tools report it.

    Returns None for the cpu stack, and if no such run was measured.
    """
    if request.stack.device_kind == "cpu":
        return None
    config = request.configuration
    measured = measured_memory(request.case, config, config["precision"], request.options.ranks)
    if measured is None:
        return None
    return MemoryComparison(request, measured, this_machine().memory_gib)
