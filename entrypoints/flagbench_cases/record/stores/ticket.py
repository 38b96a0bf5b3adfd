"""A ticket: presigned, create-only uploads for the results of one run, so that a machine needs no keys of a bucket.

`flagbench store ticket` makes it. Its URLs are credentials: no message contains any part of one.
"""

import json
import os
import re
from datetime import datetime, timezone
from typing import Any, Dict, List, NamedTuple, Optional
from urllib.parse import urlsplit

from flagbench_cases.shared import files
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.s3.deliver import SignedPut, SignedUpload

VARIABLE = "FLAGBENCH_TICKET"
SCHEMA = "ticket/v1"
REMEDY = "make another ticket: flagbench store ticket"
MAX_BYTES = 2**28
"""The largest ticket that is read: that of 100,000 nodes."""
_RUN_ID = re.compile("[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
_HEADER = re.compile("[A-Za-z0-9-]{1,64}")


class Ticket(NamedTuple):
    """What a machine may upload, for which run, and until when."""

    run_id: str
    nodes: int
    store: str
    expires_at: datetime
    uploads: Dict[str, SignedUpload]

    @property
    def expires_text(self) -> str:
        """When it expires, as a person reads it."""
        return self.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")

    def expires_within(self, seconds: float) -> bool:
        """Whether the ticket is of no use in `seconds` from now."""
        return (self.expires_at - datetime.now(timezone.utc)).total_seconds() <= seconds


def read_ticket(path: Optional[str]) -> Optional[Ticket]:
    """The ticket in the file of --ticket, else in FLAGBENCH_TICKET; None without either. Raises UsageError.

    The variable is removed from the environment: processes that this one starts have no use for it.
    """
    given = os.environ.pop(VARIABLE, None)
    if path is None:
        return parse(given, "the variable %s" % VARIABLE) if given else None
    where = "--ticket %s" % path
    try:
        with files.open_file(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except CaseError as error:
        raise UsageError("%s cannot be read: %s" % (where, error.message), "name the file of a ticket") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise UsageError("%s cannot be read (%s)" % (where, reason), "name the file of a ticket") from None
    if len(content) > MAX_BYTES:
        raise UsageError("%s is larger than %d bytes" % (where, MAX_BYTES), REMEDY)
    return parse(content.decode("utf-8", "replace"), where)


def parse(text: str, where: str) -> Ticket:
    """The ticket in a text. Raises UsageError, with nothing of what the text contains."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError("%s is not JSON" % where, REMEDY) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError("%s is not a ticket of the format %s" % (where, SCHEMA), REMEDY)
    try:
        return _ticket(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UsageError("%s is a damaged ticket" % where, REMEDY) from None


def _ticket(document: Dict[str, Any]) -> Ticket:
    run_id, nodes, store = document["run_id"], document["nodes"], document["store"]
    if not _RUN_ID.fullmatch(run_id) or type(nodes) is not int or nodes < 1:
        raise ValueError
    if not isinstance(store, str) or not store.isprintable():
        raise ValueError
    expires = datetime.strptime(document["expires_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    uploads = {name: _upload(found) for name, found in document["uploads"].items()}
    return Ticket(run_id, nodes, store, expires, uploads)


def _upload(found: Dict[str, Any]) -> SignedUpload:
    puts: List[SignedPut] = []
    for put in found["puts"]:
        size, headers = put["bytes"], put.get("headers", {})
        if type(size) is not int or size < 1:
            raise ValueError
        if not all(_HEADER.fullmatch(name) and value.isprintable() for name, value in headers.items()):
            raise ValueError
        puts.append(SignedPut(size, _url(put["url"]), dict(headers)))
    if not puts:
        raise ValueError
    return SignedUpload(_url(found["head"]), tuple(sorted(puts, key=lambda put: put.bytes)))


def _url(text: str) -> str:
    """A URL that may be requested as it is."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError
    return text
