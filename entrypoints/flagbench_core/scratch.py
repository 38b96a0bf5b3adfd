"""Temporary folders. Each is locked while its process lives; those of killed processes are removed by the next one.

A process holds an exclusive lock (flock) on the file LOCK of its folder. A folder whose lock can be acquired is a
leftover. The kernel releases the lock when the process ends, for whatever reason. A process id would not be
sufficient: it is reused, and it is meaningless in another container that shares the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from typing import Iterator

PREFIX = "flagbench-"
"""The beginning of the names of temporary folders, by which leftovers are found."""
LOCK = "owner.lock"
"""The file of a folder that its process keeps locked."""
_TRIES = 16
"""How many folders are made, until one is locked before another process takes it for a leftover."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)
"""Errors of a file system that does not support locks."""
_TAKEN_FOR_LEFTOVER = (errno.EWOULDBLOCK, errno.ENOENT)
"""Errors if another process has locked or removed a folder before this one could lock it."""


class Scratch:
    """A new folder owned by this process. Raises OSError if it cannot be created.

    `place` is the folder in which it is created, by default TMPDIR, and `prefix` the beginning of its name.
    """

    def __init__(self, place: str | None = None, prefix: str = PREFIX) -> None:
        self.folder, self._lock = _create(place, prefix)

    def remove(self) -> None:
        """Remove the folder and its contents."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def scratch(place: str | None = None, prefix: str = PREFIX) -> Iterator[str]:
    """A context manager for a new folder, as `Scratch` makes it; first removes leftovers. Raises OSError."""
    remove_leftovers(place, prefix)
    temporary = Scratch(place, prefix)
    try:
        yield temporary.folder
    finally:
        temporary.remove()


def user_folder() -> str:
    """Create a folder in TMPDIR for the files of a user without a name and a home, if needed; returns its path.

    Raises OSError if it cannot be created, or if another user may have created it first or can write to it.
    """
    folder = os.path.join(tempfile.gettempdir(), f"flagbench-user-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "other users can write to it", folder)
    return folder


def remove_leftovers(place: str | None = None, prefix: str = PREFIX) -> list[str]:
    """Remove folders left by killed processes of this user, where possible; returns the removed folders."""
    removed = []
    try:
        with os.scandir(place or tempfile.gettempdir()) as entries:
            folders = sorted(entry.path for entry in entries if entry.name.startswith(prefix))
    except OSError:
        return []
    for folder in folders:
        lock = lock_leftover(folder)
        if lock is not None:
            # Locked until it is removed, so that no other process mistakes it for a new folder.
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            removed.append(folder)
    return removed


def lock_leftover(folder: str) -> int | None:
    """Lock a folder of this user whose process has ended; returns the descriptor of the lock.

    None for any other folder, for a link, and if the folder has no lock file. Names in TMPDIR may be chosen by other
    users, so nothing is followed or waited for.
    """
    lock: int | None = None
    try:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return None
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(lock).st_mode):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except OSError:  # it is locked, or the file system does not support locks
        pass
    if lock is not None:
        os.close(lock)
    return None


def _create(place: str | None, prefix: str) -> tuple[str, int | None]:
    """Create a folder and acquire its lock; returns both. Without support for locks, the folder is never a leftover.

    Another process may see the folder before it is locked, take it for a leftover and remove it. Then the lock cannot
    be acquired, or the file is gone afterwards, and the next folder is tried.
    """
    for _ in range(_TRIES):
        folder = tempfile.mkdtemp(prefix=prefix, dir=place)
        lock: int | None = None
        try:
            lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(os.path.join(folder, LOCK)):
                return folder, lock
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return folder, lock
            if error.errno not in _TAKEN_FOR_LEFTOVER:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        # Another process is removing the folder.
        if lock is not None:
            os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)
    raise OSError(errno.EBUSY, "every new folder was immediately removed by another process")
