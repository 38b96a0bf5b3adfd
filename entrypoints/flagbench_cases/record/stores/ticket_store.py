"""A store that a ticket gives access to: one create-only upload for the record and one for each node's bundle."""

import contextlib
from typing import Any, Dict, Iterator, Optional

from flagbench_cases.record.stores.store import Bundle, not_stored
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.s3.deliver import Delivery
from flagbench_cases.shared.s3.errors import S3Error
from flagbench_cases.shared.s3.ticket import RECORD, RENEW, Ticket, bundle_name


class TicketStore:
    """The results of the run that a ticket is for."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._delivery = Delivery(ticket)
        self.name = "the ticket of run %s" % ticket.run_id
        self.meant_for: Optional[str] = ticket.meant_for

    def check(self, node: int) -> None:
        """Ask for the uploads of this node, none of which may be there. Raises UsageError."""
        if self._ticket.expires_within(0):
            raise UsageError("the ticket expired at %s" % self._ticket.expires_at, RENEW)
        for name in [bundle_name(node)] + ([RECORD] if node == 0 else []):
            try:
                waiting = self._delivery.waiting(name)
            except S3Error as error:
                raise UsageError("the ticket cannot be used: %s" % error.message, error.remedy) from None
            if not waiting:
                raise UsageError(
                    "the ticket of run %s was used already: %s is there" % (self._ticket.run_id, name), RENEW
                )

    def put_record(self, record: Dict[str, Any], line: str) -> str:
        """Upload a record, padded with spaces to a size that the ticket allows. Raises CaseError (14)."""
        with _errors():
            self._delivery.put_record(line.encode("utf-8"))
        return "%s of %s" % (RECORD, self.name)

    def put_bundle(self, record_id: str, bundle: Bundle) -> str:
        """Upload a bundle, padded with zeros to a size that the ticket allows. Raises CaseError (14)."""
        try:
            with _errors():
                self._delivery.put_bundle(bundle.node, bundle.bytes, lambda: open(bundle.path, "rb"))
        except OSError as error:
            raise not_stored("the bundle cannot be read (%s)" % (error.strerror or error), "run again") from None
        return "%s of %s" % (bundle_name(bundle.node), self.name)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except S3Error as error:
        raise not_stored(error.message, error.remedy) from None
