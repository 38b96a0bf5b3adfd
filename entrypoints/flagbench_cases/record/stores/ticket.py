"""The ticket of a run, from --ticket or FLAGBENCH_TICKET, so that a machine needs no keys of a bucket.

`flagbench store ticket` makes it. Its URLs are credentials: no message contains any part of one.
"""

import os
from typing import Optional

from flagbench_cases.shared import files
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.s3.ticket import RENEW, TICKET_BYTES, Ticket, TicketError, parse_ticket

__all__ = ["Ticket", "parse", "read_ticket"]

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
    if len(content) > TICKET_BYTES:
        raise UsageError("%s is larger than %d bytes" % (where, TICKET_BYTES), RENEW)
    return parse(content, where)


def parse(content: bytes, where: str) -> Ticket:
    """The ticket in a text. Raises UsageError, with nothing of what the text contains."""
    try:
        return parse_ticket(content)
    except TicketError as error:
        raise UsageError("%s is not a ticket: %s" % (where, error), RENEW) from None
