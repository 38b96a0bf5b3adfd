"""MetaX's accelerators, as mx-smi lists them."""

from __future__ import annotations

import os
import re
import shutil

from flagbench.machine.vendors import Listing, LocalDevice, Usage, ask_tool, listing_of
from flagbench.system.queries import Ending

NAME = "metax"
TOOL = "mx-smi"
PCI_VENDOR = "0x9999"
MONITOR = "mx-smi"
WRITES_XIDS = False
PCI_CLASSES = ("0x03", "0x12")
"""Display controllers and processing accelerators."""
TOOL_FOLDERS = ("/opt/mxdriver/bin", "/opt/maca/bin")
"""Folders in which the tool is installed, often without being on PATH."""
_ROW = (
    r"^\s*GPU\s*#?\d+\s*:?\s+(?P<name>\S[^(\n]*?)"
    r"(?:\s+[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])?(?:\s+(?:Available|Unavailable))?"
    r"\s*\(UUID:\s*(?P<uuid>[^)\s]+)\s*\)\s*$"
)
"""A device in the output of `mx-smi -L`: its number and name, in some versions its PCI address and state, its
UUID."""


def find(search_path: str) -> Listing:
    """List the devices that `mx-smi -L` prints, in the formats of its versions 2.1.12 and 2.2.9."""
    tool = shutil.which(TOOL, path=os.pathsep.join((search_path, *TOOL_FOLDERS)))
    if tool is None:
        return Listing(Ending.MISSING)
    answer = ask_tool(tool, "-L")
    matches = re.finditer(_ROW, answer.text, re.MULTILINE)
    devices = [LocalDevice(match["name"], None, match["uuid"]) for match in matches]
    return listing_of(TOOL, answer, devices)


def usage(search_path: str) -> Usage:
    """Return an empty Usage: it is not known how mx-smi prints settings and programs."""
    return Usage()


def architecture(search_path: str) -> str | None:
    """Return None: it is not known how mx-smi prints an architecture."""
    return None
