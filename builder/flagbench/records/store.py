"""A store of records: puts, finds, lists and removes the results of runs, in a folder or in a bucket.

`open_store` is where commands start. A record is stored once, under a key made of its case, stack, day and id
(`store_keys`), and never changed. The objects themselves are kept by an adapter of `Blobs`: `FolderBlobs` or
`BucketBlobs`. A listing takes what it can from a cache (`index`) and opens only records that are not in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from flagbench.console.output import counted
from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.records.blobs import Blob, Blobs, Health, IdTaken, ListingDenied, StoreError, Unread, damaged
from flagbench.records.bucket_blobs import BucketBlobs, request_errors, store_errors
from flagbench.records.bundles import Bundles
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.index import Index, Summary, summary_of
from flagbench.records.model import Record
from flagbench.records.read import MAX_RECORD_BYTES, parse, read_record, to_record
from flagbench.records.scalars import SHORT_ID
from flagbench.records.store_keys import Place, check_record_id, parse_key, prefix
from flagbench.system.user_folders import data_folder
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact
from flagbench_core.s3 import parse_address
from flagbench_core.store_layout import AddressError, folder_of

STORE_VARIABLE = "FLAGBENCH_STORE"
"""The environment variable with the address of the store that commands use without --store."""
_OBJECTS_PER_READER = 4
"""Objects that each reader of a server is given at a time: enough to keep it busy, few enough for the memory."""
Argument = TypeVar("Argument")
Result = TypeVar("Result")


@dataclass(frozen=True)
class StoredRecord:
    """An entry of a listing: a record, or another file that was found among the records."""

    record_id: str
    case: str
    stack: str
    created_at: str
    """The time in the record, UTC; for a damaged record the start of its day, and empty if its key has no day."""
    location: str
    """The path of the file or the URL of the object, as a person reads it."""
    blob: Blob
    """The object that holds the record."""
    error: str | None = None
    """Why the record cannot be read: what is damaged, or the `problem`. None for a record that was read."""
    unread: bool = False
    """Whether the record could not be fetched from the store: it may be sound."""
    summary: Summary | None = None
    """What a listing shows of the record; None for a record that cannot be read."""

    @property
    def problem(self) -> str | None:
        """Why the store cannot have put this here, such as `it is not a file`; None for a record, damaged or not."""
        return self.blob.problem


class ReadRecord(NamedTuple):
    """A record that was read from a store."""

    content: bytes
    """Its bytes, as they were stored."""
    record: Record


class Store:
    """Records, each stored once and never changed."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        """The objects of the store, by key."""
        self.bundles = Bundles(blobs)
        """The bundles of the store: archives of the files that the nodes of a run kept, next to its record."""

    @property
    def url(self) -> str:
        """The store's address, as `open_store` takes it."""
        return self.blobs.url

    @property
    def missing(self) -> bool:
        """Whether the store is a folder that does not exist yet; the first `put` makes it."""
        return isinstance(self.blobs, FolderBlobs) and not self.blobs.root.exists()

    def put(self, record: bytes, *, stored_keys: dict[str, set[str]] | None = None) -> StoredRecord:
        """Store a record byte for byte. Storing the same bytes again changes nothing.

        Args:
            stored_keys: what `keys` returned, for a caller that stores many records. The new key is added to it.

        Raises RecordError if the bytes are not a valid record, and StoreError (NOT_STORED) if they could not be
        stored: its subclass IdTaken if another record has the same id.
        """
        parsed = read_record(record)
        place = Place(parsed.case, parsed.stack, parsed.day, parsed.record_id)
        key = place.key
        keys = stored_keys
        if keys is None:
            keys = self.keys()
        # An object cannot be put over another one, but the same id could be in the folder of another day or case.
        other_keys = keys.get(place.record_id, set()) - {key}
        if other_keys:
            raise self._id_taken(place.record_id, min(other_keys))
        if not self.blobs.put_if_absent(key, record):
            raise self._id_taken(place.record_id, key)
        keys.setdefault(place.record_id, set()).add(key)
        return self._stored_record(place, Blob(key), parsed.created_at)

    def _id_taken(self, record_id: str, key: str) -> IdTaken:
        return IdTaken(
            f"another record is already stored as {record_id} ({self.blobs.location(key)})",
            remedy="compare the two: a record's id is made once, and stored records never change",
        )

    def keys(self) -> dict[str, set[str]]:
        """Return the keys of each stored id: several if records of other cases, stacks or days have the same id.

        Two writers that put the same id into different folders at the same time may both succeed, because no single
        name stands for the id. The result is empty if the store denies listing. Raises StoreError (NOT_STORED).
        """
        keys: dict[str, set[str]] = {}
        try:
            for place, _ in self._objects():
                keys.setdefault(place.record_id, set()).add(place.key)
        except ListingDenied:
            return {}
        except StoreError as error:
            # For `put`, the code is NOT_STORED, whatever that of a listing is.
            raise StoreError(error.message, remedy=error.remedy) from error
        return keys

    def get(self, record_id: str) -> bytes:
        """Return the bytes of a stored record.

        Raises StoreError (DATA) if no record has the id, if the bytes have changed, or if they are another record's:
        with another id, case, stack or day than those in the key.
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
                return self._get_checked(blob)
        return self._get_checked(blobs[-1])

    def get_at(self, place: Place) -> bytes:
        """Return the bytes of the record at a place, without a search for its id. Raises StoreError as `get` does."""
        return self._get_checked(Blob(place.key))

    def find(self, part: str) -> list[str]:
        """Return the ids of stored records that begin with `part`, sorted.

        If `part` is a short id (8 hex digits), ids that end with it are found, too.
        """
        is_short_id = re.fullmatch(SHORT_ID, part) is not None
        record_ids = set()
        for place, blob in self._objects():
            if blob.problem is not None:
                continue
            if place.record_id.startswith(part) or (is_short_id and place.record_id.endswith(f"-{part}")):
                record_ids.add(place.record_id)
        return sorted(record_ids)

    def read(self, record: StoredRecord) -> bytes:
        """Return the bytes of a listed record. Raises StoreError as `get` does."""
        content = self._fetch(record)
        self._parse_checked(record.blob, content)
        return content

    def read_one(self, entry: StoredRecord) -> ReadRecord:
        """Return the record of an entry. Raises StoreError as `get` does, or RecordError if it is not valid."""
        return self._to_read_record(entry, self._fetch(entry))

    def read_all(self, entries: Iterable[StoredRecord]) -> Iterator[tuple[StoredRecord, ReadRecord | FlagbenchError]]:
        """Yield each entry with its record, or with the error of reading it.

        From a server, several are fetched at a time. They are parsed as the caller iterates: a parsed record takes
        many times the memory of its bytes.
        """

        def fetch(entry: StoredRecord) -> tuple[StoredRecord, bytes | FlagbenchError]:
            try:
                return entry, self._fetch(entry)
            except FlagbenchError as error:
                return entry, error

        for entry, content in self._map(fetch, entries):
            if isinstance(content, FlagbenchError):
                yield entry, content
                continue
            try:
                read = self._to_read_record(entry, content)
            except FlagbenchError as error:
                yield entry, error
                continue
            yield entry, read

    def list_records(self, case: str | None = None, *stacks: str) -> Iterator[StoredRecord]:
        """Yield the records of a case and of stacks, the newest first, then other files in the records' folders.

        Without arguments, all records are listed. Only records that are not in the index are opened, day by day as
        the caller iterates. Records that the listing does not find any more are removed from the index.

        Raises StoreError as `Blobs.list`. A store that does not exist yet has no records.
        """
        objects = list(self._objects(case, *stacks))
        index = Index(self.blobs)
        # Otherwise only some objects below the prefix are listed: a record that is not among them may still exist.
        lists_all_below_prefix = not stacks or (case is not None and len(stacks) == 1)
        if lists_all_below_prefix:
            index.drop_missing(prefix(case=case, stack=_only(stacks)), (blob.key for _, blob in objects))
        newest_day_first = sorted(objects, key=_day, reverse=True)
        with_progress = counted(newest_day_first, len(objects), "reading records")
        try:
            for _, same_day in groupby(with_progress, key=_day):
                records = self._read_records(same_day, index)
                yield from sorted(records, key=_time_and_id, reverse=True)
        finally:
            index.save()  # also if the caller stops early: what was read need not be read again

    def count(self, case: str | None = None, *stacks: str) -> int:
        """Return how many entries `list_records` would yield. No record is opened."""
        return sum(1 for _ in self._objects(case, *stacks))

    def remember(self, records: Iterable[StoredRecord]) -> None:
        """Save the summaries of listed records in the index, with their verdicts."""
        index = Index(self.blobs)
        for record in records:
            if record.summary is not None:
                index.put(record.blob.key, record.blob.stamp, record.summary)
        index.save()

    def remove(self, record: StoredRecord) -> None:
        """Delete a listed record. Raises StoreError (NOT_STORED) if that is not possible."""
        self.blobs.delete(record.blob.key)

    def health(self) -> Health:
        """Return whether records could be put now. The check leaves nothing behind."""
        return self.blobs.health()

    def check_keeps(self) -> None:
        """Check before a run that a bucket keeps what is put there; a folder is not checked.

        Unlike `health`, it puts an object, a small one that stays there.

        Raises StoreError (USAGE) if it does not, and StoreError (ENGINE) if it cannot be reached.
        """
        if isinstance(self.blobs, BucketBlobs):
            with request_errors():
                self.blobs.bucket.check_keeps()

    def _objects(self, case: str | None = None, *stacks: str) -> Iterator[tuple[Place, Blob]]:
        """Yield everything in the folders of the records of a case and of stacks, without opening it.

        What cannot be a record has a `problem`. Sound objects outside the layout, such as the index, are left out.
        """
        for blob in self.blobs.list(prefix(case=case, stack=_only(stacks))):
            place = parse_key(blob.key)
            if place is None and blob.problem is None:
                continue
            if place is None:
                place = _partial_place(blob.key)
            of_case = case is None or place.case == case
            of_stack = not stacks or place.stack in stacks
            if of_case and of_stack:
                yield place, replace(blob, problem=blob.problem or place.problem)

    def _read_records(self, objects: Iterable[tuple[Place, Blob]], index: Index) -> Iterator[StoredRecord]:
        """Yield the objects as listed records. Those not in the index are read, several at a time from a server."""

        def read(listed: tuple[Place, Blob]) -> StoredRecord:
            place, blob = listed
            return self._read_record(place, blob, index)

        return self._map(read, objects)

    def _map(self, read: Callable[[Argument], Result], arguments: Iterable[Argument]) -> Iterator[Result]:
        """Yield the result of `read` for each argument, in order.

        From a server, several are read at a time, and few of them are in memory.
        """
        readers = self.blobs.readers
        if readers < 2:
            yield from map(read, arguments)
            return
        remaining = iter(arguments)
        with ThreadPoolExecutor(readers) as pool:
            while batch := list(islice(remaining, _OBJECTS_PER_READER * readers)):
                yield from pool.map(read, batch)

    def _read_record(self, place: Place, blob: Blob, index: Index) -> StoredRecord:
        """Return an object as a listed record.

        If the index has no summary of the object, it is opened, and its summary is put into the index.
        """
        created_at = ""
        if place.day:
            created_at = f"{place.day}T00:00:00Z"
        # A record that was damaged after it was listed keeps its position among the others.
        listed_before = index.get(blob.key)
        if listed_before is not None:
            created_at = listed_before.created_at
        if blob.problem is not None:
            return replace(self._stored_record(place, blob, created_at), error=blob.problem)
        summary = index.get(blob.key, blob.stamp)
        if summary is None:
            try:
                content = self.blobs.get(blob.key, MAX_RECORD_BYTES)
                summary = summary_of(to_record(self._parse_checked(blob, content)))
            except FlagbenchError as error:
                unread = isinstance(error, Unread)
                return replace(self._stored_record(place, blob, created_at), error=error.message, unread=unread)
            index.put(blob.key, blob.stamp, summary)
        return replace(self._stored_record(place, blob, summary.created_at), summary=summary)

    def _stored_record(self, place: Place, blob: Blob, created_at: str) -> StoredRecord:
        location = self.blobs.location(blob.key)
        return StoredRecord(place.record_id, place.case, place.stack, created_at, location, blob)

    def _get_checked(self, blob: Blob) -> bytes:
        """Return the bytes of a record. Raises StoreError as `_parse_checked` does."""
        content = self.blobs.get(blob.key, MAX_RECORD_BYTES)
        self._parse_checked(blob, content)
        return content

    def _fetch(self, entry: StoredRecord) -> bytes:
        """Return the bytes of a listed record unchecked. Raises StoreError if it is no record or cannot be read."""
        if entry.problem is not None:
            raise damaged(entry.location, f"is not a record: {entry.problem}")
        return self.blobs.get(entry.blob.key, MAX_RECORD_BYTES)

    def _to_read_record(self, entry: StoredRecord, content: bytes) -> ReadRecord:
        """Parse, check and validate the content of an entry. Raises StoreError or RecordError."""
        return ReadRecord(content, to_record(self._parse_checked(entry.blob, content)))

    def _parse_checked(self, blob: Blob, content: bytes) -> dict[str, Any]:
        """Parse a record and check that it is the one that its key names.

        Raises StoreError (DATA), or RecordError if it is not a record.
        """
        location = self.blobs.location(blob.key)
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
                problem = f"is not the record named by its path: its {name} is {brief(in_content[name])}"
                raise damaged(location, problem)
        return raw


def _only(names: tuple[str, ...]) -> str | None:
    """Return the only name; None if there are several or none."""
    if len(names) != 1:
        return None
    return names[0]


def _day(listed: tuple[Place, Blob]) -> str:
    """Return the day of an object as a sort key; it is empty, and so the oldest, for one without a valid day."""
    place, _ = listed
    if place.problem is not None:
        return ""
    return place.day


def _time_and_id(record: StoredRecord) -> tuple[str, str]:
    """Return the sort key of the records of a day."""
    return record.created_at, record.record_id


def _partial_place(key: str) -> Place:
    """Return the case and the stack in the path of something that is not a record, such as an unreadable folder."""
    case = "-"
    stack = "-"
    parts = key.split("/")
    for part in reversed(parts):  # of several folders with the same beginning, the uppermost counts
        if part.startswith("case="):
            case = part.removeprefix("case=")
        elif part.startswith("stack="):
            stack = part.removeprefix("stack=")
    return Place(case, stack, "", parts[-1])


def open_store(url: str | None = None) -> Store:
    """Return the store at `url`, else at FLAGBENCH_STORE, else in the user's data folder. Nothing is created.

    Args:
        url: a plain path, `file:///path` or `s3://bucket/prefix`.

    Raises StoreError (USAGE) for any other address.
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


def _unusable(address: str, reason: str, remedy: str) -> StoreError:
    return StoreError(f"the store {redact(address)} cannot be used: {reason}", remedy=remedy, code=ExitCode.USAGE)
