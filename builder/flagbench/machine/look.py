"""Collects the facts about this machine before a run: its accelerators, their settings, and what else runs on it.

`flagbench doctor`, `reproduce` and `accept` use them; diagnosis.py and the checks of an acceptance judge them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from flagbench.machine.devices import Machine, read_usage, this_machine
from flagbench.machine.health import MachineHealth, look_at_health
from flagbench.machine.vendors import DeviceState, Usage
from flagbench.system.queries import Ending

MOST_PROGRAMS = 5
"""Most programs on the devices that are named: enough to find who uses them, on one line of a terminal."""


@dataclass(frozen=True)
class MachineFacts:
    """The facts about a machine. States and programs are empty if the vendor's tool does not report them."""

    accelerators: Machine
    states: tuple[DeviceState, ...]
    """The settings of the devices that a run would use."""
    programs: tuple[str, ...]
    """The first programs on the devices that a run would use, such as `python (pid 4711)`; at most MOST_PROGRAMS."""
    processors: int
    """The number of logical processors that this process may use."""
    load: float
    """The load average of the last minute, per processor."""
    health: MachineHealth | None = None
    """The health of the devices that a run would use; None if it was not read."""

    @property
    def drivers(self) -> list[str]:
        """The versions of the devices' driver, each once, sorted."""
        return sorted({state.driver for state in self.states if state.driver})

    @property
    def partitions(self) -> list[str]:
        """A sentence for each device of which only a part can be used, or which is divided into parts (MIG)."""
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
        """A sentence for each device whose power limit is below its default."""
        return [state.power_cap for state in self.states if state.power_cap]


def look_at_machine(gpus: int | None = None, *, health: bool = False) -> MachineFacts:
    """Collect the facts. Asks the vendors' tools, each for TOOL_SECONDS at most; never raises.

    Args:
        gpus: how many of the visible devices a run would use; all by default.
        health: whether to read the health of the devices, too.
    """
    accelerators = this_machine()
    usage = Usage()
    if accelerators.tool is not Ending.NO_ANSWER:  # A tool that hung once would hang in each further query.
        usage = read_usage()
    device_health = None
    if health:
        device_health = look_at_health(accelerators, gpus)
    states = usage.devices[:gpus]
    uuids = {state.uuid for state in states}
    # A program on several devices is named once.
    programs = dict.fromkeys(program.name for program in usage.programs if program.uuid in uuids)
    processors = len(os.sched_getaffinity(0))
    return MachineFacts(
        accelerators=accelerators,
        states=states,
        programs=tuple(programs)[:MOST_PROGRAMS],
        processors=processors,
        load=os.getloadavg()[0] / processors,
        health=device_health,
    )
