"""What a store is: the protocol every adapter follows, and what it gives back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.terminal import brief

# The pattern of the record schema. Fully matched, it holds no separator, so an id is never a path.
RECORD_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{7,159}")


class StoreError(FlagbenchError):
    """A store that did not take a record (NOT_STORED) or gave back a damaged or absent one (DATA)."""

    def __init__(self, message: str, *, remedy: str, code: ExitCode = ExitCode.NOT_STORED) -> None:
        super().__init__(message, remedy=remedy, code=code)


@dataclass(frozen=True)
class StoredRecord:
    """Where a record lies, with what is known of it without reading all of it."""

    record_id: str
    case: str
    stack: str
    created_at: str
    """UTC, as in the record; the start of its day where the record itself is damaged, empty without a day."""
    location: str
    """For a person: the file, or the object's URL."""
    problem: str | None = None
    """Why the store cannot have put this here: it is not a file, for example. None for a record, damaged or not."""


@dataclass(frozen=True)
class Health:
    """Whether a store can be used now; `remedy` says what to do where it cannot."""

    ok: bool
    detail: str
    remedy: str | None = None
    writable: bool = True
    """Whether a record could be put: a store that is not ok for another reason still takes one."""


class Store(Protocol):
    """A place that keeps records unchanged, each under its id."""

    @property
    def url(self) -> str:
        """The store's address, as `open_store` takes it."""

    def put(self, record: bytes) -> StoredRecord:
        """Keep a record byte for byte. Idempotent: the same bytes again change nothing.

        Raises RecordError where the bytes are no valid record, and StoreError (NOT_STORED) where they
        could not be kept or where other bytes are already kept under the same id.
        """

    def get(self, record_id: str) -> bytes:
        """The bytes that were put.

        Raises StoreError (DATA) where they are absent, have changed, or are another record's: of another id, case,
        stack or day than those they lie under.
        """

    def find(self, prefix: str) -> list[str]:
        """The ids of stored records that begin with `prefix`, each once, in order."""

    def read(self, entry: StoredRecord) -> bytes:
        """The bytes of a listed record, checked as `get` does."""

    def list(self, case: str | None = None, stack: str | None = None) -> Iterator[StoredRecord]:
        """The records of a case and a stack, or of all, newest first, and what else is found where records should be.

        Raises StoreError (USAGE) where the address can be no store; a store that is not there yet has none.
        """

    def last(self) -> StoredRecord | None:
        """The newest record, or None in an empty store; what the store never put here is skipped."""

    def health(self) -> Health:
        """Whether records could be put now, found out without leaving anything behind."""


def check_record_id(record_id: str) -> str:
    """The id itself. Raises StoreError (USAGE) for one that no record can have, a path among them."""
    if not RECORD_ID.fullmatch(record_id):
        raise StoreError(
            f"'{brief(record_id)}' is not a record id",
            remedy="`flagbench results ls` shows the ids of the stored records",
            code=ExitCode.USAGE,
        )
    return record_id
