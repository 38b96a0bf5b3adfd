"""Reads files that may be anything without blocking, and never more than a limit; replaces files atomically.

Whatever a user names, such as a record, a manifest or a lock, is read and written by these functions.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

TEXT_BYTES = 16 * 2**20
"""The size limit of hand-written files: a manifest, a Dockerfile, a bundle of certificates."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""The names of kinds of files in error messages, by the type bits of a file's mode."""
_BLOCK_BYTES = 1 << 20
"""Most bytes read at once."""


def read_file(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises OSError with the reason in `strerror`: the file is missing, unreadable, larger than `limit`, or not a
    regular file. A named pipe, a socket or a device is refused before it is opened.
    """
    try:
        _require_regular(path.stat())
        # O_NONBLOCK in case the file was replaced by a pipe in the meantime.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL, or a character that no file name can hold
        raise OSError(errno.EINVAL, "no file can have this name") from error
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        _require_regular(status)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than the {limit:,} allowed")
        return read_stream(file, limit)


def read_input(path: Path, limit: int) -> bytes:
    """The content of a file as `read_file`, or of a shell's pipe, like the /dev/fd/63 of `<(zcat record.json.gz)`."""
    if not _is_unnamed_pipe(path):
        return read_file(path, limit)
    with path.open("rb", buffering=0) as file:
        return read_stream(file, limit)


def read_text(path: Path) -> str:
    """The text of a file, read by `read_input`; `-` is standard input.

    Raises OSError, or ValueError if it is not UTF-8.
    """
    if str(path) == "-":
        return read_stdin(TEXT_BYTES).decode("utf-8")
    return read_input(path, TEXT_BYTES).decode("utf-8")


def read_stdin(limit: int) -> bytes:
    """The rest of standard input, at most `limit` bytes. Raises OSError."""
    return read_stream(sys.stdin.buffer, limit)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file that a crash of the machine does not lose, or leave the file that was there before.

    Raises OSError, also if the path is a link, a named pipe or a device: nothing is written through it.
    """
    path = expanded(path)
    require_replaceable(path)
    # The name of the temporary file has the process id, so that two processes do not write to one.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def require_replaceable(path: Path) -> None:
    """Raise OSError if the path exists and is not a regular file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    _require_regular(status)


def expanded(path: Path | str) -> Path:
    """`path` with ~ and ~user resolved; unchanged, as in a shell, if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # pathlib raises RuntimeError instead


def read_stream(stream: BinaryIO, limit: int) -> bytes:
    """The rest of an open file or a pipe, at most `limit` bytes. Raises OSError (EFBIG) if there is more."""
    content = bytearray()
    while len(content) <= limit:
        one_more_than_allowed = limit + 1 - len(content)
        block = stream.read(min(_BLOCK_BYTES, one_more_than_allowed))
        if not block:
            break
        content += block
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than the {limit:,} bytes allowed")
    return bytes(content)


def _is_unnamed_pipe(path: Path) -> bool:
    """Whether the path is a shell's pipe: a link of /dev/fd to `pipe:[...]`, which is not a path."""
    try:
        is_pipe = stat.S_ISFIFO(path.stat().st_mode)
        return is_pipe and not os.path.lexists(os.path.realpath(path))
    except (OSError, ValueError):
        return False


def reason(error: OSError) -> str:
    """The reason of an OSError as text; one made from text alone has no `strerror`."""
    return error.strerror or str(error)


def _require_regular(status: os.stat_result) -> None:
    """Raise OSError if the status is not that of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file")
