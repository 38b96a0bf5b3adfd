"""One look at this machine before a run: its accelerators, what they are set to, and what else uses it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from flagbench.machine.devices import Machine, this_machine, usage_now
from flagbench.machine.health import MachineHealth, look_at_health
from flagbench.machine.vendors import DeviceState, Usage
from flagbench.system.queries import Ending

MOST_PROGRAMS = 5
"""Programs on the devices that are named."""


@dataclass(frozen=True)
class MachineFacts:
    """What was found. A vendor's tool that says nothing of states or programs leaves them empty."""

    accelerators: Machine
    states: tuple[DeviceState, ...]
    """Of the devices that a run would use."""
    programs: tuple[str, ...]
    """The first programs on the devices that a run would use: `python (pid 4711)`."""
    processors: int
    """That this process may use."""
    load: float
    """Of the last minute, per processor."""
    health: MachineHealth | None = None
    """Of the devices that a run would use; None where it was not asked for."""

    @property
    def drivers(self) -> list[str]:
        """Versions of the driver, each once."""
        return sorted({state.driver for state in self.states if state.driver})

    @property
    def partitions(self) -> list[str]:
        """Devices of which only a part can be used, and those that are divided into parts, each as a sentence."""
        sentences = []
        for device in self.accelerators.devices:
            if device.partition:
                sentences.append(f"{device.uuid} is a part of a device")
        for state in self.states:
            if state.partitioned:
                sentences.append(f"{state.uuid} is divided into parts")
        return sentences

    @property
    def power_caps(self) -> list[str]:
        """Devices whose power limit was lowered, each as a sentence."""
        return [state.power_cap for state in self.states if state.power_cap]


def look_at_machine(gpus: int | None = None, *, health: bool = False) -> MachineFacts:
    """Look once. Asks the vendors' tools, each for TOOL_SECONDS at most; never raises.

    Args:
        gpus: how many of the visible devices a run would use; all by default.
        health: whether to read the health of the devices, too.
    """
    accelerators = this_machine()
    usage = Usage()
    if accelerators.tool is not Ending.NO_ANSWER:  # a tool that hung once would hang for each further question
        usage = usage_now()
    device_health = None
    if health:
        device_health = look_at_health(accelerators, gpus)
    states = usage.devices[:gpus]
    uuids = {state.uuid for state in states}
    programs = dict.fromkeys(name for uuid, name in usage.processes if uuid in uuids)
    processors = len(os.sched_getaffinity(0))
    return MachineFacts(
        accelerators=accelerators,
        states=states,
        programs=tuple(programs)[:MOST_PROGRAMS],
        processors=processors,
        load=os.getloadavg()[0] / processors,
        health=device_health,
    )
