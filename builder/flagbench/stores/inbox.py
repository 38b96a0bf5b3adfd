"""What holders of tickets uploaded, checked and moved to where records and bundles are kept.

Nothing in the inbox is a record. An upload is read, checked, put into the layout (its bundles first, then the record,
each put-if-absent) and only then is its place in the inbox marked as collected. So a kill at any point loses nothing,
and two collectors do the same twice. A mark and not a deletion: as long as something is there, the ticket cannot be
used again. Marks are deleted once no ticket can be valid any more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import reason
from flagbench.record.model import Record
from flagbench.record.read import MAX_BYTES, read_record
from flagbench.s3 import S3Error, download
from flagbench.s3.presign import LONGEST
from flagbench.s3.presigned import COLLECTED
from flagbench.stores.blobs import StoreError, Unread
from flagbench.stores.bucket import BucketBlobs, request_errors, store_errors
from flagbench.stores.bundle_check import BundleError, check_bundle
from flagbench.stores.layout import BundlePlace, InboxPlace, inbox_prefix, parse_inbox_key
from flagbench.stores.records import Store
from flagbench.terminal import brief

MARK_BYTES = 4096
"""A mark is shorter than the shortest upload that a ticket allows."""
_MARK = "collected/v1"
_OUTLIVES = timedelta(seconds=LONGEST) + timedelta(days=1)


@dataclass
class Upload:
    """What one run has in the inbox."""

    run_id: str
    record: bool = False
    """Whether its record waits."""
    nodes: dict[int, int] = field(default_factory=dict)
    """The bundles that wait: bytes by node."""
    etags: dict[InboxPlace, str] = field(default_factory=dict)
    """The ETag of everything that waits: its MD5, as `store ticket` makes sure."""
    marks: dict[InboxPlace, datetime] = field(default_factory=dict)
    """What was collected, and when."""

    @property
    def waits(self) -> bool:
        """Whether there is something to collect."""
        return self.record or bool(self.nodes)


@dataclass(frozen=True)
class Collected:
    """What became of the uploads of a run."""

    run_id: str
    record_id: str | None = None
    location: str | None = None
    """Of the record, for a person."""
    bundles: int = 0
    problems: tuple[str, ...] = ()
    """Why something stays in the inbox."""


class Inbox:
    """The uploads of a bucket."""

    def __init__(self, store: Store) -> None:
        """Raises FlagbenchError (usage) where the store is not a bucket."""
        if not isinstance(store.blobs, BucketBlobs):
            raise FlagbenchError(
                f"{store.url} is not a bucket: only a bucket has an inbox", remedy="give --store s3://BUCKET/PREFIX"
            )
        self._store, self._blobs, self._bucket = store, store.blobs, store.blobs.bucket

    def uploads(self, run_ids: Sequence[str] = ()) -> list[Upload]:
        """What is there of those runs, or of all, by run id. Raises StoreError."""
        found: dict[str, Upload] = {run_id: Upload(run_id) for run_id in run_ids}
        with request_errors():
            for prefix in [inbox_prefix(run_id) for run_id in run_ids] or [inbox_prefix()]:
                for entry in self._bucket.list(prefix):
                    place = parse_inbox_key(entry.key)
                    if place is None:
                        continue  # no ticket named it: the writer has the bucket's keys
                    upload = found.setdefault(place.run_id, Upload(place.run_id))
                    if entry.size <= MARK_BYTES:
                        upload.marks[place] = entry.modified
                        continue
                    upload.etags[place] = entry.etag
                    if place.node is None:
                        upload.record = True
                    else:
                        upload.nodes[place.node] = entry.size
        return [found[run_id] for run_id in sorted(found)]

    def collect(self, upload: Upload) -> Collected:
        """Move what a run uploaded to where it belongs. What is not sound stays, with the reason.

        Raises StoreError where the bucket fails; what was not moved by then is moved by the next call.
        """
        run_id = upload.run_id
        try:
            content = self._record(run_id) if upload.record else self._collected_record(upload)
            if content is None:
                return Collected(run_id, problems=("its record has not arrived",) if upload.nodes else ())
            record = read_record(content)
            self._refuse_taken(record.record_id, content)
        except _Gone:
            return Collected(run_id)
        except Unread:
            raise
        except FlagbenchError as error:
            return Collected(run_id, problems=(f"record.json: {error.message}",))
        problems, moved = [], 0
        for node, size in sorted(upload.nodes.items()):
            try:
                self._move_bundle(upload, node, size, record)
                moved += 1
            except _Gone:
                pass
            except BundleError as error:
                problems.append(f"node-{node}.tar.gz: {error}")
        location = None
        if upload.record:
            location = self._store.put(content).location
            self._mark(InboxPlace(run_id, None), record.record_id, upload)
        return Collected(run_id, record.record_id, location, moved, tuple(problems))

    def forget(self, upload: Upload) -> int:
        """Delete the marks that outlived every ticket; returns how many."""
        end = datetime.now(timezone.utc) - _OUTLIVES
        old = [place for place, made in upload.marks.items() if made < end]
        with store_errors():
            for place in old:
                self._bucket.delete(place.key)
        return len(old)

    def discard(self, upload: Upload) -> int:
        """Give up what waits, replacing it by marks, so that the ticket stays used; returns how many uploads.

        Raises StoreError.
        """
        for place in upload.etags:
            self._mark(place, None)
        return len(upload.etags)

    def _record(self, run_id: str) -> bytes:
        """The record as it was printed, without padding. Raises FlagbenchError unless it is a record of the run."""
        content = self._read(InboxPlace(run_id, None), MAX_BYTES)
        if len(content) <= MARK_BYTES:
            raise _Gone
        content = content.rstrip(b"\n").rstrip(b" ") + b"\n"
        record = read_record(content, "the upload")
        if record.run_id != run_id:
            raise _wrong(f"it is a record of the run {record.run_id}, not of {run_id}")
        return content

    def _collected_record(self, upload: Upload) -> bytes | None:
        """The run's record, if that was collected before."""
        place = InboxPlace(upload.run_id, None)
        if place not in upload.marks:
            return None
        try:
            record_id = json.loads(self._read(place, MARK_BYTES))["record_id"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return self._store.get(record_id) if isinstance(record_id, str) else None

    def _refuse_taken(self, record_id: str, content: bytes) -> None:
        """Raise FlagbenchError where another record has this id: no bundle may get beside a record of others."""
        if record_id in self._store.find(record_id) and self._store.get(record_id) != content:
            raise _wrong(f"another record is stored as {record_id}")

    def _read(self, place: InboxPlace, limit: int) -> bytes:
        try:
            content = self._bucket.read(place.key, limit)[0]
        except S3Error as error:
            if error.missing:
                raise _Gone from error
            raise Unread(error.message, remedy=error.remedy) from error
        if len(content) > limit:
            raise _wrong(f"it has more than {limit:,} bytes")
        return content

    def _move_bundle(self, upload: Upload, node: int, size: int, record: Record) -> None:
        """Put a bundle into the layout. Raises BundleError where it is not sound, or another node's or run's."""
        if node >= record.raw["system"].get("nodes", 1):
            raise BundleError("the run had no such node")
        place = InboxPlace(upload.run_id, node)
        try:
            with TemporaryDirectory(prefix="flagbench-collect-") as folder:
                path = Path(folder) / "bundle.tar.gz"
                self._download(place, path)
                checked = check_bundle(path)
                said = checked.manifest
                for name, found, expected in (
                    ("run", said.run_id, place.run_id),
                    ("record", said.record_id, record.record_id),
                    ("node", said.node, node),
                ):
                    if found not in (None, expected):
                        raise BundleError(f"it is of the {name} {brief(str(found))}, not of {expected}")
                os.truncate(path, checked.size)
                self._store.bundles.put(BundlePlace(record.record_id, node, checked.sha256), path)
        except OSError as error:
            raise StoreError(
                f"{place.key} was not collected: {reason(error)}",
                remedy=f"set TMPDIR to a folder with room for {size:,} bytes",
            ) from error
        self._mark(place, record.record_id, upload)

    def _download(self, place: InboxPlace, path: Path) -> None:
        """Read an upload to a file. Raises _Gone where a mark has taken its place, also meanwhile."""
        try:
            download(self._bucket, place.key, path)
        except S3Error as error:
            if error.missing or error.taken:
                raise _Gone from error
            with store_errors():
                raise
        if path.stat().st_size <= MARK_BYTES:
            raise _Gone

    def _mark(self, place: InboxPlace, record_id: str | None, kept: Upload | None = None) -> None:
        """Say in the place of an upload that it was collected, and to its holder which bytes those were."""
        content = json.dumps({"schema": _MARK, "record_id": record_id}).encode() + b"\n"
        metadata = {} if kept is None else {COLLECTED: kept.etags[place]}
        with store_errors():
            self._bucket.put(place.key, content, metadata=metadata)


class _Gone(Exception):
    """Another collector was first."""


def _wrong(what: str) -> StoreError:
    return StoreError(what, remedy="`flagbench store collect --discard RUN_ID` gives it up", code=ExitCode.DATA)
