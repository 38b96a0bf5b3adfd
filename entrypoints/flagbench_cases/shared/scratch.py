"""A run's own folder in TMPDIR: locked as long as its process lives, and removed by the next run after that.

The kernel drops the lock with the process, however it ends. A process id would not do: it is given to another process
later, and means nothing in another container that shares the folder.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from typing import Iterator, List, Optional, Tuple

PREFIX = "flagbench-"
LOCK = "owner.lock"
_TRIES = 16


class Scratch:
    """A new folder of this process's own. Raises OSError if none can be made."""

    def __init__(self) -> None:
        self.folder, self._lock = _made()

    def remove(self) -> None:
        """Remove it with all that it holds."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A new folder of this process's own, until the end of the block."""
    made = Scratch()
    try:
        yield made.folder
    finally:
        made.remove()


def remove_leftovers() -> List[str]:
    """Remove what this user's processes left that were killed; returns the folders. What cannot be removed stays."""
    place = tempfile.gettempdir()
    removed = []
    try:
        with os.scandir(place) as entries:
            folders = sorted(entry.path for entry in entries if entry.name.startswith(PREFIX))
    except OSError:
        return []
    for folder in folders:
        lock = _taken(folder)
        if lock is not None:
            # Locked until it is removed, so that no other process takes it for a new folder.
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            removed.append(folder)
    return removed


def _taken(folder: str) -> Optional[int]:
    """The lock of a folder, no link to one, that is this user's and whose lock nobody held; else None."""
    lock: Optional[int] = None
    try:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return None
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(lock).st_mode):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except OSError:  # it is held, or this file system has no locks
        pass
    if lock is not None:
        os.close(lock)
    return None


def _made() -> Tuple[str, Optional[int]]:
    """A new folder and its lock, held; without one where the file system has none: nobody then removes it either."""
    for _ in range(_TRIES):
        folder = tempfile.mkdtemp(prefix=PREFIX)
        lock: Optional[int] = None
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
        # Another run looked between these lines, took it for a leftover and is removing it.
        if lock is not None:
            os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)
    raise OSError(errno.EBUSY, "every new folder was removed at once by another process")
