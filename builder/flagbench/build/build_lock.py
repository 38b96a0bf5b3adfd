"""A lock for each image, so that two processes of one user do not build the same one twice."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from platformdirs import user_cache_path

from flagbench.errors import FlagbenchError


@contextmanager
def build_lock(image: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Lock the image, `stack/STACK` or `CASE/STACK`, against other processes of this user.

    `waiting` is called when another process has the lock. Without it, the second process would do all the work of the
    first once more.
    """
    folder = user_cache_path("flagbench") / "building"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Never removed: a waiting process has the file open, and the next one would lock another.
        file = (folder / f"{image.replace('/', '--')}.lock").open("w")
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
