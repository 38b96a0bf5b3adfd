"""The interface between a store and the place that keeps its objects, and the errors that both raise.

A blob is an object: bytes under a key, which is a path with slashes. `FolderBlobs` and `BucketBlobs` implement the
interface.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flagbench.errors import FlagbenchError
from flagbench_core.exit_codes import ExitCode

INDEX = "results/index-v1.json"
"""The key of the cached listing. It is in the folder of the objects, so that it is deleted and copied with them."""
INDEX_BYTES = 2**26
"""The size limit of the cached listing; a larger one counts as damaged. 10,000 records take 5 MB."""


class StoreError(FlagbenchError):
    """A store did not accept a record (NOT_STORED), or returned a damaged one or none (DATA)."""

    def __init__(self, message: str, *, remedy: str, code: ExitCode = ExitCode.NOT_STORED) -> None:
        super().__init__(message, remedy=remedy, code=code)


class IdTaken(StoreError):
    """A store has another record of the same id."""


class Unread(StoreError):
    """A store did not return an object that may be sound: the network failed, or the access key may not read it."""


class ListingDenied(StoreError):
    """A store does not list its objects, because the access key may only write."""


def damaged(location: str, problem: str) -> StoreError:
    """Return the error for a stored object that is incomplete or has changed; `problem` continues the sentence."""
    return StoreError(
        f"the stored record {location} {problem}",
        remedy="restore it from a copy, or remove it and store it again with `flagbench results push FILE`",
        code=ExitCode.DATA,
    )


@dataclass(frozen=True)
class Blob:
    """An entry of a listing: an object, or something else that was found among the objects."""

    key: str
    """The path below the store, with slashes."""
    size: int = 0
    """The size in bytes."""
    stamp: str = ""
    """A text that changes when the content does: the size and the modification time of a file, or the ETag."""
    problem: str | None = None
    """Why it cannot have been put here, such as `not a regular file`; None for an object."""


@dataclass(frozen=True)
class Health:
    """Whether a record could be put into a store now."""

    ok: bool
    detail: str
    """The address and the kind of the store, or what is wrong with it."""
    remedy: str | None = None
    """What to do if `ok` is false."""
    code: ExitCode = ExitCode.USAGE
    """The exit code of a command that needs a usable store."""


class Blobs(Protocol):
    """A place that keeps immutable objects, each with the sha256 of its content."""

    @property
    def url(self) -> str:
        """The address of the store, as `open_store` takes it."""

    @property
    def readers(self) -> int:
        """How many objects to read at the same time; 1 if more readers are not faster."""

    @property
    def one_winner(self) -> bool:
        """Whether exactly one of several simultaneous puts of a key succeeds."""

    def location(self, key: str) -> str:
        """Return the path of the object's file, or the object's URL, as a person reads it."""

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Store an object and its sha256, unless the key has an object already.

        Returns whether the key has `content` now: False if it has other bytes.

        Raises StoreError (NOT_STORED). Nothing was stored then, except if the answer of a server was lost.
        """

    def get(self, key: str, limit: int) -> bytes:
        """Return the content of an object of at most `limit` bytes, checked against its sha256.

        Raises StoreError (DATA): its subclass Unread if the object may be sound.
        """

    def put_file(self, key: str, path: Path, sha256: str) -> bool:
        """Store a file of any size under a key that contains its sha256.

        Returns whether it had to be sent: False if the store has it already.

        Raises StoreError (NOT_STORED).
        """

    def get_file(self, key: str, path: Path, *, size: int, sha256: str) -> None:
        """Copy an object that was stored by `put_file` to a new file, checked against its sha256.

        The file appears only when it is complete. Raises StoreError (DATA) if the object was not read, and StoreError
        (NOT_STORED) if the file cannot be written.
        """

    def list(self, prefix: str) -> Iterator[Blob]:
        """Yield everything whose key begins with `prefix`, a path that ends in a slash, without opening it.

        A store that does not exist yet is empty. Raises StoreError (USAGE) if the address cannot be a store, and
        StoreError (ENGINE) if the network fails.
        """

    def read_index(self) -> bytes:
        """Return the cached listing, or empty bytes if it does not exist or cannot be read."""

    def write_index(self, content: bytes) -> None:
        """Replace the cached listing in one step; a failure is ignored."""

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is not an error. Raises StoreError (NOT_STORED)."""

    def clear(self, prefix: str) -> None:
        """Delete everything below a prefix that nobody else writes to. Raises StoreError (NOT_STORED)."""

    def health(self) -> Health:
        """Return whether objects could be put now. The check leaves nothing behind."""
