"""The ticket of a run, from --ticket or FLAGBENCH_TICKET, so that a machine needs no keys of a bucket.

`flagbench store ticket` makes it: one create-only upload of the record and one of each node's bundle. Its URLs are
credentials: no message contains any part of one.
"""

import io
import os
from typing import IO, Any, Callable, Dict, Optional

from flagbench_cases.record.stores.store import Bundle, not_stored
from flagbench_cases.shared import files
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.s3.errors import S3Error
from flagbench_cases.shared.s3.ticket import (
    RECORD,
    RENEW,
    TICKET_BYTES,
    Ticket,
    TicketError,
    bundle_name,
    parse_ticket,
)

__all__ = ["Ticket", "TicketStore", "parse", "read_ticket"]

VARIABLE = "FLAGBENCH_TICKET"


def read_ticket(path: Optional[str]) -> Optional[Ticket]:
    """The ticket in the file of --ticket, else in FLAGBENCH_TICKET; None without either. Raises UsageError.

    The variable is removed from the environment: processes that this one starts have no use for it.
    """
    given = os.environ.pop(VARIABLE, None)
    if path is None:
        return parse(given.encode("utf-8", "surrogateescape"), "the variable %s" % VARIABLE) if given else None
    where = "--ticket %s" % path
    try:
        with files.open_file(path, "rb") as file:
            content = file.read(TICKET_BYTES + 1)
    except CaseError as error:
        raise UsageError("%s cannot be read: %s" % (where, error.message), "name the file of a ticket") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise UsageError("%s cannot be read (%s)" % (where, reason), "name the file of a ticket") from None
    return parse(content, where)


def parse(content: bytes, where: str) -> Ticket:
    """The ticket in a text. Raises UsageError, with nothing of what the text contains."""
    try:
        return parse_ticket(content)
    except TicketError as error:
        raise UsageError("%s is not a ticket: %s" % (where, error), RENEW) from None


class TicketStore:
    """The results of the run that a ticket is for."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self.name = "the ticket of run %s" % ticket.run_id
        self.meant_for: Optional[str] = ticket.meant_for

    def check(self, node: int) -> None:
        """Find out whether the server answers. Raises UsageError."""
        try:
            self._ticket.reach()
        except S3Error as error:
            raise UsageError("the ticket cannot be used: %s" % error.message, error.remedy) from None

    def put_record(self, record: Dict[str, Any], line: str) -> str:
        """Upload a record. Raises CaseError (14)."""
        content = (line + "\n").encode("utf-8")
        return self._put(RECORD, len(content), lambda: io.BytesIO(content))

    def put_bundle(self, record_id: str, bundle: Bundle) -> str:
        """Upload a bundle. Raises CaseError (14)."""
        try:
            return self._put(bundle_name(bundle.node), bundle.bytes, lambda: open(bundle.path, "rb"))
        except OSError as error:
            raise not_stored("the bundle cannot be read (%s)" % (error.strerror or error), "run again") from None

    def _put(self, name: str, size: int, opened: Callable[[], IO[bytes]]) -> str:
        try:
            self._ticket.put(name, size, opened)
        except S3Error as error:
            raise not_stored(error.message, error.remedy) from None
        return "%s of %s" % (name, self.name)
