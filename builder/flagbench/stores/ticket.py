"""A ticket: presigned, expiring, create-only uploads of one run, for a machine that must not hold a bucket's keys.

Its URLs are credentials: a file of it has mode 0600, and no message repeats one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from flagbench.errors import FlagbenchError
from flagbench.files import read_input, reason
from flagbench.record.model import RUN_ID, RunId
from flagbench.s3.deliver import SignedUpload

VARIABLE = "FLAGBENCH_TICKET"
"""In which a container finds the ticket itself, as from a Kubernetes Secret."""
VARIABLE_BYTES = 128 * 2**10
"""Linux starts no process with a longer variable."""
RECORD = "record.json"
MEANT_FOR = "ticket:"
"""Begins what stands in the place of an address where something waits for a ticket."""
TICKET_BYTES = 16 * 2**20
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_REMEDY = "make one with `flagbench store ticket`"


class Ticket(Struct, frozen=True):
    """What `flagbench store ticket` makes."""

    schema: Literal["ticket/v1"]
    run_id: RunId
    nodes: Annotated[int, Meta(ge=1)]
    store: str
    """The store it was made for; in messages only."""
    expires_at: str
    uploads: dict[str, SignedUpload]

    @property
    def expires(self) -> datetime:
        """When its URLs end to be valid."""
        return datetime.strptime(self.expires_at, _TIME).replace(tzinfo=timezone.utc)

    @property
    def meant_for(self) -> str:
        """What stands in the place of an address where something waits for this ticket: no URL of it."""
        return f"{MEANT_FOR}{self.run_id}"

    def encode(self) -> bytes:
        """The ticket as JSON on one line."""
        return msgspec.json.encode(self) + b"\n"


def bundle_name(node: int) -> str:
    """The name of a node's bundle among the uploads."""
    return f"node-{node}.tar.gz"


def time_text(moment: datetime) -> str:
    """A time as a ticket has it, UTC."""
    return moment.astimezone(timezone.utc).strftime(_TIME)


def read_ticket(file: Path) -> Ticket:
    """The ticket in a file. Raises FlagbenchError (usage), without a word of its content."""
    try:
        return parse_ticket(read_input(file, TICKET_BYTES))
    except OSError as error:
        raise FlagbenchError(f"the ticket {file} cannot be read: {reason(error)}", remedy=_REMEDY) from None


def parse_ticket(content: bytes) -> Ticket:
    """A ticket from its JSON. Raises FlagbenchError (usage), without a word of its content."""
    try:
        ticket = msgspec.json.decode(content, type=Ticket)
        _ = ticket.expires
    except msgspec.ValidationError as error:
        raise FlagbenchError(f"this is not a ticket: {_without_values(str(error))}", remedy=_REMEDY) from None
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise FlagbenchError("this is not a ticket: it is not the JSON of one", remedy=_REMEDY) from None
    missing = [name for name in (RECORD, *map(bundle_name, range(ticket.nodes))) if name not in ticket.uploads]
    if missing:
        raise FlagbenchError(f"this is not a ticket: it has no upload of {missing[0]}", remedy=_REMEDY)
    for name, upload in ticket.uploads.items():
        if not upload.puts or any(put.bytes < 1 for put in upload.puts):
            raise FlagbenchError(f"this is not a ticket: nothing can be uploaded as {name}", remedy=_REMEDY)
    return ticket


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


def uploads_of(nodes: int) -> Mapping[str, int | None]:
    """The names of what a run of so many nodes may upload, each with its node; the record has none."""
    return {RECORD: None, **{bundle_name(node): node for node in range(nodes)}}


def _without_values(said: str) -> str:
    """msgspec's words, which name fields and types, but might quote what does not match a pattern."""
    return said.partition("(")[0].strip() if RUN_ID in said else said
