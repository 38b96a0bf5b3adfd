"""Requests by presigned URLs, with the standard library alone. A URL is a credential: no error contains one."""

from __future__ import annotations

import base64
import http.client
import io
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from flagbench.redaction import redact
from flagbench.s3.errors import S3Error

SECONDS = 60.0
"""How long the server may take to connect, to accept bytes or to answer."""
BLOCK = 2**16
COLLECTED = "collected-md5"
"""The metadata of a mark: the MD5 of the upload in whose place it is."""
_ERROR_BYTES = 2**16
_CODE, _MESSAGE = re.compile("<Code>([^<]{1,100})</Code>"), re.compile("<Message>([^<]{1,500})</Message>")


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    code: str
    """S3's word for an error; empty for a success."""
    message: str
    etag: str
    """In small letters; Alibaba Cloud OSS writes an MD5 in capital ones."""
    length: int | None
    collected: str = ""
    """Of a mark that was put in the place of an upload: the MD5 of that."""

    @property
    def text(self) -> str:
        """The error, for a person."""
        return redact(" ".join(word for word in (str(self.status), self.code, self.message) if word))


class NoAnswer(Exception):
    """The connection failed; whether the request was carried out is not known."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected request would repeat a body to a server that nobody named."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Client:
    """Sends requests by the proxies that the environment names."""

    def __init__(self, certificates: str | None) -> None:
        """`certificates`: a file or a folder of those that are trusted; None for Python's own. Raises OSError."""
        folder = certificates if certificates and Path(certificates).is_dir() else None
        context = ssl.create_default_context(cafile=None if folder else certificates, capath=folder)
        https = urllib.request.HTTPSHandler(context=context)
        self._opener = urllib.request.build_opener(_NoRedirects(), https)
        self._opener.addheaders = [("User-Agent", "flagbench")]

    def head(self, url: str) -> Answer:
        """Ask for an object. Raises NoAnswer."""
        return self._send(urllib.request.Request(url, method="HEAD"))

    def put(
        self, url: str, headers: Mapping[str, str], body: io.RawIOBase | IO[bytes], size: int, md5: bytes
    ) -> Answer:
        """Send an object of `size` bytes. Raises NoAnswer."""
        request = urllib.request.Request(url, data=body, method="PUT")
        sent = {"Content-Length": str(size), "Content-MD5": base64.b64encode(md5).decode("ascii"), **headers}
        for name, value in sent.items():
            request.add_header(name, value)
        return self._send(request)

    def _send(self, request: urllib.request.Request) -> Answer:
        try:
            with self._opener.open(request, timeout=SECONDS) as answer:
                answer.read(_ERROR_BYTES)
                return _answer(answer.status, answer.headers, "")
        except urllib.error.HTTPError as error:
            with error:
                try:
                    text = error.read(_ERROR_BYTES).decode("utf-8", "replace")
                except (OSError, http.client.HTTPException):
                    text = ""
                return _answer(error.code, error.headers, text)
        except urllib.error.URLError as error:
            raise NoAnswer(_reason(error.reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(_reason(error)) from None


def opened_client(certificates: str | None = None) -> Client:
    """A client that trusts certificates of a file or a folder, else those of the environment. Raises S3Error."""
    try:
        return Client(certificates or _certificates())
    except OSError as error:
        raise S3Error(
            f"the certificates cannot be read ({error.strerror or error})",
            "correct AWS_CA_BUNDLE or SSL_CERT_FILE",
        ) from None


class Padded(io.RawIOBase):
    """A stream followed by zero bytes, `size` bytes in all."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        super().__init__()
        self._stream, self._left = stream, size

    def read(self, count: int | None = -1) -> bytes:
        """At most BLOCK bytes at a time, however many are asked for."""
        count = min(self._left, BLOCK)
        if not count:
            return b""
        piece = self._stream.read(count) or bytes(count)
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        """Close the stream, too."""
        self._stream.close()
        super().close()


def _answer(status: int, headers: Any, text: str) -> Answer:
    code, message = _CODE.search(text), _MESSAGE.search(text)
    length = headers.get("Content-Length") or ""
    return Answer(
        status,
        code.group(1) if code else "",
        message.group(1) if message else "",
        (headers.get("ETag") or "").strip('"').lower(),
        int(length) if length.isdigit() else None,
        (headers.get(f"x-amz-meta-{COLLECTED}") or "").lower(),
    )


def _reason(error: Any) -> str:
    """Why there was no answer. Some exceptions of http.client show what was requested: of those only the kind."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message}); AWS_CA_BUNDLE names an authority's"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the connection was closed without an answer"
    if isinstance(error, http.client.HTTPException):
        return f"the server does not answer in HTTP ({type(error).__name__})"
    return "the connection failed: " + redact(
        getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
    )


def _certificates() -> str | None:
    """The file or folder of trusted certificates: AWS_CA_BUNDLE; None for Python's own choice.

    SSL_CERT_FILE sets that. An image without certificates of its own may have those of certifi.
    """
    if os.environ.get("AWS_CA_BUNDLE"):
        return os.environ["AWS_CA_BUNDLE"]
    known = ssl.get_default_verify_paths()
    if known.cafile or (known.capath and any(Path(known.capath).glob("*"))):
        return None
    try:
        import certifi
    except ImportError:
        return None
    return str(certifi.where())
