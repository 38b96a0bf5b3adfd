"""A bucket's inbox: tickets for it, and what their holders uploaded, checked and moved to where it is kept.

Nothing in the inbox is a record. An upload is read, checked, put into the layout (the record first, then its bundles,
each put-if-absent), and only then an empty object, a mark, takes its place. So a kill at any point loses nothing, and
two collectors do the same twice. A mark and not a deletion: as long as something is there, the ticket cannot be used
again. Marks are deleted once no ticket can be valid any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.files import reason
from flagbench.records.blobs import IdTaken, StoreError, Unread
from flagbench.records.bucket_blobs import BucketBlobs, request_errors, store_errors
from flagbench.records.bundle_archive import BundleError, read_origin, unpacked
from flagbench.records.model import Record
from flagbench.records.read import MAX_BYTES, RecordError, read_record
from flagbench.records.store import Store
from flagbench.records.store_keys import BundlePlace, InboxPlace, inbox_prefix, parse_inbox_key
from flagbench.terminal import brief
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import Bucket, S3Error, download, sha256_of
from flagbench_core.s3.ticket import RECORD, Ticket, bundle_name, in_seconds

LONGEST = timedelta(days=7)
"""The longest life of a URL signed with version 4."""
_OUTLIVES = LONGEST + timedelta(days=1)


@dataclass
class Collected:
    """What became of the uploads of a run."""

    run_id: str
    record_id: str | None = None
    location: str | None = None
    """Of the record, for a person; None where it was not collected now."""
    bundles: int = 0
    problems: list[str] = field(default_factory=list)
    """Why something stays in the inbox."""
    error: FlagbenchError | None = None
    """Of the bucket: what was not moved is moved by the next call."""
    discarded: bool = False

    @property
    def failures(self) -> list[FlagbenchError]:
        """Each problem and the bucket's error, with what to do."""
        remedy = f"wait for what is missing, or give it up with `flagbench store collect --discard {self.run_id}`"
        found = [FlagbenchError(problem, remedy=remedy, code=ExitCode.DATA) for problem in self.problems]
        return found if self.error is None else [*found, self.error]


class _Gone(Exception):
    """Another collector was first."""


