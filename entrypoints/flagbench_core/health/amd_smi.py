"""Reads the health of AMD devices from `amd-smi metric --ecc --pcie --json`, as ROCm/amdsmi prints it since 6.3.

Its counts of retired pages, of XGMI and of lowered clocks are not read: their layouts differ between releases.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from flagbench_core import amd_smi
from flagbench_core.health.reading import NOT_KNOWN, NOT_SUPPORTED, READ, DeviceHealth
from flagbench_core.health.tools import ToolError, run_tool

TOOL, PLACES = "amd-smi", ("/opt/rocm/bin",)
_COUNTS: Mapping[str, Tuple[str, str]] = {
    "ecc_corrected": ("ecc", "total_correctable_count"),
    "ecc_uncorrected": ("ecc", "total_uncorrectable_count"),
    "pcie_width": ("pcie", "width"),
    "pcie_replays": ("pcie", "replay_count"),
}
"""Fields by their place in what is printed of a device."""


class AmdSmiReader:
    """The devices that amd-smi lists."""

    source = TOOL

    def open(self) -> List[DeviceHealth]:
        """Each device, read at once. Raises ToolError."""
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
            values, refusals = metrics.get(entry["index"], ({}, dict.fromkeys(READ, NOT_KNOWN)))
            identity = {"index": entry["index"], "uuid": entry.get("uuid"), "name": entry.get("name")}
            devices.append(DeviceHealth(time=when, refusals=refusals, **identity, **values))
        return devices

    def read(self, device: DeviceHealth) -> DeviceHealth:
        """The device: it was read when it was listed."""
        return device


def parse(text: str) -> Dict[int, Tuple[Dict[str, Any], Dict[str, str]]]:
    """By the tool's number of a device its fields, and the refusals of the others."""
    printed = amd_smi.first_document(text)
    if isinstance(printed, dict):
        printed = printed.get("gpu_data")
    devices = {}
    for entry in printed if isinstance(printed, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("gpu"), int):
            continue
        values: Dict[str, Any] = {}
        refusals = dict.fromkeys(READ, NOT_KNOWN)
        for name, (group, key) in _COUNTS.items():
            section = entry.get(group)
            number = _count(section.get(key)) if isinstance(section, dict) else None
            if number is None:
                refusals[name] = NOT_SUPPORTED  # printed as N/A, as in a virtual machine
            else:
                values[name] = number
                del refusals[name]
        devices[entry["gpu"]] = values, refusals
    return devices


def _count(value: Any) -> Optional[int]:
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None
