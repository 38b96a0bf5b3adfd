"""The folder of one push: its layers, uncompressed and compressed. What a killed push left is removed by the next."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from platformdirs import user_cache_path

from flagbench.errors import FlagbenchError
from flagbench.files import reason

_LOCK = "lock"


@contextmanager
def workspace() -> Iterator[Path]:
    """An empty folder in flagbench's cache, removed at the end. Raises FlagbenchError (usage) where none can be made.

    An OSError of the block, such as a full disk, becomes one too.
    """
    parent = user_cache_path("flagbench") / "pushing"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        made = tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True)
        with made as folder, Path(folder, _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(folder)
    except OSError as error:
        raise FlagbenchError(
            f"{parent}, where layers are kept while they are pushed, cannot be used: {reason(error)}",
            remedy="free some space there, or name another cache folder with XDG_CACHE_HOME",
        ) from error


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders that no process has locked: that of a running push is locked as long as it exists."""
    for folder in parent.iterdir():
        with suppress(OSError):
            descriptor = os.open(folder / _LOCK, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
