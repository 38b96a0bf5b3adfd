"""Checks a folder of packages against a lock, so that missing and wrong files are reported before pip runs."""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from flagbench.errors import FlagbenchError
from flagbench.files import reason
from flagbench.locks.model import Lock
from flagbench.locks.packages import package_files, sha256_of

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
        files = package_files(folder)
        for entry in (*lock.entries, *lock.unresolved):
            found = files.get((entry.name, Version(entry.version)), [])
            matching = [path for path in found if not entry.hashes or sha256_of(path) in entry.hashes]
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
            remedy=f"fill it with `flagbench wheels {lock.stack} -o {folder}`",
        )
    return tuple(sorted(chosen))


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
