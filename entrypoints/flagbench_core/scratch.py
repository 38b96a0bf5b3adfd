"""Temporary folders. Each is locked while its process lives; those of killed processes are removed by the next one.

The kernel releases the lock when the process ends, for whatever reason. A process id would not be sufficient: it is
reused, and it is meaningless in another container that shares the folder.
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
LOCK = "owner.lock"
_TRIES = 16


class Scratch:
    """A new folder owned by this process, by default in TMPDIR. Raises OSError if it cannot be created."""

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
    """A context manager for a new folder owned by this process; removes leftovers, too. Raises OSError."""
    remove_leftovers(place, prefix)
    temporary = Scratch(place, prefix)
    try:
        yield temporary.folder
    finally:
        temporary.remove()


def user_folder() -> str:
    """A folder in TMPDIR for what a user keeps who has neither a name nor a home, as in a container.

    Raises OSError if it cannot be made, or if it may be somebody else's, who could have made it first.
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
    """Lock a folder of this user (not a link) whose owner is gone; returns the lock's descriptor, else None."""
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
    """A new folder and its acquired lock; the lock is unused if the file system does not support locks."""
    for _ in range(_TRIES):
        folder = tempfile.mkdtemp(prefix=prefix, dir=place)
        lock: int | None = None
        try:
            lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(os.path.join(folder, LOCK)):
                return folder, lock
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL):
                return folder, lock
            if error.errno not in (errno.EWOULDBLOCK, errno.ENOENT):
                shutil.rmtree(folder, ignore_errors=True)
                raise
        # Another run mistook the folder for a leftover before it was locked, and is removing it.
        if lock is not None:
            os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)
    raise OSError(errno.EBUSY, "every new folder was immediately removed by another process")