class Inbox:
    """The inbox of a store in a bucket."""

    def __init__(self, store: Store) -> None:
        """Raises FlagbenchError (usage) where the store is not a bucket."""
        if not isinstance(store.blobs, BucketBlobs):
            raise FlagbenchError(
                f"{store.url} is not a bucket: only a bucket has tickets", remedy="give --store s3://BUCKET/PREFIX"
            )
        self._store, self._blobs, self._bucket = store, store.blobs, store.blobs.bucket

    def issue(self, run_id: str, nodes: int, life: timedelta) -> Ticket:
        """A ticket for a run.

        Raises StoreError: (usage) on a server that may tell several writers of one upload that they have won, where
        the bucket keeps versions, or where something was uploaded for the run; (network).
        """
        if not timedelta(minutes=1) <= life <= LONGEST:
            raise FlagbenchError("--expires is out of range", remedy="give a time from 1m to 7d")
        with request_errors():
            if not self._blobs.one_winner:
                raise FlagbenchError(
                    f"{self._bucket.profile.title} may tell several writers of one upload that they have won: what a "
                    "ticket's holder uploaded can be replaced while the ticket is valid",
                    remedy="use another server",
                )
            if self._bucket.keeps_versions:
                raise self._bucket.unsafe("a ticket's upload")
            if next(self._bucket.list(inbox_prefix(run_id)), None) is not None:
                raise FlagbenchError(
                    f"a ticket for the run {run_id} was used already: something is in "
                    f"{self._bucket.location(inbox_prefix(run_id))}",
                    remedy="give another --run-id, or leave it out",
                )
            return sign(self._bucket, run_id, nodes, int(life.total_seconds()))

    def waiting(self, run_ids: Sequence[str] = ()) -> dict[str, list[InboxPlace]]:
        """What waits of those runs, or of all, by run id, each record before its bundles. Deletes old marks.

        Raises StoreError.
        """
        found: dict[str, list[InboxPlace]] = {}
        end = datetime.now(timezone.utc) - _OUTLIVES
        prefixes = [inbox_prefix(run_id) for run_id in run_ids] or [inbox_prefix()]
        with request_errors():
            for entry in chain.from_iterable(map(self._bucket.list, prefixes)):
                place = parse_inbox_key(entry.key)  # None: no ticket named it; the writer has the bucket's keys
                if place is not None and entry.size:
                    found.setdefault(place.run_id, []).append(place)
                elif place is not None and entry.modified < end:
                    self._bucket.delete(place.key)
        return {run_id: sorted(places, key=lambda each: each.node is not None) for run_id, places in found.items()}

    def collect_all(self, run_ids: Sequence[str] = (), *, discard: bool = False) -> Iterator[Collected]:
        """What became of the uploads of each of those runs, or of all; with `discard` they are given up.

        A failure on one run keeps none of the others. Raises StoreError where the inbox cannot be listed.
        """
        for run_id, places in self.waiting(run_ids).items():
            try:
                if discard:
                    self.mark(*places)
                    yield Collected(run_id, discarded=True)
                else:
                    yield self.collect(run_id, places)
            except FlagbenchError as error:
                yield Collected(run_id, error=error)

    def collect(self, run_id: str, places: list[InboxPlace]) -> Collected:
        """Move what a run uploaded to where it belongs. What is not sound stays, with the reason.

        Raises StoreError where the bucket fails; what was not moved by then is moved by the next call.
        """
        done = Collected(run_id)
        record: Record | None = None
        for place in places:
            try:
                if place.node is None:
                    content = self._read(place)
                    uploaded = read_record(content, "the upload")
                    if uploaded.run_id != run_id:
                        raise BundleError(f"it is a record of the run {brief(uploaded.run_id)}")
                    done.location = self._store.put(content).location
                    record = uploaded
                else:
                    record = self._move_bundle(place, record)
                    done.bundles += 1
            except _Gone:
                continue
            except (BundleError, RecordError, IdTaken) as error:
                done.problems.append(f"{place.key}: {error}")
                continue
            done.record_id = record.record_id
            self.mark(place)
        return done

    def mark(self, *places: InboxPlace) -> None:
        """Put marks in the place of uploads, so that their ticket stays used. Raises StoreError."""
        with store_errors():
            for place in places:
                self._bucket.put(place.key, b"")

    def _read(self, place: InboxPlace) -> bytes:
        """A record as it was uploaded. Raises _Gone where a mark has taken its place."""
        with store_errors():
            content = self._bucket.read(place.key, MAX_BYTES)[0]
        if not content:
            raise _Gone
        return content

    def _move_bundle(self, place: InboxPlace, record: Record | None) -> Record:
        """Put a bundle into the layout; returns its record, which is `record` where that was collected with it.

        Raises BundleError where it is not sound, or another node's or run's.
        """
        try:
            with TemporaryDirectory(prefix="flagbench-collect-") as folder:
                path = Path(folder) / "bundle.tar.gz"
                self._download(place, path)
                with unpacked(path) as files:
                    origin = read_origin(files)
                record = record or self._stored_record(origin.record_id)
                expected = (record.record_id, record.run_id, place.node)
                if (origin.record_id, origin.run_id, origin.node) != expected or record.run_id != place.run_id:
                    of = f"node {origin.node} of the run {origin.run_id}, record {origin.record_id}"
                    raise BundleError(f"it is of {brief(of)}")
                self._store.bundles.put(BundlePlace(record.record_id, origin.node, sha256_of(path)), path)
        except OSError as error:
            raise StoreError(
                f"{place.key} was not collected: {reason(error)}",
                remedy="set TMPDIR to a folder with room for the bundle and for what is in it",
            ) from error
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

    def _stored_record(self, record_id: str) -> Record:
        """The record of a bundle that arrived after it. Raises BundleError where there is none."""
        try:
            return read_record(self._store.get(record_id))
        except Unread:
            raise
        except FlagbenchError:
            raise BundleError("its record has not arrived") from None


def write_ticket(path: Path, ticket: Ticket) -> None:
    """Write a new file for its owner alone, never over another one: that may be in use. Raises FlagbenchError."""
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(ticket.encode())
    except OSError as error:
        raise FlagbenchError(
            f"--out {path} cannot be written: {reason(error)}",
            remedy="name a new file in a folder that you can write to",
        ) from error


def sign(bucket: Bucket, run_id: str, nodes: int, seconds: int) -> Ticket:
    """A ticket for a run, made without a request. Raises S3Error.

    Its URLs are signed with version 4, which binds headers: the holder cannot leave out the one with which a put
    never overwrites, and which `open_client` names as the kind of server has it.
    """
    places = {RECORD: InboxPlace(run_id, None)}
    places |= {bundle_name(node): InboxPlace(run_id, node) for node in range(nodes)}

    def urls(client: Any) -> dict[str, str]:
        return {
            name: client.generate_presigned_url(
                "put_object",
                Params={"Bucket": bucket.address.bucket, "Key": bucket.name(place.key), "IfNoneMatch": "*"},
                ExpiresIn=seconds,
            )
            for name, place in places.items()
        }

    uploads = bucket.attempt(urls, f"{bucket.url} cannot be signed for")
    return Ticket(run_id, nodes, bucket.url, in_seconds(seconds), bucket.profile.create, uploads)
