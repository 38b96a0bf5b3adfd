"""AMD's accelerators, as amd-smi lists them."""

from __future__ import annotations

import os
import shutil

from flagbench.machine.vendors import Listing, LocalDevice, Usage, ask_tool, listing_of
from flagbench.system.queries import Answer, Ending
from flagbench_core import amd_smi

NAME = "amd"
TOOL = "amd-smi"
PCI_VENDOR = "0x1002"
MONITOR = "amd-smi"
WRITES_XIDS = False
PCI_CLASSES = ("0x0302", "0x0380", "0x12")
"""3D and other display controllers, and processing accelerators. Not 0x0300, VGA controllers: the graphics of a
processor are no accelerator."""
TOOL_FOLDERS = ("/opt/rocm/bin",)
"""Folders in which the tool is installed, often without being on PATH."""


def find(search_path: str) -> Listing:
    """List the devices that `amd-smi static` prints."""
    tool = _find_tool(search_path)
    if tool is None:
        return Listing(Ending.MISSING)
    answer = _static(tool)
    devices = []
    for fields in amd_smi.parse(answer.text):
        memory_gib = None
        if "memory_total_bytes" in fields:
            memory_gib = fields["memory_total_bytes"] / 2**30
        # Versions that print neither a name nor a UUID still number the devices.
        name = fields.get("name", "AMD")
        uuid = fields.get("uuid", str(fields["index"]))
        devices.append(LocalDevice(name, memory_gib, uuid))
    return listing_of(TOOL, answer, devices)


def usage(search_path: str) -> Usage:
    """Return an empty Usage: amd-smi is not asked for settings and programs."""
    return Usage()


def architecture(search_path: str) -> str | None:
    """Read the architecture of the first device by its name in LLVM, such as gfx942."""
    tool = _find_tool(search_path)
    if tool is None:
        return None
    for fields in amd_smi.parse(_static(tool).text):
        if "architecture" in fields:
            return str(fields["architecture"])
    return None


def _find_tool(search_path: str) -> str | None:
    """Find amd-smi on the search path or in TOOL_FOLDERS; None if it is not installed."""
    return shutil.which(TOOL, path=os.pathsep.join((search_path, *TOOL_FOLDERS)))


def _static(tool: str) -> Answer:
    """Run `amd-smi static`, which prints the models and the memory of all devices."""
    return ask_tool(tool, "static", "--asic", "--vram", "--json")
