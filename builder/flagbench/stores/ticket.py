"""A ticket as its holder uses it: read from a file, and uploaded with, without boto3 and without keys."""

from __future__ import annotations

import io
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.files import read_input, reason
from flagbench.s3.ticket import RECORD, TICKET_BYTES, Ticket, TicketError, bundle_name, parse_ticket
from flagbench.stores.blobs import StoreError
from flagbench.stores.bucket import store_errors

VARIABLE = "FLAGBENCH_TICKET"
"""In which a container finds the ticket itself, as from a Kubernetes Secret."""
_REMEDY = "make one with `flagbench store ticket`"


def read_ticket(file: Path) -> Ticket:
    """The ticket in a file. Raises FlagbenchError (usage), without a word of its content."""
    try:
        return parse_ticket(read_input(file, TICKET_BYTES))
    except OSError as error:
        raise FlagbenchError(f"the ticket {file} cannot be read: {reason(error)}", remedy=_REMEDY) from None
    except TicketError as error:
        raise FlagbenchError(f"{file} is not a ticket: {error}", remedy=_REMEDY) from None


def upload_record(ticket: Ticket, record: bytes) -> None:
    """Upload a record, as it was printed. Raises StoreError (NOT_STORED), in which no URL is named."""
    with store_errors():
        ticket.put(RECORD, len(record), lambda: io.BytesIO(record))


def upload_bundle(ticket: Ticket, node: int, path: Path) -> None:
    """Upload the bundle of a node. Raises StoreError (NOT_STORED), in which no URL is named."""
    try:
        with store_errors():
            ticket.put(bundle_name(node), path.stat().st_size, lambda: path.open("rb"))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason(error)}", remedy="make it readable for you") from error
