"""The files of packages: name and version from the name of a file, and its sha256."""

from __future__ import annotations

import hashlib
from pathlib import Path

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

_BLOCK = 1 << 20


def pin_of(file: str) -> tuple[str, Version] | None:
    """Canonical name and version of a wheel or a source archive, from its file name; None for another file."""
    parse = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
    try:
        name, version = parse(file)[:2]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    return name, version


def package_files(folder: Path) -> dict[tuple[str, Version], list[Path]]:
    """The wheels and source archives of a folder, by canonical name and version. Raises OSError."""
    found: dict[tuple[str, Version], list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if pin := pin_of(path.name):
            found.setdefault(pin, []).append(path)
    return found


def sha256_of(path: Path) -> str:
    """`sha256:<64 hex>` of a file, as a lock writes it."""
    summed = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            summed.update(block)
    return f"sha256:{summed.hexdigest()}"
