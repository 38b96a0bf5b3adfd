"""A store that a ticket gives access to: one create-only upload for the record and one for each node's bundle."""

from typing import Any, Callable, Dict, Optional

from flagbench_cases.record.stores import layout
from flagbench_cases.record.stores.store import Bundle, not_stored
from flagbench_cases.record.stores.ticket import REMEDY, Ticket
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.s3.deliver import Delivery, SignedUpload
from flagbench_cases.shared.s3.errors import S3Error


class TicketStore:
    """The results of the run that a ticket is for."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._delivery = Delivery(ticket.expires_at)
        self.name = "the ticket of run %s" % ticket.run_id
        self.meant_for: Optional[str] = "ticket:%s" % ticket.run_id

    def check(self, node: int) -> None:
        """Ask for the uploads of this node, none of which may be there. Raises UsageError."""
        if self._ticket.expires_within(0):
            raise UsageError(
                "the ticket expired at %s" % self._ticket.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"), REMEDY
            )
        names = [layout.bundle_upload(node)] + ([layout.record_upload()] if node == 0 else [])
        for name in names:
            upload = self._ticket.uploads.get(name)
            if upload is None:
                raise UsageError("the ticket has no upload of %s" % name, REMEDY)
            try:
                waiting = self._delivery.waiting(upload)
            except S3Error as error:
                raise UsageError("the ticket cannot be used: %s" % error.message, error.remedy) from None
            if not waiting:
                raise UsageError(
                    "the ticket of run %s was used already: %s is there" % (self._ticket.run_id, name), REMEDY
                )

    def put_record(self, record: Dict[str, Any], line: str) -> str:
        """Upload a record, padded with spaces to a size that the ticket allows. Raises CaseError (14)."""
        name, content = layout.record_upload(), line.encode("utf-8")
        return self._put(name, lambda upload: self._delivery.put_line(upload, content))

    def put_bundle(self, record_id: str, bundle: Bundle) -> str:
        """Upload a bundle, padded with zeros to a size that the ticket allows. Raises CaseError (14)."""
        name = layout.bundle_upload(bundle.node)
        try:
            return self._put(
                name, lambda upload: self._delivery.put(upload, bundle.bytes, lambda: open(bundle.path, "rb"))
            )
        except OSError as error:
            raise not_stored("the bundle cannot be read (%s)" % (error.strerror or error), "run again") from None

    def _put(self, name: str, put: Callable[[SignedUpload], None]) -> str:
        upload = self._ticket.uploads.get(name)
        if upload is None:
            raise not_stored("the ticket has no upload of %s" % name, REMEDY)
        try:
            put(upload)
        except S3Error as error:
            message = "%s of the run %s was not uploaded: %s" % (name, self._ticket.run_id, error.message)
            raise not_stored(message, error.remedy) from None
        return "%s of %s" % (name, self.name)
