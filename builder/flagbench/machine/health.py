"""Reads the health of this machine's devices, and NVIDIA's errors in its kernel log, before and after a run.

A driver of NVIDIA writes an error of a device as an Xid, a line with a numeric code, into the kernel log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flagbench.machine.devices import Machine, visible_uuids
from flagbench.machine.vendors import vendor_of
from flagbench.system.queries import Ending
from flagbench_core.health.kernel_log import KMSG, XidLog, read_xids
from flagbench_core.health.read import read_health
from flagbench_core.health.reading import DeviceHealth


@dataclass(frozen=True)
class MachineHealth:
    """The health of a machine's devices; empty on a machine without accelerators."""

    devices: tuple[DeviceHealth, ...] = ()
    """The health of the devices that a run would use, in the order of their ranks."""
    source: str | None = None
    """The name of the interface that was read: nvml, nvidia-smi or amd-smi."""
    problem: str | None = None
    """Why no device could be read; None if one was."""
    xids: XidLog | None = None
    """The Xid lines of the kernel log, including those from before the run; None if the vendor's driver writes
    none."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types, without those that are None."""
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
    kmsg: str = KMSG,
) -> MachineHealth:
    """Read the health of the devices that a run would use. Never raises.

    Args:
        machine: the accelerators, as `this_machine` found them.
        gpus: how many of the visible devices a run would use; all by default.
        after: the sequence number in the kernel log after which Xid lines count: `xids.last` of an earlier reading.
            None: all lines that the kernel still has.
        kmsg: the path of the kernel log.
    """
    vendor = vendor_of(machine.vendor)
    if vendor is None:
        return MachineHealth()
    xids = None
    if vendor.WRITES_XIDS:
        xids = read_xids(after, kmsg)
    if machine.tool is Ending.NO_ANSWER:  # A driver that let the tool hang would do so again.
        return MachineHealth(problem=machine.problem, xids=xids)
    uuids = visible_uuids([device.uuid for device in machine.devices])[:gpus]
    reading = read_health(vendor.MONITOR, uuids or None)
    return MachineHealth(reading.devices, reading.source, reading.problem, xids)
