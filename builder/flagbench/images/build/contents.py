"""Lists what is installed in an image, with its own Python in a container without a network."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

import msgspec

from flagbench.errors import FlagbenchError
from flagbench.images.engines.client import find_docker
from flagbench_core.exit_codes import ExitCode

# For Python 3.8 and later, with the standard library alone. It imports no package: it reads the installers' metadata.
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
names = ("Package", "Version", "Architecture", "Source")
found = [dist.metadata for dist in metadata.distributions()]
print(json.dumps({
    "distribution": release.get("ID", "").strip("\"'"),
    "release": release.get("VERSION_ID", "").strip("\"'"),
    "debian": [[block.get(name, "") for name in names] for block in installed],
    "python": [
        [each["Name"], each["Version"] or "", each["License-Expression"] or ""] for each in found if each["Name"]
    ],
}))
"""


class DebianPackage(NamedTuple):
    """One installed package of the distribution."""

    name: str
    version: str
    architecture: str
    source: str
    """Where the source package has another name or version: `NAME` or `NAME (VERSION)`; else empty."""


class PythonPackage(NamedTuple):
    """One installed Python package."""

    name: str
    version: str
    license: str
    """An SPDX expression, where the package itself gives one; else empty."""


class Contents(msgspec.Struct):
    """Every package of an image: the answer of the script."""

    distribution: str
    """As /etc/os-release names it, such as `debian`."""
    release: str
    debian: list[DebianPackage]
    python: list[PythonPackage]


def read_contents(image_id: str, interpreter: str) -> Contents:
    """The packages of an image. Raises FlagbenchError (build failed) if its Python does not list them."""
    options = ["--rm", "--pull=never", "--network=none", f"--entrypoint={interpreter}"]
    command = [find_docker(builds=False), "run", *options, image_id, "-I", "-B", "-c", _SCRIPT]
    listed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    try:
        return msgspec.json.decode(listed.stdout, type=Contents)
    except (msgspec.DecodeError, RecursionError) as error:
        said = (listed.stderr or listed.stdout)[-200:].decode("utf-8", "replace").strip()
        raise FlagbenchError(
            f"the image {image_id} does not list what is installed in it: {said}",
            remedy=f"check that {interpreter} runs in it",
            code=ExitCode.BUILD_FAILED,
        ) from error
