"""A folder of packages held against a lock: what is missing or not the locked file is known before pip runs."""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from flagbench.errors import FlagbenchError
from flagbench.locks.model import Lock, LockEntry, canonical
from flagbench.locks.packages import pin_of, sha256_of

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
        if pin := pin_of(path.name):
            found.setdefault(pin, []).append(path)
    return found


def _is_locked(path: Path, entry: LockEntry) -> bool:
    return not entry.hashes or sha256_of(path) in entry.hashes
