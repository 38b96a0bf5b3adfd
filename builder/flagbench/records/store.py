"""A store: records kept unchanged, each under its id, in a place for blobs."""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import TypeVar

from flagbench.console.output import counted
from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.records.blobs import Blob, Blobs, Health, IdTaken, ListingDenied, StoreError, Unread, damaged
from flagbench.records.bucket_blobs import BucketBlobs, request_errors, store_errors
from flagbench.records.bundles import Bundles
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.index import Index, Summary, summary_of
from flagbench.records.read import MAX_RECORD_BYTES, parse, read_record
from flagbench.records.scalars import SHORT_ID
from flagbench.records.store_keys import Place, check_record_id, parse_key, prefix
from flagbench.system.user_folders import data_folder
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact
from flagbench_core.s3 import parse_address
from flagbench_core.store_layout import AddressError, folder_of

STORE_VARIABLE = "FLAGBENCH_STORE"
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class StoredRecord:
    """A listed record."""

    record_id: str
    case: str
    stack: str
    created_at: str
    """UTC, as in the record; the start of its day where the record is damaged, empty without a day."""
    location: str
    """The file, or the object's URL, for a person."""
    blob: Blob
    """The object that holds it."""
    error: str | None = None
    """Why the record cannot be read: what is damaged, or the problem."""
    unread: bool = False
    """Whether it may be sound: the store did not give it."""
    summary: Summary | None = None
    """What a listing shows; None for a record that cannot be read."""

    @property
    def problem(self) -> str | None:
        """Why the store cannot have put this here, such as `it is not a file`; None for a record, damaged or not."""
        return self.blob.problem


