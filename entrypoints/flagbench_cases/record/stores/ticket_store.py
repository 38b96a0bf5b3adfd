"""A store that a ticket gives access to: one create-only upload for the record and one for each node's bundle."""

import hashlib
import io
import random
import sys
import time
from typing import IO, Any, Callable, Dict, Optional

from flagbench_cases.record.stores import layout
from flagbench_cases.record.stores.presigned import BLOCK, Answer, Client, NoAnswer, Padded
from flagbench_cases.record.stores.store import Bundle, not_stored
from flagbench_cases.record.stores.ticket import REMEDY, Put, Ticket, Upload
from flagbench_cases.shared.errors import CaseError, UsageError

ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 8.0
NETWORK = "check the network and the proxy variables"
_AGAIN = (408, 429, 500, 502, 503, 504)
# Taken, in the words of several kinds of servers; or another writer is at it.
_TAKEN = ("FileAlreadyExists", "PreconditionFailed", "ConditionalRequestConflict")
_NOT_FOR_SECURITY: Dict[str, Any] = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}


class TicketStore:
    """The results of the run that a ticket is for."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._client: Optional[Client] = None
        self.name = "the ticket of run %s" % ticket.run_id
        self.meant_for: Optional[str] = "ticket:%s" % ticket.run_id

    def check(self, node: int) -> None:
        """Ask for the uploads of this node, none of which may be there. Raises UsageError."""
        if self._ticket.expires_within(0):
            raise UsageError("the ticket expired at %s" % self._expiry(), REMEDY)
        names = [layout.bundle_upload(node)] + ([layout.record_upload()] if node == 0 else [])
        for name in names:
            upload = self._ticket.uploads.get(name)
            if upload is None:
                raise UsageError("the ticket has no upload of %s" % name, REMEDY)
            try:
                answer = self._asked(upload)
            except CaseError as error:
                raise UsageError("the ticket cannot be used: %s" % error.message, error.remedy) from None
            if answer.status != 404:
                raise UsageError(
                    "the ticket of run %s was used already: %s is there" % (self._ticket.run_id, name), REMEDY
                )

    def put_record(self, record: Dict[str, Any], line: str) -> str:
        """Upload a record, padded with spaces to a size that the ticket allows. Raises CaseError (14)."""
        content = line.encode("utf-8")
        name = layout.record_upload()
        put = self._smallest(name, len(content) + 1)
        content += b" " * (put.bytes - len(content) - 1) + b"\n"
        return self._upload(name, put, lambda: io.BytesIO(content))

    def put_bundle(self, record_id: str, bundle: Bundle) -> str:
        """Upload a bundle, padded with zeros to a size that the ticket allows. Raises CaseError (14)."""
        name = layout.bundle_upload(bundle.node)
        put = self._smallest(name, bundle.bytes)
        try:
            return self._upload(name, put, lambda: open(bundle.path, "rb"))
        except OSError as error:
            raise not_stored("the bundle cannot be read (%s)" % (error.strerror or error), "run again") from None

    def _smallest(self, name: str, size: int) -> Put:
        upload = self._ticket.uploads.get(name)
        fitting = [put for put in upload.puts if put.bytes >= size] if upload else []
        if not fitting:
            raise not_stored("the ticket has no upload of %s with %d bytes" % (name, size), REMEDY)
        return fitting[0]

    def _upload(self, name: str, put: Put, opened: Callable[[], IO[bytes]]) -> str:
        """Send an object until it is there. What is there after a lost answer is recognized by its sum."""
        md5 = _md5(Padded(opened(), put.bytes))
        upload, why = self._ticket.uploads[name], "no answer"
        for attempt in range(ATTEMPTS):
            _wait(attempt)
            there = self._asked(upload)
            if there.status != 404:
                if (there.length, there.etag) == (put.bytes, md5.hex()):
                    return "%s of %s" % (name, self.name)
                raise not_stored(
                    "%s was already uploaded with the ticket of run %s, with other bytes"
                    % (name, self._ticket.run_id),
                    REMEDY,
                )
            try:
                with Padded(opened(), put.bytes) as body:
                    answer = self._connected().put(put.url, put.headers, body, put.bytes, md5)
            except NoAnswer as error:
                why = str(error)
                continue
            if answer.status < 300:
                return "%s of %s" % (name, self.name)
            why = answer.text
            if answer.status not in (*_AGAIN, 412) and answer.code not in _TAKEN:
                raise self._refused(answer)
        raise not_stored("%s was not uploaded: %s" % (name, why), NETWORK)

    def _asked(self, upload: Upload) -> Answer:
        """What the server answers when asked for an object: 200 or 404. Raises CaseError (14)."""
        why = "no answer"
        for attempt in range(ATTEMPTS):
            _wait(attempt)
            try:
                answer = self._connected().head(upload.head)
            except NoAnswer as error:
                why = str(error)
                continue
            if answer.status in (200, 404):
                return answer
            why = "the server answers %s" % answer.text
            if answer.status not in _AGAIN:
                raise self._refused(answer)
        raise not_stored(why, NETWORK)

    def _refused(self, answer: Answer) -> CaseError:
        if answer.status == 403 and self._ticket.expires_within(0):
            return not_stored("the ticket expired at %s" % self._expiry(), REMEDY)
        if answer.status == 403:
            reason = "the server refuses the ticket (%s): it was revoked, or this machine's clock is wrong"
            return not_stored(reason % answer.text, REMEDY)
        if 300 <= answer.status < 400:
            return not_stored("the server redirects (%s), which an upload does not follow" % answer.text, REMEDY)
        return not_stored("the server answers %s" % answer.text, REMEDY)

    def _connected(self) -> Client:
        if self._client is None:
            try:
                self._client = Client()
            except OSError as error:
                raise not_stored(
                    "the certificates cannot be read (%s)" % (error.strerror or error),
                    "correct AWS_CA_BUNDLE or SSL_CERT_FILE",
                ) from None
        return self._client

    def _expiry(self) -> str:
        return self._ticket.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _wait(attempt: int) -> None:
    """Before a repeated request, longer each time."""
    if attempt:
        time.sleep(min(FIRST_WAIT_SECONDS * 2 ** (attempt - 1), LONGEST_WAIT_SECONDS) * random.uniform(0.5, 1))


def _md5(stream: Padded) -> bytes:
    """The MD5 with which the server checks what it receives, and which it names what it has by."""
    found = hashlib.md5(**_NOT_FOR_SECURITY)
    with stream:
        for piece in iter(lambda: stream.read(BLOCK), b""):
            found.update(piece)
    return found.digest()
