"""What the holder of a ticket does: uploads a record and bundles, without boto3 and without keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flagbench.files import reason
from flagbench.s3.deliver import Delivery
from flagbench.s3.errors import S3Error
from flagbench.s3.ticket import Ticket
from flagbench.stores.blobs import StoreError


def upload_record(ticket: Ticket, record: bytes) -> None:
    """Upload a record, as it was printed. Raises StoreError (NOT_STORED), in which no URL is named."""
    with _errors():
        Delivery(ticket).put_record(record)


def upload_bundle(ticket: Ticket, node: int, path: Path) -> None:
    """Upload the bundle of a node. Raises StoreError (NOT_STORED), in which no URL is named."""
    try:
        with _errors():
            Delivery(ticket).put_bundle(node, path.stat().st_size, lambda: path.open("rb"))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason(error)}", remedy="make it readable for you") from error


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except S3Error as error:
        raise StoreError(error.message, remedy=error.remedy) from None
