"""What holders of tickets uploaded, checked and moved to where records and bundles are kept.

Nothing in the inbox is a record. An upload is read, checked, put into the layout (its bundles first, then the record,
each put-if-absent), and only then an empty object, a mark, takes its place. So a kill at any point loses nothing, and
two collectors do the same twice. A mark and not a deletion: as long as something is there, the ticket cannot be used
again. Marks are deleted once no ticket can be valid any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import reason
from flagbench.record.model import Record
from flagbench.record.read import MAX_BYTES, read_record
from flagbench.s3 import S3Error, download, sha256_of
from flagbench.stores.archive import BundleError, read_origin, unpacked
from flagbench.stores.blobs import StoreError, Unread
from flagbench.stores.bucket import BucketBlobs, request_errors, store_errors
from flagbench.stores.issue_ticket import LONGEST
from flagbench.stores.layout import BundlePlace, InboxPlace, inbox_prefix, parse_inbox_key
from flagbench.stores.records import Store
from flagbench.terminal import brief

_OUTLIVES = timedelta(seconds=LONGEST) + timedelta(days=1)


@dataclass
class Collected:
    """What became of the uploads of a run."""

    run_id: str
    record_id: str | None = None
    location: str | None = None
    """Of the record, for a person."""
    bundles: int = 0
    problems: list[str] = field(default_factory=list)
    """Why something stays in the inbox."""


class _Gone(Exception):
    """Another collector was first."""


class Inbox:
    """The uploads of a bucket."""

    def __init__(self, store: Store) -> None:
        """Raises FlagbenchError (usage) where the store is not a bucket."""
        if not isinstance(store.blobs, BucketBlobs):
            raise FlagbenchError(
                f"{store.url} is not a bucket: only a bucket has an inbox", remedy="give --store s3://BUCKET/PREFIX"
            )
        self._store, self._bucket = store, store.blobs.bucket

    def waiting(self, run_ids: Sequence[str] = ()) -> dict[str, list[InboxPlace]]:
        """What waits of those runs, or of all, by run id. Deletes old marks on the way. Raises StoreError."""
        found: dict[str, list[InboxPlace]] = {}
        end = datetime.now(timezone.utc) - _OUTLIVES
        with request_errors():
            for prefix in [inbox_prefix(run_id) for run_id in run_ids] or [inbox_prefix()]:
                for entry in self._bucket.list(prefix):
                    place = parse_inbox_key(entry.key)  # None: no ticket named it; the writer has the bucket's keys
                    if place is not None and entry.size:
                        found.setdefault(place.run_id, []).append(place)
                    elif place is not None and entry.modified < end:
                        self._bucket.delete(place.key)
        return found

    def discard(self, places: Sequence[InboxPlace]) -> None:
        """Give up what waits, replacing it by marks, so that the ticket stays used. Raises StoreError."""
        for place in places:
            self._mark(place)

    def collect(self, run_id: str, places: Sequence[InboxPlace]) -> Collected:
        """Move what a run uploaded to where it belongs. What is not sound stays, with the reason.

        Raises StoreError where the bucket fails; what was not moved by then is moved by the next call.
        """
        done, own = Collected(run_id), InboxPlace(run_id, None)
        record, content = None, b""
        try:
            if own in places:
                content = self._read(own)
                record = self._checked(content, run_id)
        except _Gone:
            return done
        except Unread:
            raise
        except FlagbenchError as error:
            done.problems.append(f"record.json: {error.message}")
            return done
        for place in places:
            try:
                if place.node is not None:
                    record = self._move_bundle(place, record)
                    done.bundles += 1
            except _Gone:
                pass
            except BundleError as error:
                done.problems.append(f"node-{place.node}.tar.gz: {error}")
        if own in places:
            done.location = self._store.put(content).location
            self._mark(own)
        done.record_id = record.record_id if record else None
        return done

    def _read(self, place: InboxPlace) -> bytes:
        """A record as it was uploaded."""
        try:
            content = self._bucket.read(place.key, MAX_BYTES)[0]
        except S3Error as error:
            if error.missing:
                raise _Gone from error
            raise Unread(error.message, remedy=error.remedy) from error
        if not content:
            raise _Gone
        return content

    def _checked(self, content: bytes, run_id: str) -> Record:
        """The record. Raises FlagbenchError unless it is one of the run, and no other is stored under its id."""
        record = read_record(content, "the upload")
        if record.run_id != run_id:
            raise _wrong(f"it is a record of the run {record.run_id}, not of {run_id}")
        if record.record_id in self._store.find(record.record_id) and self._store.get(record.record_id) != content:
            raise _wrong(f"another record is stored as {record.record_id}")
        return record

    def _stored_record(self, record_id: str) -> Record:
        """The record of a bundle that arrived after it. Raises BundleError where there is none."""
        try:
            return read_record(self._store.get(record_id))
        except Unread:
            raise
        except FlagbenchError:
            raise BundleError("its record has not arrived") from None

    def _move_bundle(self, place: InboxPlace, record: Record | None) -> Record:
        """Put a bundle into the layout; returns its record, which is `record` where that waits, too.

        Raises BundleError where it is not sound, or another node's or run's.
        """
        try:
            with TemporaryDirectory(prefix="flagbench-collect-") as folder:
                path = Path(folder) / "bundle.tar.gz"
                self._download(place, path)
                with unpacked(path) as files:
                    origin = read_origin(files)
                record = record or self._stored_record(origin.record_id)
                for name, found, expected in (
                    ("record", origin.record_id, record.record_id),
                    ("run", origin.run_id, place.run_id),
                    ("run", record.run_id, place.run_id),
                    ("node", origin.node, place.node),
                ):
                    if found != expected:
                        raise BundleError(f"it is of the {name} {brief(str(found))}, not of {expected}")
                if origin.node >= record.raw["system"].get("nodes", 1):
                    raise BundleError("the run had no such node")
                self._store.bundles.put(BundlePlace(record.record_id, origin.node, sha256_of(path)), path)
        except OSError as error:
            raise StoreError(
                f"{place.key} was not collected: {reason(error)}",
                remedy="set TMPDIR to a folder with room for the bundle and for what is in it",
            ) from error
        self._mark(place)
        return record

    def _download(self, place: InboxPlace, path: Path) -> None:
        """Read an upload to a file. Raises _Gone where a mark has taken its place, also meanwhile."""
        try:
            download(self._bucket, place.key, path)
        except S3Error as error:
            if error.missing or error.taken or error.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise _Gone from error
            with store_errors():
                raise
        if path.stat().st_size == 0:
            raise _Gone

    def _mark(self, place: InboxPlace) -> None:
        """Say in the place of an upload that it was collected."""
        with store_errors():
            self._bucket.put(place.key, b"")


def _wrong(what: str) -> StoreError:
    return StoreError(what, remedy="`flagbench store collect --discard RUN_ID` gives it up", code=ExitCode.DATA)
