"""Lists what is installed in an image, with its own Python in a container without a network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import NamedTuple

import msgspec
from platformdirs import user_cache_path

from flagbench.engines import open_client
from flagbench.engines.base import ImageInfo
from flagbench.engines.connect import engine_errors
from flagbench.errors import ExitCode, FlagbenchError

_LABEL = {"dev.flagbench.role": "contents"}
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


def read_contents(image: ImageInfo, interpreter: str) -> Contents:
    """The packages of an image; a container is started only for the first of all images with the same layers.

    Raises FlagbenchError (build failed) if its Python does not answer.
    """
    key = hashlib.sha256("\n".join([_SCRIPT, interpreter, *image.layers]).encode()).hexdigest()
    kept = user_cache_path("flagbench") / "contents" / f"{key}.json"
    with suppress(OSError, msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(kept.read_bytes(), type=Contents)
    answer = run_in_container(image.id, [interpreter, "-I", "-B", "-c", _SCRIPT])
    try:
        contents = msgspec.json.decode(answer, type=Contents)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FlagbenchError(
            f"the image {image.id} does not list what is installed in it: {answer[-200:]!r}",
            remedy=f"check that {interpreter} runs in it",
            code=ExitCode.BUILD_FAILED,
        ) from error
    with suppress(OSError):  # the next build lists it again
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(answer)
    return contents


def run_in_container(image_id: str, command: Sequence[str]) -> bytes:
    """What a command prints on stdout in a container of an image, which has no network and is removed afterwards.

    Raises:
        FlagbenchError: (build failed) the command failed, with the last line of its stderr; (engine) the engine
            could not run it.
    """
    with closing(open_client()) as client, engine_errors(f"run a container of {image_id}"):
        container = client.containers.create(
            image_id, list(command[1:]), entrypoint=[command[0]], network_mode="none", labels=_LABEL
        )
        try:
            container.start()
            status = int(container.wait()["StatusCode"])
            answer = bytes(container.logs(stdout=True, stderr=False))
            said = container.logs(stdout=False, stderr=True, tail=1) if status else b""
        finally:
            container.remove(force=True)
    if status:
        raise FlagbenchError(
            f"{command[0]} in the image {image_id} ended with {status}: {said.decode('utf-8', 'replace').strip()}",
            remedy="check that the interpreter that the stack's manifest names runs in the image",
            code=ExitCode.BUILD_FAILED,
        )
    return answer
