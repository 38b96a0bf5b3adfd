"""The health of this machine's devices, and NVIDIA's errors in its kernel log, as facts of before and after a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flagbench.machine.devices import Machine, visible_uuids
from flagbench.machine.vendors import vendor_of
from flagbench.system.queries import Ending
from flagbench_core.health.kernel_log import KMSG, XidLog, read_xids
from flagbench_core.health.read import READ_SECONDS, read_health
from flagbench_core.health.reading import DeviceHealth


@dataclass(frozen=True)
class MachineHealth:
    """What was read; empty on a machine without accelerators."""

    devices: tuple[DeviceHealth, ...] = ()
    """Those that a run would use, in its order."""
    source: str | None = None
    """What was asked: nvml, nvidia-smi or amd-smi."""
    problem: str | None = None
    """Why no device was read."""
    xids: XidLog | None = None
    """The kernel log, with what it has of before, too; None where the vendor's driver writes no Xid."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        values: dict[str, Any] = {"devices": [device.to_dict() for device in self.devices]}
        if self.source is not None:
            values["source"] = self.source
        if self.problem is not None:
            values["problem"] = self.problem
        if self.xids is not None:
            values["xids"] = self.xids.to_dict()
        return values


def look_at_health(
    machine: Machine,
    gpus: int | None = None,
    after: int | None = None,
    seconds: float = READ_SECONDS,
    kmsg: str = KMSG,
) -> MachineHealth:
    """Read the health of the devices that a run would use. Never raises.

    Args:
        machine: its accelerators, as `this_machine` found them.
        gpus: how many of the visible devices a run would use; all by default.
        after: the sequence number of the kernel log after which Xid lines count, as `xids.last` of an earlier look;
            None: all that the kernel still has.
        seconds: that reading the devices may take.
        kmsg: the kernel log.
    """
    vendor = vendor_of(machine.vendor)
    if vendor is None:
        return MachineHealth()
    xids = None
    if vendor.WRITES_XIDS:
        xids = read_xids(after, kmsg)
    if machine.tool is Ending.NO_ANSWER:  # what hung once would hang again
        return MachineHealth(problem=machine.problem, xids=xids)
    uuids = visible_uuids([device.uuid for device in machine.devices])[:gpus]
    reading = read_health(vendor.MONITOR, uuids or None, seconds)
    return MachineHealth(reading.devices, reading.source, reading.problem, xids)
