"""What keeps two builds of one image, and a full disk, from breaking a build."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flagbench.build.places import cache_folder
from flagbench.errors import ExitCode, FlagbenchError


@contextmanager
def one_at_a_time(image: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the image, by `stack/STACK` or `CASE/STACK`, against other processes of this user.

    `waiting` is called where another one holds it already. The engine would build both; the second would do
    all the work of the first once more.
    """
    folder = cache_folder() / "building"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Never removed: a process that waits holds the old file, and another would lock a new one.
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


def require_space(free: int | None, needed: int) -> None:
    """Refuse to begin what cannot fit. Bytes; `free` is None where the engine's disk cannot be seen.

    Raises FlagbenchError (build failed).
    """
    if free is None or free >= needed:
        return
    raise FlagbenchError(
        f"the engine's disk has {free / 1e9:.1f} GB free, and the image needs about {needed / 1e9:.1f} GB more",
        remedy="free some space where the engine keeps its images (`docker system df` shows what takes it)",
        code=ExitCode.BUILD_FAILED,
    )
