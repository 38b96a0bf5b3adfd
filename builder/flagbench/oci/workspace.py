"""The folder of one push: its layers, uncompressed and compressed. What a killed push left is removed by the next."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from platformdirs import user_cache_path

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import reason

_LOCK = "lock"


@contextmanager
def workspace() -> Iterator[Path]:
    """An empty folder in flagbench's cache, removed at the end.

    Raises FlagbenchError (engine) where none can be made, and for an error of the file system in the block, such as a
    full disk.
    """
    parent = user_cache_path("flagbench") / "pushing"
    with ExitStack() as kept:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            # Otherwise another push could remove a folder that is not locked yet.
            with parent.with_name("pushing.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                _remove_abandoned(parent)
                made = tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True)
                folder = Path(kept.enter_context(made))
                fcntl.flock(kept.enter_context((folder / _LOCK).open("w")), fcntl.LOCK_EX)
            yield folder
        except OSError as error:
            if error.errno is None:  # of a library, whose errors of the network are OSErrors, too
                raise
            raise FlagbenchError(
                f"{parent}, where layers are kept while they are pushed, cannot be used: {reason(error)}",
                remedy="free some space there, or name another cache folder with XDG_CACHE_HOME",
                code=ExitCode.ENGINE,
            ) from error


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders that no process has locked: that of a running push is locked as long as it exists."""
    for folder in parent.iterdir():
        with suppress(OSError):
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
