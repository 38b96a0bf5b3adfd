"""Whether the devices of a run have the memory that it was measured to take."""

from __future__ import annotations

from dataclasses import dataclass

from flagbench.expect.memory import lacking, measured_memory
from flagbench.machine.devices import this_machine
from flagbench.manifests.model import MeasuredMemory
from flagbench.runs.request import RunRequest


@dataclass(frozen=True)
class MemoryHere:
    """What a run was measured to take, beside the devices of this machine."""

    request: RunRequest
    measured: MeasuredMemory
    gib: float | None
    """Of the device here that has least; None where no tool says it."""

    @property
    def shortage(self) -> str | None:
        """What is lacking, and what to do; None where nothing is known to lack."""
        if self.gib is None or self.measured.gib <= self.gib:
            return None
        return lacking(self.request.case, self.measured, self.gib, self.request.options.ranks)


def memory_here(request: RunRequest) -> MemoryHere | None:
    """What was measured of a run, and the devices of this machine, which the vendors' tools are asked for.

    None on a processor, and where nothing was measured.
    """
    if request.stack.device_kind == "cpu":
        return None
    config = request.chosen
    measured = measured_memory(request.case, config, config["precision"], request.options.ranks)
    if measured is None:
        return None
    return MemoryHere(request, measured, this_machine().memory_gib)
