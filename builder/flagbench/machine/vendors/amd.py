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
PLACES = ("/opt/rocm/bin",)
"""Where the tool is installed, often without being on PATH."""


def find(search_path: str) -> Listing:
    """The devices that `amd-smi static` lists."""
    answer = _static(search_path)
    if answer.ending is Ending.MISSING:
        return Listing(Ending.MISSING)
    devices = []
    for fields in amd_smi.parse(answer.text):
        memory = fields.get("memory_total_bytes")
        if memory is not None:
            memory /= 2**30
        devices.append(LocalDevice(fields.get("name", "AMD"), memory, fields.get("uuid", str(fields["index"]))))
    return listing_of(TOOL, answer, devices)


def usage(search_path: str) -> Usage:
    """Empty: amd-smi is not asked for it."""
    return Usage()


def architecture(search_path: str) -> str | None:
    """The first device's architecture by its name in LLVM, such as gfx942."""
    for fields in amd_smi.parse(_static(search_path).text):
        if "architecture" in fields:
            return str(fields["architecture"])
    return None


def _static(search_path: str) -> Answer:
    tool = shutil.which(TOOL, path=os.pathsep.join((search_path, *PLACES)))
    if tool is None:
        return Answer(Ending.MISSING)
    return ask_tool(tool, "static", "--asic", "--vram", "--json")
