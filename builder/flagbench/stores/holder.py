"""What the holder of a ticket does: uploads a record and bundles with presigned URLs, without boto3 and without keys.

An upload has one of a few signed lengths: a record is padded with spaces before its final newline, a bundle with zero
bytes, which gzip ignores after its end. After a lost answer a question (HEAD) decides whether it arrived.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from flagbench.files import reason
from flagbench.s3.presign import Presigned
from flagbench.stores.blobs import StoreError
from flagbench.stores.ticket import RECORD, Put, Ticket, Upload, bundle_name

_ATTEMPTS = 4
_WAIT_SECONDS = 0.5
"""Before the second attempt; doubled before each further one."""
_TIMEOUTS = (10, 60)
"""Seconds: to connect, and between two bytes."""
_CHUNK = 2**20
_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


@dataclass(frozen=True)
class Reply:
    """What a server answered."""

    status: int
    etag: str
    size: int | None
    """Bytes of the object, where that was asked."""


class Unanswered(Exception):
    """A request that had no answer; its words name the host and nothing of the URL."""


class _Padded:
    """A stream followed by filler, of a known length, that can be sent again."""

    def __init__(self, stream: BinaryIO, size: int, total: int, *, filler: bytes, end: bytes = b"") -> None:
        self._stream, self._size, self._total, self._filler, self._end = stream, size, total, filler, end
        self._position = 0

    def __len__(self) -> int:
        return self._total - self._position

    def rewind(self) -> None:
        """Begin again."""
        self._stream.seek(0)
        self._position = 0

    def read(self, count: int = -1) -> bytes:
        """The next bytes; `count` is a limit."""
        left = len(self)
        wanted = left if count < 0 else min(count, left)
        content = self._stream.read(min(wanted, self._size - self._position)) if self._position < self._size else b""
        if not content and wanted:
            if self._position < self._size:
                raise OSError(None, "the file became shorter while it was read")
            before_end = self._total - len(self._end) - self._position
            content = self._filler * min(wanted, before_end) if before_end > 0 else self._end
        self._position += len(content)
        return content

    def md5(self) -> str:
        """Of the whole, as a server names what it received."""
        found = hashlib.md5(usedforsecurity=False)
        self.rewind()
        while chunk := self.read(_CHUNK):
            found.update(chunk)
        self.rewind()
        return found.hexdigest()


def upload_record(ticket: Ticket, record: bytes) -> None:
    """Upload a record, as it was printed. Raises StoreError (NOT_STORED), in which no URL is named."""
    content = record.rstrip(b"\n")
    body = BytesIO(content)
    _upload(
        ticket, RECORD, len(content) + 1, lambda total: _Padded(body, len(content), total, filler=b" ", end=b"\n")
    )


def upload_bundle(ticket: Ticket, node: int, path: Path) -> None:
    """Upload the bundle of a node. Raises StoreError (NOT_STORED), in which no URL is named."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            _upload(ticket, bundle_name(node), size, lambda total: _Padded(file, size, total, filler=b"\0"))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason(error)}", remedy="make it readable for you") from error


def send(method: str, signed: Presigned, body: Any = None) -> Reply:
    """Make a presigned request. Raises Unanswered where there was no answer."""
    import requests

    authority = os.environ.get("AWS_CA_BUNDLE") or True
    host = urlsplit(signed.url).hostname
    try:
        with requests.request(
            method,
            signed.url,
            data=body,
            headers=dict(signed.headers),
            timeout=_TIMEOUTS,
            verify=authority,
            allow_redirects=False,
        ) as reply:
            size = reply.headers.get("Content-Length", "") if method == "HEAD" else ""
            return Reply(reply.status_code, reply.headers.get("ETag", "").strip('"'), int(size) if size else None)
    except requests.exceptions.SSLError:
        raise Unanswered(f"the certificate of {host} is not trusted (AWS_CA_BUNDLE names its authority)") from None
    except requests.Timeout:
        raise Unanswered(f"{host} did not answer in time") from None
    except (requests.RequestException, OSError, ValueError):
        raise Unanswered(f"the connection to {host} failed") from None


def _upload(ticket: Ticket, name: str, size: int, padded: Callable[[int], _Padded]) -> None:
    upload = ticket.uploads.get(name)
    if upload is None:
        raise _refused(ticket, name, f"the ticket is for {ticket.nodes} node(s)", "make one for more")
    put = upload.smallest(size)
    if put is None:
        longest = max(each.bytes for each in upload.puts)
        raise _refused(ticket, name, f"it has {size} bytes, and the ticket allows {longest}", "store it with keys")
    body = padded(put.bytes)
    etag = body.md5()
    problem = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_WAIT_SECONDS * 2 ** (attempt - 1))
        try:
            unsent = _sent(ticket, name, upload, put, body, etag)
            if unsent is None:
                return
            problem = unsent
        except Unanswered as error:
            problem = str(error)
    raise _refused(ticket, name, problem, "check the network and AWS_CA_BUNDLE, then push it again")


def _sent(ticket: Ticket, name: str, upload: Upload, put: Put, body: _Padded, etag: str) -> str | None:
    """None where it is there now, else why another attempt may succeed. Raises Unanswered, StoreError."""
    there = send("HEAD", Presigned(upload.head, {}))
    if there.status == HTTPStatus.OK:
        if (there.etag, there.size) == (etag, put.bytes):
            return None  # it was sent before, as when the answer was lost
        raise _refused(ticket, name, "the ticket was used already, for something else", "make another ticket")
    body.rewind()
    status = send("PUT", Presigned(put.url, put.headers), body).status
    if status in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT):
        return None
    if status in (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.CONFLICT):
        return "the ticket was used already"  # perhaps for this very upload: the next question decides
    if status in _BUSY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"the server answers {status}"
    if status != HTTPStatus.FORBIDDEN:
        why = f"the server answers {status}"
    elif ticket.expires <= datetime.now(timezone.utc):
        why = f"the ticket expired at {ticket.expires_at}"
    else:
        why = "the server refuses the ticket: it was withdrawn or changed, or this machine's clock is wrong"
    raise _refused(ticket, name, why, "make another ticket")


def _refused(ticket: Ticket, name: str, why: str, remedy: str) -> StoreError:
    return StoreError(f"{name} of the run {ticket.run_id} was not uploaded to {ticket.store}: {why}", remedy=remedy)
