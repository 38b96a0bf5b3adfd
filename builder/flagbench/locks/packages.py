"""The files of packages: the name and the version that a file's name states, and its sha256."""

from __future__ import annotations

import hashlib
from pathlib import Path

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

_BLOCK = 1 << 20


def pin_of(file: str) -> tuple[str, Version] | None:
    """Canonical name and version that a wheel's or a source archive's name states, or None for another file."""
    try:
        if file.endswith(".whl"):
            return parse_wheel_filename(file)[:2]
        if file.endswith((".tar.gz", ".zip")):
            return parse_sdist_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        pass
    return None


def sha256_of(path: Path) -> str:
    """`sha256:<64 hex>` of a file, as a lock writes it."""
    summed = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            summed.update(block)
    return f"sha256:{summed.hexdigest()}"
