"""The lock files of an images folder: read, compared with manifests, written atomically."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from flagbench.errors import FlagbenchError
from flagbench.files import read_text
from flagbench.locks.legacy import parse_requirements
from flagbench.locks.model import NO_BASE, Lock, inputs_digest
from flagbench.locks.pylock import NOT_EDITED, dump_pylock, parse_pylock

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack


def lock_path(stack: str, images: Path) -> Path:
    """Where the lock of a stack is, under an images folder: the name of a pylock.NAME.toml has no more dots."""
    return images / "locks" / f"pylock.{stack.replace('.', '-')}.toml"


def read_lock(stack: Stack, images: Path) -> Lock:
    """The lock of a stack, which fits the stack's manifest.

    Raises:
        FlagbenchError: (usage) it is missing, malformed, or made for another manifest.
    """
    lock = load_lock(stack.name, images)
    if lock is None:
        raise FlagbenchError(
            f"the stack {stack.name} has no lock: there is no {lock_path(stack.name, images)}",
            remedy=f"make it with `flagbench lock {stack.name}`",
        )
    if stale := is_stale(lock, stack):
        raise FlagbenchError(
            f"the lock {lock_path(stack.name, images)} is stale: {stale}",
            remedy=f"lock the stack again with `flagbench lock {stack.name}`",
        )
    return lock


def load_lock(stack: str, images: Path) -> Lock | None:
    """The lock of a stack, even if it is stale; None if there is no file.

    Raises:
        FlagbenchError: (usage) the file cannot be read, or is malformed.
    """
    path = lock_path(stack, images)
    text = _text(path)
    if text is not None:
        return parse_pylock(text, str(path))
    old = images / "locks" / f"{stack}.txt"
    text = _text(old)
    return None if text is None else parse_requirements(text, old)


def is_stale(lock: Lock, stack: Stack) -> str | None:
    """Why a lock does not fit a stack's manifest any more, or None if it fits."""
    image, digest = split_digest(stack.base_image)
    if lock.stack != stack.name:
        return f"it is the lock of {lock.stack}, not of {stack.name}"
    if lock.python != stack.python:
        return f"it is for Python {lock.python}, the manifest says {stack.python}"
    if lock.base_image != image:
        return f"its base is {lock.base_image or NO_BASE}, the manifest says {image or NO_BASE}"
    if digest not in (None, lock.base_digest):
        return f"its base has the digest {lock.base_digest or 'unresolved'}, the manifest says {digest}"
    if lock.inputs != inputs_digest(stack):
        return "packages, platform or indexes in the manifest changed since it was made"
    return None


def split_digest(image: str | None) -> tuple[str | None, str | None]:
    """A manifest's base as its name and its digest; None for what it does not say."""
    name, at, digest = (image or "").partition("@")
    return name or None, digest if at else None


def write_lock(lock: Lock, images: Path) -> bool:
    """Put a lock where `read_lock` looks for it; returns whether the file changed.

    A process killed on the way leaves the old file. Raises FlagbenchError (usage) where the folder cannot be
    written, tomlkit is not installed, or the lock holds a value that a lock must not hold.
    """
    path = lock_path(lock.stack, images)
    text = dump_pylock(lock)
    try:
        if path.is_file() and path.read_bytes() == text.encode():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    except OSError as error:
        raise FlagbenchError(
            f"the lock {path} cannot be written: {error.strerror or error}",
            remedy="run the command where flagbench's images folder can be written, for example in a checkout",
        ) from None
    return True


def _text(path: Path) -> str | None:
    try:
        return read_text(path)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise FlagbenchError(f"the lock {path} cannot be read: {error}", remedy=NOT_EDITED) from None


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