class Store:
    """Records, each stored once and never changed."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self.bundles = Bundles(blobs)
        """What the nodes of its runs kept, beside the records."""

    @property
    def url(self) -> str:
        """The store's address, as `open_store` takes it."""
        return self.blobs.url

    @property
    def missing(self) -> bool:
        """Whether this is a folder that does not exist: the first record stored makes it."""
        return isinstance(self.blobs, FolderBlobs) and not self.blobs.root.exists()

    def put(self, record: bytes, *, known: builtins.dict[str, set[str]] | None = None) -> StoredRecord:
        """Store a record byte for byte. Idempotent: the same bytes again change nothing.

        `known`: what `keys` returned, for a caller that stores many; it is kept up to date.

        Raises RecordError where the bytes are not a valid record, StoreError (NOT_STORED) where they could not be
        kept, and of these IdTaken where other bytes are already kept under the same id.
        """
        parsed = read_record(record)
        place = Place(parsed.case, parsed.stack, parsed.created_at[:10], parsed.record_id)
        key = place.key
        taken = sorted((self.keys() if known is None else known).get(place.record_id, set()) - {key})
        if taken or not self.blobs.put_if_absent(key, record):
            raise IdTaken(
                f"another record is already stored as {place.record_id} ({self.blobs.location((*taken, key)[0])})",
                remedy="compare the two: a record's id is made once, and stored records never change",
            )
        if known is not None:
            known.setdefault(place.record_id, set()).add(key)
        return self._stored(place, Blob(key), parsed.created_at)

    def keys(self) -> builtins.dict[str, set[str]]:
        """The keys of each stored id: more than one where its record is stored for another case, stack or day, too.

        Two puts at the very same time may both find none: no single name stands for the id across folders. A store
        that shows nothing has none. Raises StoreError (NOT_STORED).
        """
        found: dict[str, set[str]] = {}
        try:
            for place, _ in self._objects():
                found.setdefault(place.record_id, set()).add(place.key)
        except ListingDenied:
            return {}
        except StoreError as error:
            raise StoreError(error.message, remedy=error.remedy) from error
        return found

    def get(self, record_id: str) -> bytes:
        """The bytes that were put.

        Raises StoreError (DATA) where they are absent, have changed, or are another record's: of another id, case,
        stack or day than those they are stored under.
        """
        check_record_id(record_id)
        blobs = [blob for place, blob in self._objects() if place.record_id == record_id]
        if not blobs:
            raise StoreError(
                f"there is no record '{record_id}' in {self.url}",
                remedy="`flagbench results ls` shows the stored records; --store names another store",
                code=ExitCode.DATA,
            )
        for blob in blobs[:-1]:
            with suppress(FlagbenchError):  # a copy in the wrong place must not hide the record itself
                return self._load(blob)
        return self._load(blobs[-1])

    def get_at(self, place: Place) -> bytes:
        """The record at a place, checked as `get` does, without a search for it. Raises StoreError (DATA)."""
        return self._load(Blob(place.key))

    def find(self, part: str) -> builtins.list[str]:
        """The ids of stored records that begin with `part` or, if it is a short id, end with it: once, in order."""
        ids = {place.record_id for place, blob in self._objects() if blob.problem is None}
        found = {record_id for record_id in ids if record_id.startswith(part)}
        if re.fullmatch(SHORT_ID, part):
            found |= {record_id for record_id in ids if record_id.endswith(f"-{part}")}
        return sorted(found)

    def read(self, entry: StoredRecord) -> bytes:
        """The bytes of a listed record, checked as `get` does."""
        if entry.problem is not None:
            raise damaged(entry.location, f"is not a record: {entry.problem}")
        return self._load(entry.blob)

    def read_all(self, entries: Iterable[StoredRecord]) -> Iterator[tuple[StoredRecord, bytes | FlagbenchError]]:
        """Each listed record with its bytes, or with why it has none; from a server several are read at a time."""

        def read(entry: StoredRecord) -> tuple[StoredRecord, bytes | FlagbenchError]:
            try:
                return entry, self.read(entry)
            except FlagbenchError as error:
                return entry, error

        yield from self._several(read, entries)

    def list(self, case: str | None = None, *stacks: str) -> Iterator[StoredRecord]:
        """The records of a case and of stacks, or of all, newest first; then what else is found where records are.

        Opens only records that the index does not know, and of them only those of the days that are asked for.
        Raises StoreError as `Blobs.list`; a store that does not exist yet has no records.
        """
        found = [*self._objects(case, *stacks)]
        index = Index(self.blobs)
        if not stacks or (case is not None and len(stacks) == 1):
            index.drop_missing(prefix(case=case, stack=_only(stacks)), (blob.key for _, blob in found))
        progress = counted(found, len(found), "reading records")
        try:
            for _, same_day in groupby(sorted(found, key=_day, reverse=True), key=_day):
                entries = [entry for entry, _ in zip(self._entries([*same_day], index), progress, strict=False)]
                yield from sorted(entries, key=lambda entry: (entry.created_at, entry.record_id), reverse=True)
        finally:
            index.save()

    def count(self, case: str | None = None, *stacks: str) -> int:
        """How many records `list` would yield. Opens none."""
        return sum(1 for _ in self._objects(case, *stacks))

    def remember(self, entries: Iterable[StoredRecord]) -> None:
        """Save the summaries of listed records, with their verdicts, in the index."""
        index = Index(self.blobs)
        for entry in entries:
            if entry.summary is not None:
                index.put(entry.blob.key, entry.blob.stamp, entry.summary)
        index.save()

    def remove(self, entry: StoredRecord) -> None:
        """Delete a listed record. Raises StoreError (NOT_STORED) where that is not possible."""
        self.blobs.delete(entry.blob.key)

    def health(self) -> Health:
        """Whether records could be put now, found out without leaving anything behind."""
        return self.blobs.health()

    def check_keeps(self) -> None:
        """Find out before a run whether a bucket keeps what is put there: `health` writes nothing to one.

        Raises StoreError: (usage), (network).
        """
        if isinstance(self.blobs, BucketBlobs):
            with request_errors():
                self.blobs.bucket.check_keeps()

    def _objects(self, case: str | None = None, *stacks: str) -> Iterator[tuple[Place, Blob]]:
        """Everything found where records of a case and of stacks are kept, unopened.

        What cannot be a record has a `problem`; sound objects outside the layout are left out.
        """
        for blob in self.blobs.list(prefix(case=case, stack=_only(stacks))):
            place = parse_key(blob.key)
            if place is None and blob.problem is None:
                continue
            if place is None:
                place = _partial_place(blob.key)
            if case in (None, place.case) and (not stacks or place.stack in stacks):
                yield place, replace(blob, problem=blob.problem or place.problem)

    def _entries(self, found: builtins.list[tuple[Place, Blob]], index: Index) -> Iterator[StoredRecord]:
        """Each as a listed record. Those that the index does not know are read, several at a time from a server."""
        return self._several(lambda pair: self._entry(pair[0], pair[1], index), found)

    def _several(self, read: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """What `read` makes of each; on a server for several at a time, and no more of them in memory."""
        readers = self.blobs.readers
        if readers < 2:
            yield from map(read, items)
            return
        left = iter(items)
        with ThreadPoolExecutor(readers) as pool:
            while batch := [*islice(left, 4 * readers)]:
                yield from pool.map(read, batch)

    def _entry(self, place: Place, blob: Blob, index: Index) -> StoredRecord:
        summary, error, unread = None, blob.problem, False
        if error is None and (summary := index.get(blob.key, blob.stamp)) is None:
            try:
                summary = summary_of(read_record(self._load(blob)))
                index.put(blob.key, blob.stamp, summary)
            except FlagbenchError as failure:
                error, unread = failure.message, isinstance(failure, Unread)
        # A record that was damaged since it was listed keeps its rank among the others.
        known = summary or index.get(blob.key)
        created_at = known.created_at if known else f"{place.day}T00:00:00Z" if place.day else ""
        return replace(self._stored(place, blob, created_at), error=error, unread=unread, summary=summary)

    def _stored(self, place: Place, blob: Blob, created_at: str) -> StoredRecord:
        location = self.blobs.location(blob.key)
        return StoredRecord(place.record_id, place.case, place.stack, created_at, location, blob)

    def _load(self, blob: Blob) -> bytes:
        """The bytes of a record, checked against its key."""
        location = self.blobs.location(blob.key)
        content = self.blobs.get(blob.key, MAX_RECORD_BYTES)
        raw = parse(content, f"the stored record {location}")
        place = parse_key(blob.key)
        if place is None or place.problem:
            raise damaged(location, f"is not in a valid place: {place and place.problem}")
        for name, expected in vars(place).items():
            value = str(raw.get(name)) if name != "day" else str(raw.get("created_at"))[:10]
            if value != expected:
                raise damaged(location, f"is not the record named by its path: its {name} is {brief(value)}")
        return content


def _only(names: tuple[str, ...]) -> str | None:
    return names[0] if len(names) == 1 else None


def _day(found: tuple[Place, Blob]) -> str:
    """Sort key: records by day; what has no valid day comes last."""
    place, blob = found
    return place.day if blob.problem is None or place.problem is None else ""


def _partial_place(key: str) -> Place:
    """What is known of the path of something other than a record, such as an unreadable folder."""
    parts = key.split("/")
    case, stack = (
        next((part.removeprefix(name) for part in parts if part.startswith(name)), "-")
        for name in ("case=", "stack=")
    )
    return Place(case, stack, "", parts[-1])


def open_store(url: str | None = None) -> Store:
    """The store at `url`, else at FLAGBENCH_STORE, else in the user's data folder. Creates nothing.

    `url` is a plain path, `file:///path` or `s3://bucket/prefix`. Raises StoreError (usage) for any other address.
    """
    address = url or os.environ.get(STORE_VARIABLE) or str(data_folder() / "store")
    if address.lower().startswith("s3:"):
        with store_errors():
            return Store(BucketBlobs(parse_address(address)))
    try:
        return Store(FolderBlobs(Path(folder_of(address))))
    except AddressError as error:
        raise _unusable(address, str(error), error.remedy) from error
    except FileNotFoundError as error:
        raise _unusable(address, "the current folder no longer exists", "change to another folder") from error


def _unusable(address: str, why: str, remedy: str) -> StoreError:
    return StoreError(f"the store {redact(address)} cannot be used: {why}", remedy=remedy, code=ExitCode.USAGE)
