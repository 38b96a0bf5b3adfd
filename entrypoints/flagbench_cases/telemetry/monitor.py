"""The interface of a vendor's device monitor, and the registry of monitors by name."""

import importlib
from typing import Any, Dict, List, NamedTuple, Optional, Protocol, Sequence

# A monitor is a module with `create(devices)`. To add a vendor, write one and register it here.
_MODULES = {"mx-smi": "flagbench_cases.telemetry.mxsmi", "nvml": "flagbench_cases.telemetry.nvml"}

NAMES = ("cpu", *sorted(_MODULES))


class MonitorUnavailable(Exception):
    """The monitor does not work on this machine; the text says why, for the record.

    `known`: facts that are known nevertheless, as in `static`, such as `driver_version`.
    """

    def __init__(self, reason: str, **known: Any) -> None:
        super().__init__(reason)
        self.known = known


class Reading(NamedTuple):
    """One sample of all devices, and the errors that occurred.

    A device is a dict with `index` (its number within the run) and, as far as the driver provides them, `power_w`,
    `temperature_c`, `sm_clock_mhz`, `mem_clock_mhz`, `util` (fraction), `mem_used_bytes` and `throttle` (list of
    active reasons). An error is a dict with `device` (index) and `reason`.
    """

    devices: List[Dict[str, Any]]
    errors: List[Dict[str, Any]]


class Monitor(Protocol):
    """A device monitor. Between `open` and `close` no method raises for a faulty device."""

    def open(self) -> None:
        """Find the run's devices. Raises MonitorUnavailable if there is no library, driver or device."""

    def static(self) -> Dict[str, Any]:
        """Facts that do not change during a run, and what uses the devices before it.

        `driver_version` (of the kernel module), `versions` (of other components, by name), and `devices`: dicts with
        `index` and, as far as the driver provides them, `name`, `uuid`, `memory_total_bytes`, `power_limit_w`,
        `sm_clock_max_mhz`, `mem_clock_max_mhz`, `mig`, `ecc`, `persistence`, `mem_used_bytes` and `processes` (a list
        of {`pid`, `mem_used_bytes`}).
        """

    def sample(self) -> Reading:
        """Read every device once."""

    def close(self) -> None:
        """Release the library; safe after a failed `open`."""


class NoDevices:
    """The monitor of a machine without accelerators, or with devices that cannot be monitored."""

    def open(self) -> None:
        pass

    def static(self) -> Dict[str, Any]:
        return {"devices": []}

    def sample(self) -> Reading:
        return Reading([], [])

    def close(self) -> None:
        pass


def create(name: str, devices: Optional[Sequence[int]] = None) -> Monitor:
    """The monitor called `name` (one of NAMES), not yet open, for the run's `devices` (None: all visible ones)."""
    if name == "cpu":
        return NoDevices()
    monitor: Monitor = importlib.import_module(_MODULES[name]).create(devices)
    return monitor
