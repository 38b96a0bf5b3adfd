"""Helpers for processes that write to a disk: a lock between them, its free space, and whether it is full."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import Iterator

SLACK = 2**20
"""The free space, bytes, below which a disk counts as full, since file systems reserve the last blocks."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers of a full disk and of an exhausted quota."""


@contextlib.contextmanager
def file_lock(path: str) -> Iterator[None]:
    """Hold a lock between processes, also on machines that share the disk: a file, which is removed with the lock.

    Raises BlockingIOError if another process holds it, another OSError if the file cannot be created or locked.
    """
    with contextlib.ExitStack() as stack:
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file is ours unless its former owner removed it, and perhaps another process created it again,
            # before we locked it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(handle)):
                    break
            stack.close()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)  # while locked: another process then notices that its descriptor is stale


def free_bytes(folder: str) -> int | None:
    """Return the free space available to this user at a folder, bytes; None if unknown."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def is_full(error: Exception, folder: str) -> bool:
    """Return whether an error was caused by a full disk. Not all libraries preserve errno."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    if "No space left" in str(error):
        return True
    free = free_bytes(folder)
    return free is not None and free < SLACK
