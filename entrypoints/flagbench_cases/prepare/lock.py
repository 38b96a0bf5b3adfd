"""A lock between processes, also on machines that share the disk: a file, which is removed with the lock."""

import contextlib
import fcntl
import os
from typing import Any, Callable


class FileLock:
    """Held from its creation to the end of its `with` block, or of the process."""

    def __init__(self, path: str, busy: Callable[[], None]) -> None:
        """Wait for the lock. Raises OSError if the file cannot be created or locked.

        Args:
            busy: called before waiting for another process; may raise.
        """
        self._path = path
        while True:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                try:
                    fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    busy()
                    fcntl.flock(self._handle, fcntl.LOCK_EX)
                with contextlib.suppress(FileNotFoundError):  # its owner has just removed it
                    if os.path.samestat(os.stat(path), os.fstat(self._handle)):
                        return
            except BaseException:
                os.close(self._handle)
                raise
            os.close(self._handle)

    def __enter__(self) -> None:
        """Nothing: it is held already."""

    def __exit__(self, *error: Any) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)  # while locked: another process then notices that its descriptor is stale
        os.close(self._handle)
