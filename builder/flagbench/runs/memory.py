"""Whether the devices of a run have the memory that it was measured to take."""

from __future__ import annotations

from dataclasses import dataclass

from flagbench.expect.memory import lacking, measured_memory
from flagbench.machine.devices import this_machine
from flagbench.manifests.model import Case, MeasuredMemory
from flagbench.manifests.settings import with_settings
from flagbench.runs.request import RunOptions, RunRequest, read_setting


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


def memory_of_run(options: RunOptions, case: Case) -> MeasuredMemory | None:
    """What was measured of a run with these options; None where nothing was. Raises as `check_options`."""
    settings = dict(read_setting(setting, case) for setting in options.set_)
    config = with_settings(case, options.preset, settings)
    precision = options.precision or case.default_precision
    return measured_memory(case, config, precision, options.ranks)


def memory_here(request: RunRequest) -> MemoryHere | None:
    """The same of a run on this machine; None on a processor. Asks the vendors' tools for the devices."""
    if request.stack.device_kind == "cpu":
        return None
    measured = memory_of_run(request.options, request.case)
    if measured is None:
        return None
    return MemoryHere(request, measured, this_machine().memory_gib)
