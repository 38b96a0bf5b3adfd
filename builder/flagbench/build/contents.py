"""What is installed in an image: asked of its own Python, in a container without a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flagbench.errors import ExitCode, FlagbenchError

# For any Python from 3.8, with the standard library alone. It imports no package: it reads what installers noted.
_SCRIPT = r"""
import json
from importlib import metadata

def fields(block):
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line and not line[:1].isspace())
    return {key: value.strip() for key, value in pairs}

def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

release = dict(line.split("=", 1) for line in read("/etc/os-release").splitlines() if "=" in line)
blocks = [fields(block) for block in read("/var/lib/dpkg/status").split("\n\n") if block.strip()]
installed = [block for block in blocks if block.get("Status", "").endswith(" installed")]
found = [dist.metadata for dist in metadata.distributions()]
print(json.dumps({
    "distribution": release.get("ID", "").strip("\"'"),
    "release": release.get("VERSION_ID", "").strip("\"'"),
    "debian": [[block["Package"], block["Version"], block.get("Architecture", "")] for block in installed],
    "python": [[each["Name"], each["Version"], each["License-Expression"]] for each in found if each["Name"]],
}))
"""


@dataclass(frozen=True, order=True)
class Package:
    """One installed package."""

    name: str
    version: str
    architecture: str = ""
    """Debian's word for it; empty for a Python package."""
    license: str = ""
    """An SPDX expression, where the package itself gives one."""


@dataclass(frozen=True)
class Contents:
    """Every package of an image, sorted, each once."""

    distribution: str
    """As /etc/os-release names it, such as `debian`."""
    release: str
    debian: tuple[Package, ...]
    python: tuple[Package, ...]


Run = Callable[[str, Sequence[str]], bytes]
"""Runs a command in a container of an image and returns what it printed on stdout."""


def read_contents(image_id: str, interpreter: str, run: Run) -> Contents:
    """The packages of an image. Raises FlagbenchError (build failed) where its Python does not answer."""
    answer = run(image_id, [interpreter, "-I", "-B", "-c", _SCRIPT])
    try:
        return parse_contents(json.loads(answer))
    except (ValueError, KeyError, TypeError) as error:
        raise FlagbenchError(
            f"the image {image_id} does not say what is installed in it: {answer[-200:]!r}",
            remedy=f"look whether {interpreter} runs in it",
            code=ExitCode.BUILD_FAILED,
        ) from error


def parse_contents(answer: dict[str, Any]) -> Contents:
    """The answer of the script in the image."""
    debian = {Package(name, version, architecture) for name, version, architecture in answer["debian"]}
    python = {Package(name, version, license=given or "") for name, version, given in answer["python"]}
    return Contents(answer["distribution"], answer["release"], tuple(sorted(debian)), tuple(sorted(python)))
