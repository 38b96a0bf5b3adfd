"""A folder of packages held against a lock: what is missing or not the locked file is known before pip runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from flagbench.errors import FlagbenchError
from flagbench.locks.model import Lock, LockEntry, canonical

_CHUNK = 1 << 20
_SHOWN = 8
"""How many packages an error names."""

Found = dict[tuple[str, Version], list[Path]]


def check_wheelhouse(folder: Path, lock: Lock) -> tuple[Path, ...]:
    """The files of the folder that the lock names, sorted by name; nothing else of it is given to a build.

    A locked package's file must have one of the locked hashes; of an unresolved one, whose hash nobody knew,
    name and version have to do.

    Raises FlagbenchError (usage) with every package that is missing or another file than the locked one.
    """
    try:
        chosen, missing, different = _compare(folder, lock)
    except OSError as error:
        raise FlagbenchError(
            f"the wheelhouse {folder} cannot be read: {error.strerror}", remedy="make it readable for you"
        ) from error
    if missing or different:
        raise FlagbenchError(
            f"the wheelhouse {folder} does not fit the lock of {lock.stack}: {_told(missing, different)}",
            remedy=f"fill it with `flagbench wheels {lock.stack} -o {folder}`",
        )
    return tuple(sorted(chosen))


def size(folder: Path) -> int:
    """Bytes of the packages in a wheelhouse."""
    return sum(path.stat().st_size for paths in _packages(folder).values() for path in paths)


def _compare(folder: Path, lock: Lock) -> tuple[set[Path], list[str], list[str]]:
    """The files that fit, the pins without a file, and the names of files of a locked version with another hash."""
    files = _packages(folder)
    chosen: set[Path] = set()
    missing: list[str] = []
    different: list[str] = []
    for entry in (*lock.entries, *lock.unresolved):
        there = files.get((canonical(entry.name), Version(entry.version)), [])
        right = [path for path in there if _is_locked(path, entry)]
        chosen.update(right)
        if not there:
            missing.append(entry.pin)
        elif not right:
            different += [path.name for path in there]
    return chosen, missing, different


def _told(missing: list[str], different: list[str]) -> str:
    parts = []
    if missing:
        parts.append(f"missing {_some(missing)}")
    if different:
        parts.append(f"not the locked files: {_some(different)}")
    return "; ".join(parts)


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _packages(folder: Path) -> Found:
    """The wheels and source archives of a folder by canonical name and version; other files are ignored."""
    found: Found = {}
    for path in sorted(folder.iterdir()):
        for name, version in _named(path):
            found.setdefault((canonical(name), version), []).append(path)
    return found


def _named(path: Path) -> Iterator[tuple[str, Version]]:
    try:
        if path.name.endswith(".whl"):
            name, version, _, _ = parse_wheel_filename(path.name)
            yield name, version
        elif path.name.endswith((".tar.gz", ".zip")):
            yield parse_sdist_filename(path.name)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return


def _is_locked(path: Path, entry: LockEntry) -> bool:
    return not entry.hashes or f"sha256:{_sha256(path)}" in entry.hashes


def _sha256(path: Path) -> str:
    summed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            summed.update(chunk)
    return summed.hexdigest()
