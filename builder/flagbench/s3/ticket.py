"""A ticket: presigned, expiring, create-only uploads of one run, for a machine that must not hold a bucket's keys.

Its URLs are credentials: no error contains any part of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from flagbench.s3.errors import S3Error

SCHEMA = "ticket/v1"
RECORD = "record.json"
"""The name of the upload of the record."""
MEANT_FOR = "ticket:"
"""Begins what stands in the place of an address where something waits for a ticket."""
TICKET_BYTES = 64 * 2**20
"""The largest ticket that is made or read: that of about 15,000 nodes."""
RENEW = "make another ticket: `flagbench store ticket`"
_MOST_NODES = 100_000
_MOST_BYTES = 5 * 2**30
"""What S3 takes with one request."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_RUN_ID = re.compile("[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
_HEADER = re.compile("[A-Za-z0-9-]{1,64}")
_VALUE = re.compile("[ -~]{0,1000}")


class TicketError(ValueError):
    """Why something is not a ticket, without a word of its content."""


@dataclass(frozen=True)
class SignedPut:
    """A put of exactly `bytes` bytes, with the headers that are signed."""

    bytes: int
    url: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class SignedUpload:
    """One object that may be created: a URL to ask for it, and puts of several lengths."""

    head: str
    puts: Sequence[SignedPut]

    def shortest(self, size: int) -> SignedPut:
        """The shortest put that `size` bytes fit into, padded. Raises S3Error."""
        fitting = [put for put in self.puts if put.bytes >= size]
        if not fitting:
            longest = max(put.bytes for put in self.puts)
            raise S3Error(f"it has {size} bytes, and the ticket allows at most {longest}", "store it with keys")
        return min(fitting, key=lambda put: put.bytes)


@dataclass(frozen=True)
class Ticket:
    """What `flagbench store ticket` makes."""

    run_id: str
    nodes: int
    """Of the run, at most."""
    store: str
    """The store it was made for; in messages only."""
    expires: datetime
    """When its URLs end to be valid, UTC, in whole seconds."""
    uploads: Mapping[str, SignedUpload]

    @property
    def expires_at(self) -> str:
        """When it expires, as a person reads it."""
        return self.expires.strftime(_TIME)

    @property
    def meant_for(self) -> str:
        """What stands in the place of an address where something waits for this ticket: no URL of it."""
        return f"{MEANT_FOR}{self.run_id}"

    def expires_within(self, seconds: float) -> bool:
        """Whether the ticket is of no use in `seconds` from now."""
        return (self.expires - datetime.now(timezone.utc)).total_seconds() <= seconds

    def encode(self) -> bytes:
        """The ticket as JSON on one line."""
        uploads = {
            name: {"head": upload.head, "puts": [{**vars(put), "headers": dict(put.headers)} for put in upload.puts]}
            for name, upload in self.uploads.items()
        }
        facts = {"run_id": self.run_id, "nodes": self.nodes, "store": self.store, "expires_at": self.expires_at}
        return json.dumps({"schema": SCHEMA, **facts, "uploads": uploads}, separators=(",", ":")).encode() + b"\n"


def bundle_name(node: int) -> str:
    """The name of the upload of a node's bundle."""
    return f"node-{node}.tar.gz"


def parse_ticket(content: bytes) -> Ticket:
    """A ticket from its JSON. Raises TicketError."""
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise TicketError("it is not JSON") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise TicketError(f"its format is not {SCHEMA}")
    fields: dict[str, Any] = {}
    for name, read in _FIELDS.items():
        try:
            fields[name] = read(document[name])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise TicketError(f"its field {name} is missing or damaged") from None
    ticket = Ticket(expires=fields.pop("expires_at"), **fields)
    for name in (RECORD, *map(bundle_name, range(ticket.nodes))):
        if name not in ticket.uploads:
            raise TicketError(f"it has no upload URL for {name}")
    return ticket


def _run_id(value: Any) -> str:
    if not _RUN_ID.fullmatch(value):
        raise ValueError
    return str(value)


def _number(value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError
    return int(value)


def _store(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError
    return value


def _expires(value: Any) -> datetime:
    return datetime.strptime(value, _TIME).replace(tzinfo=timezone.utc)


def _uploads(value: Any) -> dict[str, SignedUpload]:
    return {name: _upload(found) for name, found in value.items()}


def _upload(value: Any) -> SignedUpload:
    puts = []
    for put in value["puts"]:
        headers = put.get("headers", {})
        if not all(_HEADER.fullmatch(name) and _VALUE.fullmatch(text) for name, text in headers.items()):
            raise ValueError
        puts.append(SignedPut(_number(put["bytes"], _MOST_BYTES), _url(put["url"]), dict(headers)))
    if not puts:
        raise ValueError
    return SignedUpload(_url(value["head"]), tuple(sorted(puts, key=lambda put: put.bytes)))


def _url(text: Any) -> str:
    """A URL that may be requested as it is."""
    parts = urlsplit(text)
    _ = parts.port  # raises ValueError for one that is not a number
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError
    return str(text)


_FIELDS: Mapping[str, Any] = {
    "run_id": _run_id,
    "nodes": lambda value: _number(value, _MOST_NODES),
    "store": _store,
    "expires_at": _expires,
    "uploads": _uploads,
}
