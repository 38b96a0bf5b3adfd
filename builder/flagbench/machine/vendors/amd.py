"""AMD's accelerators, by amd-smi."""

from __future__ import annotations

import os
import shutil
from typing import Any

from flagbench.machine.vendors import LocalDevice, Usage
from flagbench.system.queries import ask
from flagbench_core import amd_smi

PLACES = ("/opt/rocm/bin",)
"""Where the tool is installed, often without being on PATH."""


def find(path: str) -> tuple[tuple[LocalDevice, ...], str | None]:
    """The devices that `amd-smi static` lists."""
    listed, problem = _static(path)
    found = []
    for entry in listed:
        memory = entry.get("memory_total_bytes")
        uuid = entry.get("uuid", str(entry["index"]))
        found.append(LocalDevice(entry.get("name", "AMD"), None if memory is None else memory / 2**30, uuid))
    return tuple(found), problem


def usage(path: str) -> Usage:
    """Nothing: what else runs on the devices is not asked for."""
    return Usage()


def architecture(path: str) -> str | None:
    """As LLVM calls it, such as gfx942."""
    return next((entry["architecture"] for entry in _static(path)[0] if "architecture" in entry), None)


def _static(path: str) -> tuple[list[dict[str, Any]], str | None]:
    tool = shutil.which("amd-smi", path=os.pathsep.join((path, *PLACES)))
    if tool is None:
        return [], None
    text, problem = ask([tool, "static", "--asic", "--vram", "--json"])
    if text is None:
        return [], f"amd-smi {problem}"
    listed = amd_smi.parse(text)
    return listed, "amd-smi printed no device in a known form" if text.strip() and not listed else None
