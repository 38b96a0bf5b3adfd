"""Monitors of devices: each module here reads devices with one vendor's tool or library.

A module has a function `create(devices)` that returns a `Monitor`. The name of the monitor in a stack's manifest is
that of the module, with hyphens.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, NamedTuple, Protocol, Sequence

NAMES: Sequence[str] = ("cpu", *sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


class MonitorUnavailable(Exception):
    """The monitor does not work on this machine; the text says why, for the record."""

    def __init__(self, reason: str, **facts: Any) -> None:
        super().__init__(reason)
        self.facts = facts
        """Static facts that are known nevertheless, such as `driver_version`; see Monitor.static."""


class MonitorSample(NamedTuple):
    """One sample of all devices, and the errors that occurred."""

    devices: list[dict[str, Any]]
    """For each device its `index` (the number within the run) and, as far as the driver provides them, `power_w`,
    `energy_mj` (mJ, counted by the device), `temperature_c`, `sm_clock_mhz`, `mem_clock_mhz`, `util` (fraction),
    `mem_used_bytes`, `pcie_generation`, `pcie_width` (lanes) and `throttle` (a list of active reasons)."""
    errors: list[dict[str, Any]]
    """For each error the `device` (its index) and the `reason`."""


class Monitor(Protocol):
    """A device monitor. Between `open` and `close` no method raises for a faulty device."""

    def open(self) -> None:
        """Find the run's devices. Raises MonitorUnavailable if there is no library, driver or device."""

    def static(self) -> dict[str, Any]:
        """Facts that do not change during a run, and the memory and processes on the devices before it.

        The keys are `driver_version` (of the kernel module), `versions` (of other components, by name), and
        `devices`: dicts with `index` and, as far as the driver provides them, `name`, `uuid`, `memory_total_bytes`,
        `power_limit_w`, `sm_clock_max_mhz`, `mem_clock_max_mhz`, `mig`, `ecc`, `persistence`, `mem_used_bytes` and
        `processes` (a list of {`pid`, `mem_used_bytes`}).
        """

    def sample(self) -> MonitorSample:
        """Read every device once."""

    def close(self) -> None:
        """Release the library; safe after a failed `open`."""


class NoDevices:
    """The monitor of a machine without accelerators, or with devices that cannot be monitored."""

    def open(self) -> None:
        pass

    def static(self) -> dict[str, Any]:
        return {"devices": []}

    def sample(self) -> MonitorSample:
        return MonitorSample([], [])

    def close(self) -> None:
        pass


def create(name: str, devices: Sequence[int] | None = None) -> Monitor:
    """The monitor called `name` (one of NAMES), not yet open, for the run's `devices` (None: all visible ones)."""
    if name == "cpu":
        return NoDevices()
    module_name = name.replace("-", "_")
    module = importlib.import_module(f"{__name__}.{module_name}")
    monitor: Monitor = module.create(devices)
    return monitor


def run_devices(
    variable: str, value: str | None, uuids: Sequence[str], requested: Sequence[int] | None
) -> list[int | str]:
    """The physical devices of a run, as `visible_devices` returns them.

    Raises MonitorUnavailable if a device is hidden.

    Args:
        variable: the name of the environment variable that decides which devices are visible, for the error.
        value: its value; None if it is not set.
        uuids: the UUIDs of all physical devices, by physical index.
        requested: the numbers of the run's devices among the visible ones; None for all visible ones.
    """
    visible = visible_devices(value, uuids)
    if not visible:
        raise MonitorUnavailable(f"{variable}={value} selects none of {len(uuids)} devices")
    chosen: Sequence[int] = range(len(visible))
    if requested is not None:
        chosen = requested
    missing = [index for index in chosen if index >= len(visible)]
    if missing:
        raise MonitorUnavailable(f"device {missing[0]} is not among the {len(visible)} that are visible")
    return [visible[index] for index in chosen]


def visible_devices(value: str | None, uuids: Sequence[str]) -> list[int | str]:
    """The visible physical devices, in the order in which a run numbers them.

    The result has the physical index of a device, and the unchanged UUID of a MIG instance. `value` and `uuids` are
    those of `run_devices`. As in CUDA, a UUID may be abbreviated to a unique prefix, the list ends before its first
    invalid entry, and with duplicates no device is visible (CUDA C++ Programming Guide, Environment Variables).
    """
    if value is None:
        return list(range(len(uuids)))
    devices: list[int | str] = []
    for token in value.split(","):
        device = _find_device(token.strip(), uuids)
        if device is None:
            break
        devices.append(device)
    if len(set(devices)) < len(devices):
        return []
    return devices


def _find_device(token: str, uuids: Sequence[str]) -> int | str | None:
    """The device that an entry of the variable names; None if the entry is invalid."""
    if token.startswith("MIG-"):
        return token
    if token.startswith("GPU-"):
        matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(token)]
        if len(matches) != 1:
            return None
        return matches[0]
    if token.isdigit() and int(token) < len(uuids):
        return int(token)
    return None
