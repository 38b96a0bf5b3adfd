"""What the writer and the reader of a prepared folder share: its names, and how files are opened and summed."""

import hashlib
import os
import stat
from typing import Any, Iterable, Optional

from flagbench_cases.shared.errors import DataError

SCHEMA = "prepared/v1"
INDEX = "prepared.json"
KINDS = ("data", "weights")
_PIECE = 2**22


def is_plain(name: str) -> bool:
    """Whether a name is one file's in a folder, on every system, and neither hidden nor the index itself."""
    return bool(name) and name[0] != "." and not set(name) & set("/\\\0\n\r") and name != INDEX and len(name) < 200


def open_file(path: str, mode: str = "r", **options: Any) -> Any:
    """`open` to read. Raises OSError, and DataError for what is no file: opening a pipe waits for ever."""
    status = os.stat(path).st_mode
    if not stat.S_ISREG(status):
        raise DataError("%s is not a file but %s" % (path, _kind(status)), "give the file that was downloaded")
    return open(path, mode, opener=_at_once, **options)


def _at_once(path: str, flags: int) -> int:
    """What is at a path may have changed since it was looked at."""
    return os.open(path, flags | os.O_NONBLOCK)


def check_folder(what: str, path: str, remedy: str) -> None:
    """Raise DataError unless a path is a folder that can be read, without waiting for what it is instead."""
    try:
        status = os.stat(path).st_mode
    except OSError as error:
        gone = "does not exist" if isinstance(error, FileNotFoundError) else "cannot be read (%s)" % error.strerror
        words = "is a link to nothing" if os.path.islink(path) else gone
        raise DataError("the %s folder %s %s" % (what, path, words), remedy) from None
    if not stat.S_ISDIR(status):
        raise DataError("--%s %s is not a folder but %s" % (what, path, _kind(status)), remedy)
    if not os.access(path, os.R_OK | os.X_OK):
        raise DataError("the %s folder %s cannot be read (Permission denied)" % (what, path), remedy)


def _kind(status: int) -> str:
    """What is at a path, in words."""
    kinds = {"pipe": stat.S_ISFIFO, "socket": stat.S_ISSOCK, "device": stat.S_ISCHR, "folder": stat.S_ISDIR}
    return "a %s" % next((name for name, is_it in kinds.items() if is_it(status)), "file")


class Reading:
    """Counts bytes over several files and reports them."""

    def __init__(self, phase: str, total: int, report: Any = None) -> None:
        self.phase = phase
        self.total = total
        self.done = 0
        self._report = report

    def add(self, count: int) -> None:
        """`count` bytes more are read."""
        self.done += count
        if self._report is not None:
            self._report(self.phase, self.done, self.total, "bytes")


def sum_of(path: str, reading: Optional[Reading] = None) -> str:
    """The sha256 of a file in hexadecimal digits. Raises OSError, and DataError for what is no file."""
    digest = hashlib.sha256()
    with open_file(path, "rb") as file:
        for piece in pieces(file):
            digest.update(piece)
            if reading is not None:
                reading.add(len(piece))
    return digest.hexdigest()


def pieces(file: Any) -> Iterable[bytes]:
    """What is left of a file, 4 MiB at a time."""
    while True:
        piece = file.read(_PIECE)
        if not piece:
            return
        yield piece


def sync(path: str) -> None:
    """Bring a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
