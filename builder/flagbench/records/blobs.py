"""The interface to a place that keeps objects under keys; one adapter per kind of place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flagbench.errors import FlagbenchError
from flagbench_core.exit_codes import ExitCode

INDEX = "results/index-v1.json"
"""The key of the cached listing: beside the objects, so that it is deleted and copied with them."""
INDEX_BYTES = 2**26
"""A larger one counts as damaged: 10,000 records take 5 MB."""


class StoreError(FlagbenchError):
    """A store that did not take a record (NOT_STORED), or returned a damaged one or none (DATA)."""

    def __init__(self, message: str, *, remedy: str, code: ExitCode = ExitCode.NOT_STORED) -> None:
        super().__init__(message, remedy=remedy, code=code)


class IdTaken(StoreError):
    """A store that holds other bytes as the record of the same id."""


class Unread(StoreError):
    """A store that did not give an object, which may be sound: a network that failed, a key that may not read."""


class ListingDenied(StoreError):
    """A store that accepts objects but denies listing them, as with a key that may only write."""


def damaged(location: str, what: str) -> StoreError:
    """The error for a stored object that is incomplete or has changed since it was stored."""
    return StoreError(
        f"the stored record {location} {what}",
        remedy="restore it from a copy, or remove it and store it again with `flagbench results push FILE`",
        code=ExitCode.DATA,
    )


@dataclass(frozen=True)
class Blob:
    """An entry of a listing: an object, or something else found among the objects."""

    key: str
    """Its path below the store, with slashes."""
    size: int = 0
    """Bytes."""
    stamp: str = ""
    """Changes when the content does: size and modification time of a file, an object's ETag."""
    problem: str | None = None
    """Why it cannot have been put here, such as `not a regular file`; None for an object."""


@dataclass(frozen=True)
class Health:
    """Whether a record could be put into a store now; `remedy` says what to do if not."""

    ok: bool
    detail: str
    remedy: str | None = None
    code: ExitCode = ExitCode.USAGE
    """The exit code of a command that needs a usable store."""


class Blobs(Protocol):
    """Immutable objects, each with the sha256 it was put with."""

    @property
    def url(self) -> str:
        """The address, as `open_store` takes it."""

    @property
    def readers(self) -> int:
        """Objects that are worth reading at a time."""

    @property
    def one_winner(self) -> bool:
        """Whether exactly one of several simultaneous puts of a key wins."""

    def location(self, key: str) -> str:
        """The file, or the object's URL, for a person."""

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Keep `content`, its sha256 beside it. Returns whether `key` holds it now: False if it holds other bytes.

        Raises StoreError (NOT_STORED); then nothing is kept, unless the answer of a server was lost for good.
        """

    def get(self, key: str, limit: int) -> bytes:
        """The bytes that were put, checked against their sha256.

        Raises StoreError (DATA); of these, Unread if the object may be sound.
        """

    def put_file(self, key: str, path: Path, sha256: str) -> bool:
        """Keep a file of any size under a key that contains its sha256. Returns whether it had to be sent.

        Raises StoreError (NOT_STORED).
        """

    def get_file(self, key: str, path: Path, *, size: int, sha256: str) -> None:
        """Copy such an object to a new file, whole or not at all, checked against its sha256.

        Raises StoreError: (DATA) if it was not read, (NOT_STORED) if the file cannot be written.
        """

    def list(self, prefix: str) -> Iterator[Blob]:
        """Everything whose key begins with `prefix`, a path that ends in a slash. Opens nothing.

        Raises StoreError: (USAGE) if the address cannot be a store, (ENGINE) if the network fails. One that
        does not exist yet is empty.
        """

    def read_index(self) -> bytes:
        """The cached listing, or empty bytes if it does not exist or cannot be read."""

    def write_index(self, content: bytes) -> None:
        """Replace the cached listing, whole or not at all; a failure is ignored."""

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is not an error. Raises StoreError (NOT_STORED)."""

    def clear(self, prefix: str) -> None:
        """Delete everything below a prefix that nobody else writes to. Raises StoreError (NOT_STORED)."""

    def health(self) -> Health:
        """Whether objects could be put now; the check leaves nothing behind."""
