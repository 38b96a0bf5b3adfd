"""MetaX's accelerators, by mx-smi."""

from __future__ import annotations

import os
import re
import shutil

from flagbench.machine.vendors import LocalDevice, Usage
from flagbench.system.queries import ask

PLACES = ("/opt/mxdriver/bin", "/opt/maca/bin")
"""Where the tool is installed, often without being on PATH."""
_LISTED = (
    r"^\s*GPU\s*#?\d+\s*:?\s+(?P<name>\S[^(\n]*?)"
    r"(?:\s+[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])?(?:\s+(?:Available|Unavailable))?"
    r"\s*\(UUID:\s*(?P<uuid>[^)\s]+)\s*\)\s*$"
)


def find(path: str) -> tuple[tuple[LocalDevice, ...], str | None]:
    """The devices that `mx-smi -L` lists, in the forms of its versions 2.1.12 and 2.2.9."""
    tool = shutil.which("mx-smi", path=os.pathsep.join((path, *PLACES)))
    if tool is None:
        return (), None
    text, problem = ask([tool, "-L"])
    if text is None:
        return (), f"mx-smi {problem}"
    found = tuple(
        LocalDevice(match["name"], None, match["uuid"]) for match in re.finditer(_LISTED, text, re.MULTILINE)
    )
    return found, "mx-smi printed no device in a known form" if text.strip() and not found else None


def usage(path: str) -> Usage:
    """Nothing: how its tool prints it is not known."""
    return Usage()


def architecture(path: str) -> str | None:
    """Nothing, either."""
    return None
