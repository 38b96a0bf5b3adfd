"""What the writer and the reader of a prepared folder share: its names, and how files are opened and summed."""

import hashlib
import os
import stat
from typing import Any, Iterable, Optional

from flagbench_cases.errors import DataError

SCHEMA = "prepared/v1"
INDEX = "prepared.json"
KINDS = ("data", "weights")
_PIECE = 2**22


def is_plain(name: str) -> bool:
    """Whether a name is one file's in a folder, on every system, and neither hidden nor the index itself."""
    return bool(name) and name[0] != "." and not set(name) & set("/\\\0\n\r") and name != INDEX and len(name) < 200


def open_file(path: str, mode: str = "r", **options: Any) -> Any:
    """`open` for a source. Raises OSError, and DataError for what is no file: opening a pipe waits for ever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise DataError("%s is not a file" % path, "give the file that was downloaded")
    return open(path, mode, **options)


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
