"""Makes a ticket, after the bucket has shown that it keeps what a ticket promises."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from io import BytesIO

from flagbench.errors import FlagbenchError
from flagbench.record.read import MAX_BYTES
from flagbench.s3 import Bucket, S3Error
from flagbench.s3.checksums import md5
from flagbench.s3.presign import LONGEST, certificates, presign_head, presign_put, temporary
from flagbench.s3.presigned import Answer, NoAnswer, opened_client
from flagbench.s3.ticket import RECORD, TICKET_BYTES, SignedPut, SignedUpload, Ticket, bundle_name
from flagbench.stores.bucket import BucketBlobs, request_errors
from flagbench.stores.layout import InboxPlace, inbox_prefix
from flagbench.stores.probe import PREFIX, race
from flagbench.stores.records import Store

_BYTES_BESIDE = 1024
"""More than an upload has in a ticket beside its URLs."""
RECORD_SIZES = (2**16, 2**18, 2**19, MAX_BYTES)
BUNDLE_SIZES = (2**20, 2**24, 2**28, 2**30, 5 * 10**9 // 2**20 * 2**20)
"""Bytes of each upload of a record and of a bundle. The last is what S3 takes with one request, in whole MiB."""


def issue(store: Store, run_id: str, nodes: int, life: timedelta, *, overwriting: bool = False) -> Ticket:
    """A ticket for a run.

    Args:
        overwriting: take a kind of server of which several writers of a key may each be told that they have won.

    Raises:
        StoreError: (usage) the store is not a bucket, or one that does not keep a ticket's promises; the run id is
            used; there is no such bucket; (network) the bucket does not answer.
    """
    blobs = store.blobs
    if not isinstance(blobs, BucketBlobs):
        raise FlagbenchError(
            f"{store.url} is not a bucket: only a bucket has tickets", remedy="give --store s3://..."
        )
    seconds = int(life.total_seconds())
    if not 60 <= seconds <= LONGEST:
        raise FlagbenchError("--expires is out of range", remedy="give a time from 1m to 7d")
    with request_errors():
        bucket = blobs.bucket
        if bucket.keeps_versions:
            unsafe = bucket.unsafe("a ticket's upload")
            raise FlagbenchError(unsafe.message, remedy=unsafe.remedy)
        if not blobs.one_winner and not overwriting:
            raise FlagbenchError(
                f"{bucket.profile.title} may tell several writers of one upload that they have won: what a ticket's "
                "holder uploaded can be replaced while the ticket is valid",
                remedy="use another server, or accept that with --allow-overwrite",
            )
        _refuse_used(store, blobs, run_id)
        ticket = sign(bucket, run_id, nodes, seconds)
        if not overwriting:
            try_promises(bucket)
    if not overwriting and not bucket.profile.known and (broken := race(blobs)):
        raise FlagbenchError(
            f"{store.url} does not keep what a ticket promises: {broken}",
            remedy="use another server, or accept with --allow-overwrite that uploads can be replaced",
        )
    return ticket


def sign(bucket: Bucket, run_id: str, nodes: int, seconds: int) -> Ticket:
    """A ticket for a run, made without a request. Raises S3Error, or FlagbenchError where it is too large."""
    end = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=seconds)
    uploads = {RECORD: _upload(bucket, InboxPlace(run_id, None).key, RECORD_SIZES, seconds)}
    _refuse_large(uploads[RECORD], nodes)
    for node in range(nodes):
        uploads[bundle_name(node)] = _upload(bucket, InboxPlace(run_id, node).key, BUNDLE_SIZES, seconds)
    return Ticket(run_id, nodes, bucket.url, end, uploads)


def ends_with_session(store: Store) -> bool:
    """Whether the tickets of a store end with the session of its credentials, before they expire."""
    return isinstance(store.blobs, BucketBlobs) and bool(temporary(store.blobs.bucket))


def _upload(bucket: Bucket, key: str, sizes: tuple[int, ...], seconds: int) -> SignedUpload:
    puts = []
    for size in sizes:
        signed = presign_put(bucket, key, size, seconds)
        puts.append(SignedPut(size, signed.url, dict(signed.headers)))
    return SignedUpload(presign_head(bucket, key, seconds).url, puts)


def _refuse_large(upload: SignedUpload, nodes: int) -> None:
    """Raise FlagbenchError (usage) where a ticket with as many uploads could not be read again."""
    most = TICKET_BYTES // (sum(len(url) for url in (upload.head, *(put.url for put in upload.puts))) + _BYTES_BESIDE)
    if nodes >= most:
        raise FlagbenchError(
            f"a ticket for {nodes:,} nodes is larger than {TICKET_BYTES:,} bytes",
            remedy=f"make one for at most {most - 1:,} nodes",
        )


def _refuse_used(store: Store, blobs: BucketBlobs, run_id: str) -> None:
    """Raise FlagbenchError (usage) where something of this run was uploaded or stored already."""
    if used := next((entry for entry in store.list() if entry.summary and entry.summary.run_id == run_id), None):
        raise FlagbenchError(
            f"there is a record of the run {run_id} already: {used.record_id}",
            remedy="give another --run-id, or leave it out",
        )
    if next(iter(blobs.bucket.list(inbox_prefix(run_id))), None) is not None:
        raise FlagbenchError(
            f"a ticket for the run {run_id} was used already: {blobs.location(inbox_prefix(run_id))} is not empty",
            remedy="give another --run-id, or leave it out",
        )


def try_promises(bucket: Bucket) -> None:
    """Try with an object of its own, which is removed, that URLs bind what they say and that a put never overwrites.

    Raises S3Error (usage) where the server does not keep that.
    """
    key = f"{PREFIX}{secrets.token_hex(8)}"
    size, content = 16, [b"1" * 16, b"2" * 16]
    put, head = presign_put(bucket, key, size, 300), presign_head(bucket, key, 300)
    client = opened_client(certificates())

    def send(headers: Mapping[str, str], body: bytes) -> Answer:
        return client.put(put.url, headers, BytesIO(body), len(body), md5(body))

    steps: list[tuple[str, Callable[[], Answer], tuple[int, ...]]] = [
        ("a put without the header that forbids overwriting", partial(send, {}, content[0]), (400, 403)),
        ("a put of another length", partial(send, put.headers, content[0] + b"1"), (400, 403)),
        ("the question for an object that is not there", partial(client.head, head.url), (404,)),
        ("a put as it was signed", partial(send, put.headers, content[0]), (200,)),
        ("a second put", partial(send, put.headers, content[1]), (409, 412)),
        ("the question for the object", partial(client.head, head.url), (200,)),
    ]
    try:
        for name, act, expected in steps:
            try:
                reply = act()
            except NoAnswer as error:
                message = f"{bucket.url}: {name} was not answered: {error}"
                raise S3Error(message, "try again", network=True) from error
            if reply.status not in expected:
                raise S3Error(
                    f"{bucket.url} does not keep what a ticket promises: {name} is answered with {reply.status}, not "
                    f"{' or '.join(map(str, expected))}",
                    "see the profile in the address (`?profile=`), or use another server",
                    usage=True,
                )
        if (reply.length, reply.etag) != (size, md5(content[0]).hex()):
            raise S3Error(
                f"{bucket.url} does not keep what a ticket promises: an object's ETag is not its MD5, by which an "
                "upload whose answer was lost is recognized",
                "use a bucket whose objects are not encrypted with keys of a KMS (SSE-S3 is fine)",
                usage=True,
            )
    finally:
        with suppress(S3Error):  # a key that may not delete leaves one object of 16 bytes
            bucket.delete(key)
