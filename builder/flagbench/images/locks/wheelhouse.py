"""A wheelhouse, a folder with the files of packages: whether it has what a lock names."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from flagbench.errors import FlagbenchError
from flagbench.files import reason
from flagbench.images.locks.model import Lock

_BLOCK = 1 << 20
_SHOWN = 8
"""How many packages an error names."""


def check_wheelhouse(folder: Path, lock: Lock) -> tuple[Path, ...]:
    """The files of the folder that the lock names, sorted; a build is given no others.

    A locked package needs a file with one of the locked hashes. For an unresolved package, whose hash is unknown, any
    file of that name and version will do.

    Raises FlagbenchError (usage) naming the packages that are missing and the files that are not the locked ones.
    """
    chosen: list[Path] = []
    missing: list[str] = []
    different: list[str] = []
    try:
        files = _package_files(folder)
        for entry in (*lock.entries, *lock.unresolved):
            found = files.get((entry.name, Version(entry.version)), [])
            matching = [path for path in found if not entry.hashes or _sha256_of(path) in entry.hashes]
            chosen += matching
            if not found:
                missing.append(entry.pin)
            elif not matching:
                different += [path.name for path in found]
    except OSError as error:
        raise FlagbenchError(
            f"the wheelhouse {folder} cannot be read: {reason(error)}", remedy="check its permissions"
        ) from error
    problems = [f"missing {_some(missing)}"] if missing else []
    problems += [f"not the locked files: {_some(different)}"] if different else []
    if problems:
        raise FlagbenchError(
            f"the wheelhouse {folder} does not fit the lock of {lock.stack}: {'; '.join(problems)}",
            remedy="fill it with `pip download`; docs/locks.md shows how",
        )
    return tuple(sorted(chosen))


def _package_files(folder: Path) -> dict[tuple[str, Version], list[Path]]:
    """The wheels and source archives of a folder, by canonical name and version. Raises OSError."""
    found: dict[tuple[str, Version], list[Path]] = {}
    for path in sorted(folder.iterdir()):
        parse = parse_wheel_filename if path.suffix == ".whl" else parse_sdist_filename
        with suppress(InvalidWheelFilename, InvalidSdistFilename):
            name, version = parse(path.name)[:2]
            found.setdefault((name, version), []).append(path)
    return found


def _sha256_of(path: Path) -> str:
    """`sha256:<64 hex>` of a file, as a lock writes it."""
    summed = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            summed.update(block)
    return f"sha256:{summed.hexdigest()}"


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
