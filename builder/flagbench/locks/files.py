"""The lock files of an images folder: read, compared with manifests, written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flagbench.errors import FlagbenchError
from flagbench.files import read_text, reason, write_atomically
from flagbench.images import find_reference
from flagbench.locks.legacy import parse_requirements
from flagbench.locks.model import NO_BASE, Lock, inputs_digest
from flagbench.locks.pylock import NOT_EDITED, dump_pylock, parse_pylock

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack


def lock_path(stack: str, images: Path) -> Path:
    """The lock file of a stack in an images folder; NAME of pylock.NAME.toml has dashes for dots."""
    return images / "locks" / f"pylock.{stack.replace('.', '-')}.toml"


def existing_lock(stack: str, images: Path) -> Path:
    """The file that `load_lock` reads; `lock_path` unless there is only one of the old format."""
    path, old = lock_path(stack, images), images / "locks" / f"{stack}.txt"
    return old if old.exists() and not path.exists() else path


def read_lock(stack: Stack, images: Path) -> Lock:
    """The lock of a stack, checked against the stack's manifest.

    Raises FlagbenchError (usage): it is missing, malformed, or made for another manifest.
    """
    lock = load_lock(stack.name, images)
    if lock is None:
        raise FlagbenchError(
            f"the stack {stack.name} has no lock: there is no {lock_path(stack.name, images)}",
            remedy=f"make it with `flagbench lock {stack.name}`",
        )
    if stale := is_stale(lock, stack):
        raise FlagbenchError(
            f"the lock {existing_lock(stack.name, images)} is stale: {stale}",
            remedy=f"lock the stack again with `flagbench lock {stack.name}`",
        )
    return lock


def load_lock(stack: str, images: Path) -> Lock | None:
    """The lock of a stack, even if it is stale; None if there is no file.

    Raises FlagbenchError (usage): the file cannot be read, or is malformed.
    """
    path = existing_lock(stack, images)
    parse = parse_requirements if path.suffix == ".txt" else parse_pylock
    try:
        return parse(read_text(path), path)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise FlagbenchError(f"the lock {path} cannot be read: {error}", remedy=NOT_EDITED) from None


def is_stale(lock: Lock, stack: Stack) -> str | None:
    """Why a lock no longer fits a stack's manifest, or None if it fits."""
    image, digest = stated_base(stack)
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


def stated_base(stack: Stack) -> tuple[str | None, str | None]:
    """The name and the digest of the base in a stack's manifest; None for what it does not say.

    Raises FlagbenchError (usage) if it is not an image reference.
    """
    if stack.base_image is None:
        return None, None
    reference = find_reference(stack.base_image)
    if reference is None:
        raise FlagbenchError(
            f"base.image of {stack.name}, {stack.base_image!r}, is not an image reference",
            remedy=f"correct {stack.path}; write it like registry.example/base:1",
        )
    return reference.tagged, reference.digest


def write_lock(lock: Lock, images: Path) -> bool:
    """Write a lock atomically where `read_lock` looks for it; returns whether the file changed.

    Raises FlagbenchError (usage) if the folder cannot be written, tomlkit is not installed, or the lock has a value
    that a lock must not have.
    """
    path = lock_path(lock.stack, images)
    text = dump_pylock(lock)
    try:
        if path.is_file() and path.read_bytes() == text.encode():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise FlagbenchError(
            f"the lock {path} cannot be written: {reason(error)}",
            remedy="run the command where flagbench's images folder can be written, for example in a checkout",
        ) from None
    return True
