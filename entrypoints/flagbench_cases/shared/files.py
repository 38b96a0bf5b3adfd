"""Names used in prepared folders, and helpers to open files and compute checksums."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any, Iterable

from flagbench_cases.shared.errors import DataError
from flagbench_core.data_folders import INDEX

SCHEMA = "prepared/v1"
KINDS = ("data", "weights")
_PIECE = 2**22


def is_plain(name: str) -> bool:
    """Whether a name is a valid file name on every system, and neither hidden nor that of the index."""
    return bool(name) and name[0] != "." and not set(name) & set("/\\\0\n\r") and name != INDEX and len(name) < 200


def open_file(path: str, mode: str = "r", **options: Any) -> Any:
    """`open` for reading. Raises OSError, and DataError if the path is not a file: opening a pipe would block."""
    status = os.stat(path).st_mode
    if not stat.S_ISREG(status):
        raise DataError(f"{path} is {_kind(status)}, not a file", "give the downloaded file")
    return open(path, mode, opener=_at_once, **options)


def _at_once(path: str, flags: int) -> int:
    """Open without blocking: the path may have changed since it was checked."""
    return os.open(path, flags | os.O_NONBLOCK)


def check_folder(what: str, path: str, remedy: str) -> None:
    """Raise DataError unless a path is a readable folder. Does not block on special files."""
    try:
        status = os.stat(path).st_mode
    except OSError as error:
        raise DataError(f"the {what} folder {path} {_stat_problem(path, error)}", remedy) from None
    if not stat.S_ISDIR(status):
        raise DataError(f"--{what} {path} is {_kind(status)}, not a folder", remedy)
    if not os.access(path, os.R_OK | os.X_OK):
        raise DataError(f"the {what} folder {path} cannot be read (Permission denied)", remedy)


def _stat_problem(path: str, error: OSError) -> str:
    if os.path.islink(path):
        return "is a broken link"
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    return f"cannot be read ({error.strerror})"


def _kind(status: int) -> str:
    """The type of a path as text."""
    if stat.S_ISFIFO(status):
        return "a pipe"
    if stat.S_ISSOCK(status):
        return "a socket"
    if stat.S_ISCHR(status):
        return "a device"
    if stat.S_ISDIR(status):
        return "a folder"
    return "a file"


class Reading:
    """Counts bytes over several files and reports them."""

    def __init__(self, phase: str, total: int, report: Any = None) -> None:
        self.phase = phase
        self.total = total
        self.done = 0
        self._report = report

    def add(self, count: int) -> None:
        """Add `count` read bytes."""
        self.done += count
        if self._report is not None:
            self._report(self.phase, self.done, self.total, "bytes")


def sum_of(path: str, reading: Reading | None = None) -> str:
    """The sha256 of a file, hexadecimal. Raises OSError, and DataError if the path is not a file."""
    digest = hashlib.sha256()
    with open_file(path, "rb") as file:
        for piece in pieces(file):
            digest.update(piece)
            if reading is not None:
                reading.add(len(piece))
    return digest.hexdigest()


def pieces(file: Any) -> Iterable[bytes]:
    """The rest of a file in pieces of 4 MiB."""
    while True:
        piece = file.read(_PIECE)
        if not piece:
            return
        yield piece


def sync(path: str) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
