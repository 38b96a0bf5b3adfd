"""What a vendor's monitor offers the sampler, and how one is found by its name."""

import importlib
from typing import Any, Dict, List, NamedTuple, Optional, Protocol, Sequence

# A monitor is one module with `create(devices)`; a vendor is added by writing it and naming it here.
_MODULES = {"mx-smi": "flagbench_cases.telemetry.mxsmi", "nvml": "flagbench_cases.telemetry.nvml"}

NAMES = ("cpu", *sorted(_MODULES))


class MonitorUnavailable(Exception):
    """This machine cannot be monitored that way; the text says why, for the record.

    `known` is what can be said of the machine all the same, as `static` would: a `driver_version` perhaps.
    """

    def __init__(self, reason: str, **known: Any) -> None:
        super().__init__(reason)
        self.known = known


class Reading(NamedTuple):
    """One look at all devices: what they gave, and what went wrong on which of them.

    A device is a dict with `index` (its number within the run) and those of `power_w`, `temperature_c`,
    `sm_clock_mhz`, `mem_clock_mhz`, `util` (fraction), `mem_used_bytes` and `throttle` (list of reasons in
    force) that its driver gives. An error is a dict with `device` (index) and `reason`.
    """

    devices: List[Dict[str, Any]]
    errors: List[Dict[str, Any]]


class Monitor(Protocol):
    """A device monitor. Between `open` and `close` no method raises for a device that misbehaves."""

    def open(self) -> None:
        """Find the run's devices; raise MonitorUnavailable where there is no library, driver or device."""

    def static(self) -> Dict[str, Any]:
        """What does not change in a run, and what occupies the devices before it.

        `driver_version` (of the kernel's module), `versions` (of the other parts, by name), and `devices`: dicts
        with `index` and those of `name`, `uuid`, `memory_total_bytes`, `power_limit_w`, `sm_clock_max_mhz`,
        `mem_clock_max_mhz`, `mig`, `ecc`, `persistence`, `mem_used_bytes`, `processes` (a list of {`pid`,
        `mem_used_bytes`}) that the driver gives.
        """

    def sample(self) -> Reading:
        """Read every device once."""

    def close(self) -> None:
        """Let the library go; safe after a failed `open`."""


class NoDevices:
    """The monitor of a machine with nothing but processors, and of one whose devices cannot be monitored."""

    def open(self) -> None:
        pass

    def static(self) -> Dict[str, Any]:
        return {"devices": []}

    def sample(self) -> Reading:
        return Reading([], [])

    def close(self) -> None:
        pass


def create(name: str, devices: Optional[Sequence[int]] = None) -> Monitor:
    """The monitor called `name` (one of NAMES), not yet open, for the run's `devices` (None: all it sees)."""
    if name == "cpu":
        return NoDevices()
    monitor: Monitor = importlib.import_module(_MODULES[name]).create(devices)
    return monitor
