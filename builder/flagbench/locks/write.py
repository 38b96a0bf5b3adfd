"""Writing a lock: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.locks.model import Lock
from flagbench.locks.read import lock_path, parse_lock


def write_lock(lock: Lock, images: Path) -> bool:
    """Put a lock where `read_lock` looks for it; returns whether the file changed.

    A process killed on the way leaves the old file. Raises FlagbenchError (usage) where the folder cannot be
    written, or where the lock holds a value that a lock must not hold.
    """
    path = lock_path(lock.stack, images)
    # What a person's index or manifest put into the lock is held to the same rules as a file that is read.
    parse_lock(lock.text, f"the new lock of {lock.stack}")
    try:
        if path.is_file() and path.read_bytes() == lock.text.encode():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, lock.text)
    except OSError as error:
        raise FlagbenchError(
            f"the lock {path} cannot be written: {error.strerror or error}",
            remedy="run the command where flagbench's images folder can be written, for example in a checkout",
        ) from None
    return True


def _replace(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
