"""Names used in prepared folders, and functions that open files safely and compute their checksums.

Paths come from users and from data sets of others, so they may be pipes, sockets or links, or change while they are
read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any, Iterable, Protocol

from flagbench_cases.shared.errors import DataError
from flagbench_core.data_folders import INDEX

SCHEMA = "prepared/v1"
"""The version of the index of a prepared folder, in its field `schema`."""
KINDS = ("data", "weights")
"""The kinds of prepared folders, and the options that name them."""
_PIECE = 2**22
"""Bytes of a file that are read at a time."""
_MOST_CHARACTERS = 200
"""File names are shorter: file systems allow 255 bytes, and some characters of a name take more than one."""


def is_plain(name: str) -> bool:
    """Whether a name is a valid file name on every system, and neither hidden nor that of the index."""
    if not name or name.startswith(".") or name == INDEX:
        return False
    if len(name) >= _MOST_CHARACTERS:
        return False
    return not any(character in "/\\\0\n\r" for character in name)


def open_file(path: str, mode: str = "r", **options: Any) -> Any:
    """`open` for reading. Raises OSError, and DataError if the path is not a file: opening a pipe would block."""
    status = os.stat(path).st_mode
    if not stat.S_ISREG(status):
        raise DataError(f"{path} is {_describe_type(status)}, not a file", "give the downloaded file")
    return open(path, mode, opener=_open_without_blocking, **options)


def _open_without_blocking(path: str, flags: int) -> int:
    """Open a path and return its descriptor, at once even for a pipe: it may have changed since it was checked."""
    return os.open(path, flags | os.O_NONBLOCK)


def check_folder(kind: str, path: str, remedy: str) -> None:
    """Raise DataError unless a path is a readable folder. Does not block on special files.

    `kind` is one of KINDS, for the message.
    """
    try:
        status = os.stat(path).st_mode
    except OSError as error:
        raise DataError(f"the {kind} folder {path} {_stat_problem(path, error)}", remedy) from None
    if not stat.S_ISDIR(status):
        raise DataError(f"--{kind} {path} is {_describe_type(status)}, not a folder", remedy)
    if not os.access(path, os.R_OK | os.X_OK):
        raise DataError(f"the {kind} folder {path} cannot be read (Permission denied)", remedy)


def _stat_problem(path: str, error: OSError) -> str:
    """Why a path has no status, as the predicate of a sentence."""
    if os.path.islink(path):
        return "is a broken link"
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    return f"cannot be read ({error.strerror})"


def _describe_type(status: int) -> str:
    """The type of a path with an article, according to the mode `st_mode` of its status."""
    if stat.S_ISFIFO(status):
        return "a pipe"
    if stat.S_ISSOCK(status):
        return "a socket"
    if stat.S_ISCHR(status):
        return "a device"
    if stat.S_ISDIR(status):
        return "a folder"
    return "a file"


class Report(Protocol):
    """A function that is told how much of a phase is done; `prepare` shows it to the user (prepare/progress.py)."""

    def __call__(self, phase: str, done: int, total: int, unit: str = "") -> None:
        """Report `done` of `total` (0: unknown), in `bytes` or, if `unit` is empty, in a unit of the case."""


def report_nothing(phase: str, done: int, total: int, unit: str = "") -> None:
    """The Report for sets that are so small that nobody waits for them."""


class Reading:
    """Counts the bytes that are read from several files, and reports them for a progress line.

    `total` is the number of bytes to read, and `report` is called with the phase, the bytes so far, the total and the
    unit; None to report nothing.
    """

    def __init__(self, phase: str, total: int, report: Report | None = None) -> None:
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
    """The rest of a file from its position on, in pieces of at most _PIECE bytes."""
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
