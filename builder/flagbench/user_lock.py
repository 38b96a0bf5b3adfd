"""A lock for each thing that takes long to make, so that two processes of one user do not make the same one twice."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from flagbench.errors import FlagbenchError


@contextmanager
def user_lock(kind: str, name: str, waiting: Callable[[], None], cache: Path | None = None) -> Iterator[None]:
    """Lock `name`, such as the `CASE/STACK` of an image, against other processes of this user.

    `kind` says what is done with it: building, pulling. `waiting` is called when another process has the lock.
    `cache`: the folder that it is made in, by default flagbench's in the user's cache. Without the lock, the second
    process would do all the work of the first once more.
    """
    folder = (cache or user_cache_path("flagbench")) / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Never removed: a waiting process has the file open, and the next one would lock another.
        file = (folder / f"{name.replace('/', '--')}.lock").open("w")
    except OSError as error:
        raise FlagbenchError(
            f"{folder} cannot be written: {error.strerror}",
            remedy="make it writable, or name another cache folder with XDG_CACHE_HOME",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
