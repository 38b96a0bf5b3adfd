"""The file of a ticket, written for its owner alone and read again."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.files import read_input, reason
from flagbench.s3.ticket import TICKET_BYTES, Ticket, TicketError, parse_ticket

VARIABLE = "FLAGBENCH_TICKET"
"""In which a container finds the ticket itself, as from a Kubernetes Secret."""
VARIABLE_BYTES = 128 * 2**10
"""Linux starts no process with a longer variable."""
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
    now = datetime.now(timezone.utc)
    if ticket.expires <= now:
        raise FlagbenchError(f"the ticket expired at {ticket.expires_at}", remedy="make another one")
    if minutes is not None and ticket.expires <= now + timedelta(minutes=minutes):
        raise FlagbenchError(
            f"the ticket expires at {ticket.expires_at}, before a run of --max-minutes {minutes:g} has ended",
            remedy="make one with a longer `--expires`, or give a smaller --max-minutes",
        )


def write_private(file: Path, content: bytes) -> None:
    """Write a file that its owner alone can read, whole or not at all. Raises OSError (EEXIST: it is there)."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        os.link(part, file)  # never over another ticket: that one may be in use
    finally:
        part.unlink(missing_ok=True)
