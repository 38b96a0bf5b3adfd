# A copy of builder/flagbench/s3/deliver.py, made by `flagbench manifests compile`.
"""Create-only uploads with presigned URLs, by a machine that has no keys: repeated until the object is there.

A URL is signed for one length, so an upload is padded to the shortest one that fits. After a lost answer a question
(HEAD) tells whether the object arrived: by its length and its MD5, which is its ETag. What was collected since has a
mark in its place, which names that MD5.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime, timezone
from io import BytesIO
from typing import IO

from flagbench_cases.shared.s3.checksums import md5_sum
from flagbench_cases.shared.s3.errors import S3Error
from flagbench_cases.shared.s3.presigned import BLOCK, Answer, Client, NoAnswer, Padded, opened_client
from flagbench_cases.shared.s3.ticket import RECORD, RENEW, SignedUpload, Ticket, bundle_name

ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 8.0
_NETWORK = "check the network and the proxy variables, then try again"
_AGAIN = (408, 429, 500, 502, 503, 504)
# Taken, in the words of several kinds of servers; or another writer is at it.
_TAKEN = ("FileAlreadyExists", "PreconditionFailed", "ConditionalRequestConflict")


class Delivery:
    """The uploads of a ticket. An error names the upload, the run and the store, and no URL."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._client: Client | None = None

    def waiting(self, name: str) -> bool:
        """Whether an upload is not there yet. Raises S3Error."""
        return self._asked(self._named(name)).status == 404

    def put_record(self, line: bytes) -> None:
        """Upload the record, padded with spaces before the end of its line. Raises S3Error."""
        line = line.rstrip(b"\n")

        def put(upload: SignedUpload) -> None:
            size = upload.shortest(len(line) + 1).bytes
            content = line.ljust(size - 1) + b"\n"
            self._put(upload, size, lambda: BytesIO(content))

        self._told(RECORD, put)

    def put_bundle(self, node: int, size: int, opened: Callable[[], IO[bytes]]) -> None:
        """Upload the `size` bytes of a node's bundle, padded with zeros; `opened` opens them, once for each attempt.

        Raises S3Error, and OSError where they cannot be read.
        """
        self._told(bundle_name(node), lambda upload: self._put(upload, size, opened))

    def _named(self, name: str) -> SignedUpload:
        if name not in self._ticket.uploads:
            raise S3Error(f"the ticket has no upload of {name}: it is for {self._ticket.nodes} node(s)", RENEW)
        return self._ticket.uploads[name]

    def _told(self, name: str, put: Callable[[SignedUpload], None]) -> None:
        try:
            put(self._named(name))
        except S3Error as error:
            message = f"{name} of the run {self._ticket.run_id} was not uploaded to {self._ticket.store}"
            raise S3Error(f"{message}: {error.message}", error.remedy, code=error.code, status=error.status) from None

    def _put(self, upload: SignedUpload, size: int, opened: Callable[[], IO[bytes]]) -> None:
        """Upload, unless these bytes are there, or were and have been collected."""
        signed = upload.shortest(size)
        md5, why = _md5(Padded(opened(), signed.bytes)), "no answer"
        for attempt in range(ATTEMPTS):
            _wait(attempt)
            there = self._asked(upload)
            if there.status != 404:
                if md5.hex() in (there.etag if there.length == signed.bytes else "", there.collected):
                    return
                raise S3Error("the ticket was used already, with other bytes", RENEW, code="PreconditionFailed")
            try:
                with Padded(opened(), signed.bytes) as body:
                    answer = self._connected().put(signed.url, signed.headers, body, signed.bytes, md5)
            except NoAnswer as error:
                why = str(error)
                continue
            if answer.status < 300:
                return
            why = f"the server answers {answer.text}"
            if answer.status not in (*_AGAIN, 412) and answer.code not in _TAKEN:
                raise self._refused(answer)
        raise S3Error(why, _NETWORK)

    def _asked(self, upload: SignedUpload) -> Answer:
        """What the server answers when asked for an object: 200 or 404. Raises S3Error."""
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
            why = f"the server answers {answer.text}"
            if answer.status not in _AGAIN:
                raise self._refused(answer)
        raise S3Error(why, _NETWORK)

    def _refused(self, answer: Answer) -> S3Error:
        why = f"the server answers {answer.text}"
        if answer.status == 403 and self._ticket.expires <= datetime.now(timezone.utc):
            why = f"the ticket expired at {self._ticket.expires_at}"
        elif answer.status == 403:
            why = f"the server refuses the ticket ({answer.text}): it was revoked, or this machine's clock is wrong"
        elif 300 <= answer.status < 400:
            why = f"the server redirects ({answer.text}), which an upload does not follow"
        return S3Error(why, RENEW, code=answer.code, status=answer.status)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = opened_client()
        return self._client


def _wait(attempt: int) -> None:
    """Before a repeated request, longer each time."""
    if attempt:
        time.sleep(min(FIRST_WAIT_SECONDS * 2 ** (attempt - 1), LONGEST_WAIT_SECONDS) * random.uniform(0.5, 1))


def _md5(stream: Padded) -> bytes:
    """The MD5 with which the server checks what it receives, and which it names what it has by."""
    with stream:
        return md5_sum(iter(lambda: stream.read(BLOCK), b""))
