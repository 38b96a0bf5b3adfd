"""A ticket as its holder uses it: read, held against the run, and uploaded with, without boto3 and without keys."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO

from flagbench.errors import FlagbenchError
from flagbench.files import read_input, reason
from flagbench.s3.errors import S3Error
from flagbench.s3.ticket import RECORD, TICKET_BYTES, Ticket, TicketError, bundle_name, parse_ticket
from flagbench.stores.blobs import StoreError

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


def check_ticket(ticket: Ticket, *, run_id: str | None, nodes: int, minutes: float | None) -> None:
    """Refuse a ticket that cannot be used for a run, before it begins.

    Args:
        run_id: the name that was asked for; None takes the ticket's.
        minutes: after how many the run is ended.

    Raises:
        FlagbenchError: (usage) another run's, of fewer nodes, or expired at the latest when the run is ended.
    """
    if run_id not in (None, ticket.run_id):
        raise FlagbenchError(
            f"the ticket is for the run {ticket.run_id}, not for {run_id}",
            remedy="leave out --run-id, or make a ticket for this run",
        )
    if nodes > ticket.nodes:
        raise FlagbenchError(
            f"the ticket is for {ticket.nodes} node(s), not for {nodes}",
            remedy=f"make one with `flagbench store ticket --nodes {nodes}`",
        )
    if ticket.expires <= datetime.now(timezone.utc) + timedelta(minutes=minutes or 0):
        ends = f", before a run of --max-minutes {minutes:g} has ended" if minutes else ""
        raise FlagbenchError(
            f"the ticket expires at {ticket.expires_at}{ends}",
            remedy="make one with a longer `--expires`, or give a smaller --max-minutes",
        )


def upload_record(ticket: Ticket, record: bytes) -> None:
    """Upload a record, as it was printed. Raises StoreError (NOT_STORED), in which no URL is named."""
    _upload(ticket, RECORD, len(record), lambda: io.BytesIO(record))


def upload_bundle(ticket: Ticket, node: int, path: Path) -> None:
    """Upload the bundle of a node. Raises StoreError (NOT_STORED), in which no URL is named."""
    try:
        _upload(ticket, bundle_name(node), path.stat().st_size, lambda: path.open("rb"))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason(error)}", remedy="make it readable for you") from error


def _upload(ticket: Ticket, name: str, size: int, opened: Callable[[], IO[bytes]]) -> None:
    try:
        ticket.put(name, size, opened)
    except S3Error as error:
        raise StoreError(error.message, remedy=error.remedy) from None
