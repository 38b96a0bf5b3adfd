"""What the holder of a ticket does: uploads a record and bundles, without boto3 and without keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flagbench.files import reason
from flagbench.s3.deliver import Delivery, SignedUpload
from flagbench.s3.errors import S3Error
from flagbench.stores.blobs import StoreError
from flagbench.stores.ticket import RECORD, Ticket, bundle_name


def upload_record(ticket: Ticket, record: bytes) -> None:
    """Upload a record, as it was printed. Raises StoreError (NOT_STORED), in which no URL is named."""
    line = record.rstrip(b"\n")
    _upload(ticket, RECORD, lambda delivery, upload: delivery.put_line(upload, line))


def upload_bundle(ticket: Ticket, node: int, path: Path) -> None:
    """Upload the bundle of a node. Raises StoreError (NOT_STORED), in which no URL is named."""
    try:
        size = path.stat().st_size
        _upload(
            ticket, bundle_name(node), lambda delivery, upload: delivery.put(upload, size, lambda: path.open("rb"))
        )
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason(error)}", remedy="make it readable for you") from error


def _upload(ticket: Ticket, name: str, put: Callable[[Delivery, SignedUpload], None]) -> None:
    upload = ticket.uploads.get(name)
    try:
        if upload is None:
            raise S3Error(f"the ticket is for {ticket.nodes} node(s)", "make one for more")
        put(Delivery(ticket.expires), upload)
    except S3Error as error:
        raise StoreError(
            f"{name} of the run {ticket.run_id} was not uploaded to {ticket.store}: {error.message}",
            remedy=error.remedy,
        ) from None
