"""Reads the health of AMD devices from `amd-smi metric --ecc --pcie --json`, as ROCm/amdsmi prints it since 6.3.

Its counts of retired pages, of XGMI and of lowered clocks are not read: their layouts differ between releases.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from flagbench_core import amd_smi
from flagbench_core.health.reading import NOT_KNOWN, NOT_SUPPORTED, READ, DeviceHealth
from flagbench_core.health.tools import ToolError, run_tool

TOOL = "amd-smi"
PLACES = ("/opt/rocm/bin",)
"""The folder in which ROCm installs the tool, if it is not on PATH."""
_COUNTS: Mapping[str, Tuple[str, str]] = {
    "ecc_corrected": ("ecc", "total_correctable_count"),
    "ecc_uncorrected": ("ecc", "total_uncorrectable_count"),
    "pcie_width": ("pcie", "width"),
    "pcie_replays": ("pcie", "replay_count"),
}
"""Where the value of each field is in the JSON of a device: its section and its key."""


class _Metrics(NamedTuple):
    """What the tool prints of one device."""

    values: Dict[str, Any]
    """The values of the fields that it prints."""
    refusals: Dict[str, str]
    """Why the other fields have no value."""


class AmdSmiReader:
    """The devices that amd-smi lists."""

    source = TOOL

    def open(self) -> List[DeviceHealth]:
        """List and read all devices, which the tool does in one call. Raises ToolError."""
        tool = shutil.which(TOOL) or shutil.which(TOOL, path=os.pathsep.join(PLACES))
        if tool is None:
            raise ToolError("%s was not found on PATH or in %s" % (TOOL, ", ".join(PLACES)))
        listed = amd_smi.parse(run_tool([tool, "static", "--asic", "--json"]).stdout)
        if not listed:
            raise ToolError("%s lists no device" % TOOL)
        when = round(time.time(), 3)
        metrics = parse(run_tool([tool, "metric", "--ecc", "--pcie", "--json"]).stdout)
        devices = []
        for entry in listed:
            printed = metrics.get(entry["index"], _Metrics({}, dict.fromkeys(READ, NOT_KNOWN)))
            identity = {"index": entry["index"], "uuid": entry.get("uuid"), "name": entry.get("name")}
            devices.append(DeviceHealth(time=when, refusals=printed.refusals, **identity, **printed.values))
        return devices

    def read(self, device: DeviceHealth) -> DeviceHealth:
        """The device: it was read when it was listed."""
        return device


def parse(text: str) -> Dict[int, _Metrics]:
    """The metrics of each device by its number, from the output of the tool."""
    devices = {}
    for entry in amd_smi.list_devices(text):
        values: Dict[str, Any] = {}
        refusals = dict.fromkeys(READ, NOT_KNOWN)
        for name, (section_name, key) in _COUNTS.items():
            section = entry.get(section_name)
            number = None
            if isinstance(section, dict):
                number = _count(section.get(key))
            if number is None:
                refusals[name] = NOT_SUPPORTED  # it is printed as N/A, as in a virtual machine
            else:
                values[name] = number
                del refusals[name]
        devices[entry["gpu"]] = _Metrics(values, refusals)
    return devices


def _count(value: Any) -> Optional[int]:
    """A count as the tool prints it: a number, or an object with `value` and `unit`; None for anything else."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None
