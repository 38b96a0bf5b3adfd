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
Argument = TypeVar("Argument")
Content = TypeVar("Content")


@dataclass(frozen=True)
class StoredRecord:
    """A listed record."""

    record_id: str
    case: str
    stack: str
    created_at: str
    """UTC, as in the record; the start of its day if the record is damaged, empty without a day."""
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

    def put(self, record: bytes, *, stored_keys: builtins.dict[str, set[str]] | None = None) -> StoredRecord:
        """Store a record byte for byte. Idempotent: the same bytes again change nothing.

        `stored_keys`: what `keys` returned, for a caller that stores many records; `put` adds to it.

        Raises RecordError if the bytes are not a valid record, StoreError (NOT_STORED) if they could not be kept, and
        of these IdTaken if other bytes are already kept under the same id.
        """
        parsed = read_record(record)
        place = Place(parsed.case, parsed.stack, parsed.created_at[:10], parsed.record_id)
        key = place.key
        keys = stored_keys
        if keys is None:
            keys = self.keys()
        other_keys = keys.get(place.record_id, set()) - {key}
        if other_keys:
            raise self._id_taken(place.record_id, min(other_keys))
        if not self.blobs.put_if_absent(key, record):
            raise self._id_taken(place.record_id, key)
        keys.setdefault(place.record_id, set()).add(key)
        return self._stored(place, Blob(key), parsed.created_at)

    def _id_taken(self, record_id: str, key: str) -> IdTaken:
        return IdTaken(
            f"another record is already stored as {record_id} ({self.blobs.location(key)})",
            remedy="compare the two: a record's id is made once, and stored records never change",
        )

    def keys(self) -> builtins.dict[str, set[str]]:
        """The keys of each stored id: more than one where its record is stored for another case, stack or day, too.

        Two puts at the very same time may both find none: no single name stands for the id across folders. Empty if
        the store denies listing. Raises StoreError (NOT_STORED).
        """
        keys: dict[str, set[str]] = {}
        try:
            for place, _ in self._objects():
                keys.setdefault(place.record_id, set()).add(place.key)
        except ListingDenied:
            return {}
        except StoreError as error:
            raise StoreError(error.message, remedy=error.remedy) from error
        return keys

    def get(self, record_id: str) -> bytes:
        """The bytes that were put.

        Raises StoreError (DATA) if they are absent, have changed, or are another record's: of another id, case,
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
        is_short_id = re.fullmatch(SHORT_ID, part) is not None
        record_ids = set()
        for place, blob in self._objects():
            if blob.problem is not None:
                continue
            if place.record_id.startswith(part) or (is_short_id and place.record_id.endswith(f"-{part}")):
                record_ids.add(place.record_id)
        return sorted(record_ids)

    def read(self, record: StoredRecord) -> bytes:
        """The bytes of a listed record, checked as `get` does."""
        if record.problem is not None:
            raise damaged(record.location, f"is not a record: {record.problem}")
        return self._load(record.blob)

    def read_all(self, records: Iterable[StoredRecord]) -> Iterator[tuple[StoredRecord, bytes | FlagbenchError]]:
        """Each listed record with its bytes, or the error of reading it; from a server several are read at a time."""

        def read(record: StoredRecord) -> tuple[StoredRecord, bytes | FlagbenchError]:
            try:
                return record, self.read(record)
            except FlagbenchError as error:
                return record, error

        yield from self._map(read, records)

    def list(self, case: str | None = None, *stacks: str) -> Iterator[StoredRecord]:
        """The records of a case and of stacks, or of all, newest first; then other files in the records' folders.

        Opens only records that are not in the index, day by day as the caller iterates. Raises StoreError as
        `Blobs.list`; a store that does not exist yet has no records.
        """
        objects = [*self._objects(case, *stacks)]
        index = Index(self.blobs)
        if not stacks or (case is not None and len(stacks) == 1):
            index.drop_missing(prefix(case=case, stack=_only(stacks)), (blob.key for _, blob in objects))
        progress = counted(objects, len(objects), "reading records")
        try:
            for _, same_day in groupby(sorted(objects, key=_day, reverse=True), key=_day):
                records = []
                for record in self._read_records([*same_day], index):
                    next(progress, None)
                    records.append(record)
                yield from sorted(records, key=lambda record: (record.created_at, record.record_id), reverse=True)
        finally:
            index.save()

    def count(self, case: str | None = None, *stacks: str) -> int:
        """How many records `list` would yield. Opens none."""
        return sum(1 for _ in self._objects(case, *stacks))

    def remember(self, records: Iterable[StoredRecord]) -> None:
        """Save the summaries of listed records, with their verdicts, in the index."""
        index = Index(self.blobs)
        for record in records:
            if record.summary is not None:
                index.put(record.blob.key, record.blob.stamp, record.summary)
        index.save()

    def remove(self, record: StoredRecord) -> None:
        """Delete a listed record. Raises StoreError (NOT_STORED) if that is not possible."""
        self.blobs.delete(record.blob.key)

    def health(self) -> Health:
        """Whether records could be put now; the check leaves nothing behind."""
        return self.blobs.health()

    def check_keeps(self) -> None:
        """Check before a run that a bucket keeps what is put there: `health` writes nothing to a bucket.

        Raises StoreError: (usage), (network).
        """
        if isinstance(self.blobs, BucketBlobs):
            with request_errors():
                self.blobs.bucket.check_keeps()

    def _objects(self, case: str | None = None, *stacks: str) -> Iterator[tuple[Place, Blob]]:
        """Everything in the folders of the records of a case and of stacks, unopened.

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

    def _read_records(self, objects: builtins.list[tuple[Place, Blob]], index: Index) -> Iterator[StoredRecord]:
        """The objects as listed records. Those not in the index are read, several at a time from a server."""

        def read(listed: tuple[Place, Blob]) -> StoredRecord:
            place, blob = listed
            return self._read_record(place, blob, index)

        return self._map(read, objects)

    def _map(self, read: Callable[[Argument], Content], arguments: Iterable[Argument]) -> Iterator[Content]:
        """`read` of each argument, in order; on a server several at a time, with few of them in memory."""
        readers = self.blobs.readers
        if readers < 2:
            yield from map(read, arguments)
            return
        remaining = iter(arguments)
        with ThreadPoolExecutor(readers) as pool:
            while batch := [*islice(remaining, 4 * readers)]:
                yield from pool.map(read, batch)

    def _read_record(self, place: Place, blob: Blob, index: Index) -> StoredRecord:
        """An object as a listed record; it is opened if the index has no summary of its content."""
        created_at = ""
        if place.day:
            created_at = f"{place.day}T00:00:00Z"
        # A record that was damaged after it was listed keeps its position among the others.
        listed_before = index.get(blob.key)
        if listed_before is not None:
            created_at = listed_before.created_at
        if blob.problem is not None:
            return replace(self._stored(place, blob, created_at), error=blob.problem)
        summary = index.get(blob.key, blob.stamp)
        if summary is None:
            try:
                summary = summary_of(read_record(self._load(blob)))
            except FlagbenchError as error:
                unread = isinstance(error, Unread)
                return replace(self._stored(place, blob, created_at), error=error.message, unread=unread)
            index.put(blob.key, blob.stamp, summary)
        return replace(self._stored(place, blob, summary.created_at), summary=summary)

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
        in_content = {
            "case": str(raw.get("case")),
            "stack": str(raw.get("stack")),
            "day": str(raw.get("created_at"))[:10],
            "record_id": str(raw.get("record_id")),
        }
        for name, expected in vars(place).items():
            if in_content[name] != expected:
                what = f"is not the record named by its path: its {name} is {brief(in_content[name])}"
                raise damaged(location, what)
        return content


def _only(names: tuple[str, ...]) -> str | None:
    """The name, if there is only one."""
    if len(names) != 1:
        return None
    return names[0]


def _day(listed: tuple[Place, Blob]) -> str:
    """Sort key: records by day; what has no valid day comes last."""
    place, blob = listed
    if blob.problem is not None and place.problem is not None:
        return ""
    return place.day


def _partial_place(key: str) -> Place:
    """The case and the stack in the path of something that is not a record, such as an unreadable folder."""
    case = stack = "-"
    parts = key.split("/")
    for part in reversed(parts):  # the first one counts
        if part.startswith("case="):
            case = part.removeprefix("case=")
        elif part.startswith("stack="):
            stack = part.removeprefix("stack=")
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
