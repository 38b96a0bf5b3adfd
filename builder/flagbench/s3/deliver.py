"""Create-only uploads with presigned URLs, by a machine that has no keys: repeated until the object is there.

A URL is signed for one length, so an upload is padded to the shortest one that fits. After a lost answer a question
(HEAD) tells whether the object arrived: by its length and its MD5, which is its ETag.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from io import BytesIO
from typing import IO, Any

from flagbench.s3.errors import S3Error
from flagbench.s3.presigned import BLOCK, Answer, Client, NoAnswer, Padded

ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 8.0
RENEW = "make another ticket: `flagbench store ticket`"
_NETWORK = "check the network and the proxy variables, then try again"
_AGAIN = (408, 429, 500, 502, 503, 504)
# Taken, in the words of several kinds of servers; or another writer is at it.
_TAKEN = ("FileAlreadyExists", "PreconditionFailed", "ConditionalRequestConflict")
_NOT_FOR_SECURITY: dict[str, Any] = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}


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


class Delivery:
    """Uploads that are signed until `expires`."""

    def __init__(self, expires: datetime) -> None:
        self._expires = expires
        self._client: Client | None = None

    def waiting(self, upload: SignedUpload) -> bool:
        """Whether the object is not there yet. Raises S3Error."""
        return self._asked(upload).status == 404

    def put_line(self, upload: SignedUpload, line: bytes) -> None:
        """Upload a line of text, padded with spaces before its end. Raises S3Error, as `put`."""
        size = upload.shortest(len(line) + 1).bytes
        content = line.ljust(size - 1) + b"\n"
        self.put(upload, size, lambda: BytesIO(content))

    def put(self, upload: SignedUpload, size: int, opened: Callable[[], IO[bytes]]) -> None:
        """Upload `size` bytes, padded with zeros; `opened` opens them, once for each attempt.

        Raises S3Error, whose `taken` says that other bytes are there, and OSError where they cannot be read.
        """
        signed = upload.shortest(size)
        md5, why = _md5(Padded(opened(), signed.bytes)), "no answer"
        for attempt in range(ATTEMPTS):
            _wait(attempt)
            there = self._asked(upload)
            if there.status != 404:
                if (there.length, there.etag) == (signed.bytes, md5.hex()):
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
        if answer.status == 403 and self._expires <= datetime.now(timezone.utc):
            why = f"the ticket expired at {self._expires:%Y-%m-%dT%H:%M:%SZ}"
        elif answer.status == 403:
            why = f"the server refuses the ticket ({answer.text}): it was revoked, or this machine's clock is wrong"
        elif 300 <= answer.status < 400:
            why = f"the server redirects ({answer.text}), which an upload does not follow"
        return S3Error(why, RENEW, code=answer.code, status=answer.status)

    def _connected(self) -> Client:
        if self._client is None:
            try:
                self._client = Client()
            except OSError as error:
                raise S3Error(
                    f"the certificates cannot be read ({error.strerror or error})",
                    "correct AWS_CA_BUNDLE or SSL_CERT_FILE",
                ) from None
        return self._client


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
