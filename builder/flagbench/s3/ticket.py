"""A ticket: presigned, expiring, create-only uploads of one run, for a machine that must not hold a bucket's keys.

One URL is for the record and one for the bundle of each node. They are credentials: no error contains any part of
one. Uploads need the standard library alone.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from flagbench.redaction import redact
from flagbench.s3.errors import S3Error

SCHEMA = "ticket/v1"
RECORD = "record.json"
"""The name of the upload of the record."""
MEANT_FOR = "ticket:"
"""Begins what stands in the place of an address where something waits for a ticket."""
TICKET_BYTES = 64 * 2**20
"""The largest ticket that is made or read."""
RENEW = "make another ticket: `flagbench store ticket`"
ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.5
SECONDS = 60.0
"""How long the server may take to connect, to accept bytes or to answer."""
_NETWORK = "check the network and the proxy variables, then try again"
_AGAIN = (408, 429, 500, 502, 503, 504)
_PERHAPS = (None, 500, 502, 504)
"""The status of answers after which an object may be there; None: there was no answer."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_RUN_ID = re.compile("[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
_CODE, _MESSAGE = re.compile("<Code>([^<]{1,100})</Code>"), re.compile("<Message>([^<]{1,500})</Message>")
_ERROR_BYTES = 2**16


class TicketError(ValueError):
    """Why something is not a ticket, without a word of its content."""


class _NotSent(S3Error):
    """The connection failed before everything was sent."""


@dataclass(frozen=True)
class Ticket:
    """What `flagbench store ticket` makes."""

    run_id: str
    nodes: int
    """Of the run, at most."""
    store: str
    """The store it was made for; in messages only."""
    expires: datetime
    """When its URLs end to be valid, UTC, in whole seconds."""
    headers: Mapping[str, str]
    """Signed, and so part of every upload: with them a put never overwrites."""
    uploads: Mapping[str, str]
    """The URL of each upload, by its name."""

    @property
    def expires_at(self) -> str:
        """When it expires, as a person reads it."""
        return self.expires.strftime(_TIME)

    @property
    def meant_for(self) -> str:
        """What stands in the place of an address where something waits for this ticket: no URL of it."""
        return f"{MEANT_FOR}{self.run_id}"

    def fault(self, run_id: str | None, nodes: int, minutes: float | None) -> tuple[str, str] | None:
        """Why the ticket cannot be used for a run, and what to do; None if it can.

        Args:
            run_id: the name that was asked for; None takes the ticket's.
            minutes: after how many the run is ended.
        """
        if run_id not in (None, self.run_id):
            what = f"the ticket is for the run {self.run_id}, not for {run_id}"
            return what, "leave out --run-id, or make a ticket for this run"
        if nodes > self.nodes:
            what = f"the ticket is for {self.nodes} node(s), not for {nodes}"
            return what, f"make one with `flagbench store ticket --nodes {nodes}`"
        if self._expires_within(60 * (minutes or 0)):
            ends = f", before a run of --max-minutes {minutes:g} has ended" if minutes else ""
            return f"the ticket expires at {self.expires_at}{ends}", RENEW
        return None

    def encode(self) -> bytes:
        """The ticket as JSON on one line."""
        facts = {"run_id": self.run_id, "nodes": self.nodes, "store": self.store, "expires_at": self.expires_at}
        urls = {"headers": dict(self.headers), "uploads": dict(self.uploads)}
        return json.dumps({"schema": SCHEMA, **facts, **urls}, separators=(",", ":")).encode() + b"\n"

    def put(self, name: str, size: int, opened: Callable[[], IO[bytes]]) -> None:
        """Upload the `size` bytes that `opened` opens, once for each attempt. What is there is never replaced.

        An upload that was sent and not answered counts as the one that is found there by the next attempt: the ticket
        is of one run. Raises S3Error, and OSError where the bytes cannot be read.
        """
        if name not in self.uploads:
            raise S3Error(f"the ticket has no upload of {name}: it is for {self.nodes} node(s)", RENEW)
        perhaps = False
        for left in _attempts():
            try:
                if self._expires_within(0):
                    raise S3Error(f"the ticket expired at {self.expires_at}", RENEW)
                with opened() as body:
                    headers = {**self.headers, "Content-Length": str(size)}
                    _send(urllib.request.Request(self.uploads[name], body, headers, method="PUT"))
                return
            except S3Error as error:
                if error.taken and perhaps:
                    return
                perhaps = perhaps or (error.status in _PERHAPS and error.network and not isinstance(error, _NotSent))
                if not (error.network and left):
                    what = f"{name} of the run {self.run_id} was not uploaded to {self.store}"
                    found = S3Error(f"{what}: {error.message}", error.remedy, code=error.code, network=error.network)
                    raise found from None

    def reach(self) -> None:
        """Find out whether the server answers, without using the ticket. Raises S3Error."""
        url = next(iter(self.uploads.values())).partition("?")[0]
        for left in _attempts():
            try:
                return _send(urllib.request.Request(url, method="HEAD"))
            except S3Error as error:
                if error.status is not None:
                    return None
                if not (error.network and left):
                    raise

    def _expires_within(self, seconds: float) -> bool:
        return (self.expires - datetime.now(timezone.utc)).total_seconds() <= seconds


def bundle_name(node: int) -> str:
    """The name of the upload of a node's bundle."""
    return f"node-{node}.tar.gz"


def parse_ticket(content: bytes) -> Ticket:
    """A ticket from its JSON. Raises TicketError."""
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise TicketError("it is not JSON") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise TicketError(f"its format is not {SCHEMA}")
    try:
        expires = datetime.strptime(document["expires_at"], _TIME).replace(tzinfo=timezone.utc)
        run_id, nodes, store = document["run_id"], document["nodes"], document["store"]
        headers, uploads = dict(document["headers"]), dict(document["uploads"])
        sound = _RUN_ID.fullmatch(run_id) and type(nodes) is int and nodes > 0 and store.isprintable()
        texts = [text for pair in headers.items() for text in pair]
        if not (sound and all(map(_is_plain, texts)) and all(map(_is_url, uploads.values()))):
            raise TicketError("it is damaged")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise TicketError("it is damaged") from None
    missing = {RECORD, bundle_name(0), bundle_name(nodes - 1)} - set(uploads)
    if missing:
        raise TicketError(f"it has no URL for {min(missing)}")
    return Ticket(run_id, nodes, store, expires, headers, uploads)


def _is_plain(text: Any) -> bool:
    """Whether a text can be part of a request as it is."""
    return isinstance(text, str) and text.isascii() and text.isprintable() and len(text) < 1000


def _is_url(text: Any) -> bool:
    """Whether it is a URL that may be requested as it is. Raises ValueError for a port that is not a number."""
    parts = urlsplit(text)
    known = parts.scheme in ("http", "https") and parts.hostname and parts.username is None and parts.port != 0
    return bool(known and text.isascii() and text.isprintable() and " " not in text)


def _attempts() -> Iterator[int]:
    """How many attempts are left after each; before a repeated one it waits, longer each time."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(FIRST_WAIT_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1))
        yield ATTEMPTS - 1 - attempt


def _send(request: urllib.request.Request) -> None:
    """Send a request. Raises S3Error, with the status where the server answered and refuses."""
    try:
        with _opener(os.environ.get("AWS_CA_BUNDLE")).open(request, timeout=SECONDS) as answer:
            answer.read(_ERROR_BYTES)
    except urllib.error.HTTPError as error:
        raise _refused(error) from None
    except urllib.error.URLError as error:
        raise _failed(error.reason, _NotSent) from None
    except (OSError, http.client.HTTPException) as error:
        raise _failed(error, S3Error) from None


def _opener(certificates: str | None) -> urllib.request.OpenerDirector:
    """Goes by the proxies of the environment, and trusts the certificates of a file, else Python's own.

    SSL_CERT_FILE sets those; an image without certificates may have those of certifi. A put is never redirected.
    """
    known = ssl.get_default_verify_paths()
    if not (certificates or known.cafile or (known.capath and any(Path(known.capath).glob("*")))):
        try:
            import certifi

            certificates = certifi.where()
        except ImportError:
            pass
    try:
        context = ssl.create_default_context(cafile=certificates)
    except OSError as error:
        why = error.strerror or error
        remedy = "correct AWS_CA_BUNDLE or SSL_CERT_FILE"
        raise S3Error(f"the certificates cannot be read ({why})", remedy) from None
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))


def _refused(answer: urllib.error.HTTPError) -> S3Error:
    """The error for an answer that is not a success."""
    with answer:
        try:
            text = answer.read(_ERROR_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            text = ""
    found = [match.group(1) for match in (_CODE.search(text), _MESSAGE.search(text)) if match]
    code = found[0] if found else ""
    why = "the server answers " + redact(" ".join([str(answer.code), *found]))
    again = answer.code in _AGAIN or code == "ConditionalRequestConflict"
    error = S3Error(why, _NETWORK if again else RENEW, code=code, status=answer.code, network=again)
    if error.taken:
        error.message = "the ticket was used already: something is there"
        error.remedy = "store what waits with keys: `flagbench results push --store URL`"
    elif answer.code == 403:
        error.message = f"the server refuses the ticket ({why}): it was revoked, or this machine's clock is wrong"
    return error


def _failed(error: Any, kind: type[S3Error]) -> S3Error:
    """The error for no answer. Some exceptions of http.client show what was requested: of those only the kind."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"the server's certificate is not trusted ({error.verify_message})"
        return kind(why, "name the file of its authority's certificates in AWS_CA_BUNDLE")
    if isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.RemoteDisconnected):
        return kind(f"the server does not answer in HTTP ({type(error).__name__})", _NETWORK, network=True)
    why = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
    return kind(f"the connection failed: {redact(str(why))}", _NETWORK, network=True)
