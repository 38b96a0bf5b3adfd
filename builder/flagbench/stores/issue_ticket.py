"""Makes a ticket, after the bucket has shown that it keeps what a ticket promises.

Its URLs are signed with version 4, which binds headers: the holder cannot leave out the one with which a put never
overwrites. botocore's signer is used directly, because boto3's `generate_presigned_url` knows no header but Amazon's.
"""

from __future__ import annotations

import io
import secrets
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from flagbench.errors import FlagbenchError
from flagbench.s3 import Bucket, S3Error
from flagbench.s3.ticket import RECORD, TICKET_BYTES, Ticket, bundle_name
from flagbench.stores.bucket import BucketBlobs, request_errors
from flagbench.stores.layout import InboxPlace, inbox_prefix
from flagbench.stores.probe import PREFIX
from flagbench.stores.records import Store

LONGEST = 7 * 24 * 3600
"""Seconds: the longest life of a URL signed with version 4."""


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
        if len(ticket.encode()) > TICKET_BYTES:
            raise FlagbenchError(
                f"a ticket for {nodes:,} nodes is larger than {TICKET_BYTES:,} bytes", remedy="give fewer --nodes"
            )
        if not overwriting:
            try_promises(bucket)
    return ticket


def sign(bucket: Bucket, run_id: str, nodes: int, seconds: int) -> Ticket:
    """A ticket for a run, made without a request. Raises S3Error."""
    keys = {RECORD: InboxPlace(run_id, None).key}
    keys |= {bundle_name(node): InboxPlace(run_id, node).key for node in range(nodes)}
    return _signed(bucket, run_id, nodes, keys, seconds)


def try_promises(bucket: Bucket) -> None:
    """Try with an object of its own, which is removed, that a URL binds its header and that a put never overwrites.

    Raises S3Error (usage) where the server does not keep that.
    """
    key = f"{PREFIX}{secrets.token_hex(8)}"
    ticket = _signed(bucket, "probe", 1, {RECORD: key}, 300)
    steps = (
        ("a put without the header that forbids overwriting", replace(ticket, headers={}), True),
        ("a put as it was signed", ticket, False),
        ("a second put", ticket, True),
    )
    try:
        for number, (name, asked, refused) in enumerate(steps):
            content = bytes([number]) * 16
            try:
                asked.put(RECORD, len(content), lambda content=content: io.BytesIO(content))  # type: ignore[misc]
                kept, why = not refused, "is a success"
            except S3Error as error:
                if error.network:
                    raise
                kept, why = refused, error.message
            if not kept:
                raise S3Error(
                    f"{bucket.url} does not keep what a ticket promises: {name}: {why}",
                    "see the profile in the address (`?profile=`), or use another server",
                    usage=True,
                )
    finally:
        with suppress(S3Error):  # a key that may not delete leaves one object of 16 bytes
            bucket.delete(key)


def _signed(bucket: Bucket, run_id: str, nodes: int, keys: dict[str, str], seconds: int) -> Ticket:
    end = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=seconds)
    uploads = {name: _presigned(bucket, key, seconds) for name, key in keys.items()}
    return Ticket(run_id, nodes, bucket.url, end, bucket.profile.create, uploads)


def _presigned(bucket: Bucket, key: str, seconds: int) -> str:
    """The URL of a create-only put. Raises S3Error (usage)."""
    from botocore.auth import S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest

    where = {"Bucket": bucket.address.bucket, "Key": bucket.name(key)}
    # For the address alone, which is in its path or its host: the signature is ours.
    address = bucket.attempt(
        lambda client: client.generate_presigned_url("put_object", Params=where), f"{bucket.url} cannot be signed for"
    )
    request = AWSRequest("PUT", address.partition("?")[0], headers=dict(bucket.profile.create))
    S3SigV4QueryAuth(bucket.credentials, "s3", bucket.client.meta.region_name, expires=seconds).add_auth(request)
    return str(request.url)


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
