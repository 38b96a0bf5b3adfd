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
    answer = _static(search_path)
    if answer.ending is Ending.MISSING:
        return Listing(Ending.MISSING)
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
    for fields in amd_smi.parse(_static(search_path).text):
        if "architecture" in fields:
            return str(fields["architecture"])
    return None


def _static(search_path: str) -> Answer:
    """Run `amd-smi static`, which prints the models and the memory of all devices."""
    tool = shutil.which(TOOL, path=os.pathsep.join((search_path, *TOOL_FOLDERS)))
    if tool is None:
        return Answer(Ending.MISSING)
    return ask_tool(tool, "static", "--asic", "--vram", "--json")
