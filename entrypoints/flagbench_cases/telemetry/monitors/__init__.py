"""Monitors of devices by name: a module here for each vendor's tool or library, with `create(devices)`."""

import importlib
import pkgutil
from typing import Any, Dict, List, NamedTuple, Optional, Protocol, Sequence, Union

NAMES = ("cpu", *sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


class MonitorUnavailable(Exception):
    """The monitor does not work on this machine; the text says why, for the record.

    `known`: facts that are known nevertheless, as in `static`, such as `driver_version`.
    """

    def __init__(self, reason: str, **known: Any) -> None:
        super().__init__(reason)
        self.known = known


class MonitorSample(NamedTuple):
    """One sample of all devices, and the errors that occurred.

    A device is a dict with `index` (its number within the run) and, as far as the driver provides them, `power_w`,
    `energy_mj` (mJ, counted by the device), `temperature_c`, `sm_clock_mhz`, `mem_clock_mhz`, `util` (fraction),
    `mem_used_bytes`, `pcie_generation`, `pcie_width` (lanes) and `throttle` (list of active reasons). An error is a
    dict with `device` (index) and `reason`.
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

    def sample(self) -> MonitorSample:
        """Read every device once."""

    def close(self) -> None:
        """Release the library; safe after a failed `open`."""


class NoDevices:
    """The monitor of a machine without accelerators, or with devices that cannot be monitored."""

    def open(self) -> None:
        pass

    def static(self) -> Dict[str, Any]:
        return {"devices": []}

    def sample(self) -> MonitorSample:
        return MonitorSample([], [])

    def close(self) -> None:
        pass


def create(name: str, devices: Optional[Sequence[int]] = None) -> Monitor:
    """The monitor called `name` (one of NAMES), not yet open, for the run's `devices` (None: all visible ones)."""
    if name == "cpu":
        return NoDevices()
    module = importlib.import_module("%s.%s" % (__name__, name.replace("-", "_")))
    monitor: Monitor = module.create(devices)
    return monitor


def run_devices(
    variable: str, value: Optional[str], uuids: Sequence[str], wanted: Optional[Sequence[int]]
) -> List[Union[int, str]]:
    """The physical devices that a run numbers 0, 1 ..., of which it uses `wanted` (None: all); see `visible_devices`.

    Raises MonitorUnavailable if the variable hides them.
    """
    shown = visible_devices(value, uuids)
    if not shown:
        raise MonitorUnavailable("%s=%s selects none of %d devices" % (variable, value, len(uuids)))
    chosen = range(len(shown)) if wanted is None else wanted
    missing = [index for index in chosen if index >= len(shown)]
    if missing:
        raise MonitorUnavailable("device %d is not among the %d that are visible" % (missing[0], len(shown)))
    return [shown[index] for index in chosen]


def visible_devices(value: Optional[str], uuids: Sequence[str]) -> List[Union[int, str]]:
    """The visible physical devices, in the order in which a run numbers them.

    `value`: the variable (None: unset); `uuids`: the UUIDs of all physical devices, by physical index. The result has
    physical indices, and the unchanged UUIDs of MIG instances. As in CUDA, a UUID may be abbreviated to a unique
    prefix, the list ends before its first invalid entry, and with duplicates no device is visible (CUDA C++
    Programming Guide, "CUDA Environment Variables").
    """
    if value is None:
        return list(range(len(uuids)))
    found: List[Union[int, str]] = []
    for token in value.split(","):
        device = _device(token.strip(), uuids)
        if device is None:
            break
        found.append(device)
    return found if len(set(found)) == len(found) else []


def _device(token: str, uuids: Sequence[str]) -> Optional[Union[int, str]]:
    if token.startswith("MIG-"):
        return token
    if token.startswith("GPU-"):
        matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(token)]
        return matches[0] if len(matches) == 1 else None
    if token.isdigit() and int(token) < len(uuids):
        return int(token)
    return None
