"""A ticket: presigned, expiring, create-only uploads of one run, for a machine that must not hold a bucket's keys.

One URL is for the record and one for the bundle of each node. They are credentials: no error and no log contains any
part of one. Uploads need urllib3, which comes with boto3 and with docker-py.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from flagbench_core.redaction import redact
from flagbench_core.s3.errors import PAGE, S3Error, is_page

SCHEMA = "ticket/v1"
VARIABLE = "FLAGBENCH_TICKET"
"""In which a container finds the ticket itself, as from a Kubernetes Secret."""
RECORD = "record.json"
"""The name of the upload of the record."""
MEANT_FOR = "ticket:"
"""Begins what stands in the place of an address where something waits for a ticket."""
RENEW = "make another ticket: `flagbench store ticket`"
_LATER = "check the network and the proxy variables, then try again"
WAITS: tuple[float, ...] = (0, 0.5, 1, 2, 4, 8)
"""Seconds before each attempt."""
_SECONDS = 60.0
"""How long the server may take to connect, to accept bytes or to answer."""
_AGAIN = (408, 409, 429, 500, 502, 503, 504)
_PERHAPS = (None, 500, 502, 504)
"""Answers after which an object may be there; None: there was no answer."""
_RUN_ID = re.compile("[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_URL = re.compile(r"https?://([\w.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?/[!-~]+", re.ASCII)
_CODE = re.compile("<Code>([A-Za-z]{1,100})</Code>")


@dataclass(frozen=True)
class Ticket:
    """What `flagbench store ticket` makes."""

    run_id: str
    nodes: int
    """Of the run, at most."""
    store: str
    """The store it was made for; in messages only."""
    expires_at: str
    """When its URLs end to be valid, as `in_seconds` writes it."""
    headers: Mapping[str, str]
    """Signed, and so part of every upload: with them a put never overwrites."""
    uploads: Mapping[str, str]
    """The URL of each upload, by its name."""

    @property
    def meant_for(self) -> str:
        """What stands in the place of an address where something waits for this ticket: no URL of it."""
        return f"{MEANT_FOR}{self.run_id}"

    def encode(self) -> bytes:
        """The ticket as JSON on one line."""
        return json.dumps({"schema": SCHEMA, **vars(self)}, separators=(",", ":")).encode() + b"\n"

    def check(self, run_id: str | None, nodes: int, minutes: float | None) -> None:
        """Raise S3Error (usage) if the ticket cannot be used for a run.

        Args:
            run_id: the name that was asked for; None takes the ticket's.
            minutes: after how many the run is ended.
        """
        if run_id not in (None, self.run_id):
            what = f"the ticket is for the run {self.run_id}, not for {run_id}"
            raise S3Error(what, "leave out --run-id, or make a ticket for this run", usage=True)
        if nodes > self.nodes:
            what = f"the ticket is for {self.nodes} node(s), not for {nodes}"
            raise S3Error(what, f"make one with `flagbench store ticket --nodes {nodes}`", usage=True)
        if self.expires_at <= in_seconds(60 * (minutes or 0)):
            raise S3Error(f"the ticket expires at {self.expires_at}, before the run ends", RENEW, usage=True)

    def reach(self) -> None:
        """Find out whether the server answers, without using the ticket. Raises S3Error."""
        error = _send("HEAD", self.uploads[RECORD].partition("?")[0])
        if error is not None and error.status is None:
            raise S3Error(f"the ticket cannot be used: {error.message}", error.remedy, network=error.network)

    def put(self, name: str, body: IO[bytes], size: int) -> None:
        """Upload an open file. What is there is never replaced. Raises S3Error.

        An upload that was sent and not answered counts as the one that its repetition finds there: the ticket is of
        one run.
        """
        what = f"{name} of the run {self.run_id} was not uploaded to {self.store}"
        if name not in self.uploads:
            raise S3Error(f"{what}: the ticket is for {self.nodes} node(s)", RENEW)
        if self.expires_at <= in_seconds(0):
            raise S3Error(f"{what}: the ticket expired at {self.expires_at}", RENEW)
        error = _send("PUT", self.uploads[name], body, {**self.headers, "Content-Length": str(size)})
        if error is not None and error.taken:
            error.message = "the ticket was used already, something is there"
            error.remedy = "store what waits with keys: `flagbench results push --store URL`"
        if error is not None:
            raise S3Error(f"{what}: {error.message}", error.remedy)


def in_seconds(seconds: float) -> str:
    """The time after so many seconds, UTC. Such texts sort by time."""
    return f"{datetime.now(timezone.utc) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def bundle_name(node: int) -> str:
    """The name of the upload of a node's bundle."""
    return f"node-{node}.tar.gz"


def read_ticket(path: str) -> Ticket:
    """The ticket in a file. Raises S3Error (usage)."""
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not a file name"
        raise S3Error(f"--ticket {path!r} cannot be read: {why}", "name the file of a ticket", usage=True) from None
    return parse_ticket(content, f"--ticket {path!r}")


def parse_ticket(content: bytes, where: str) -> Ticket:
    """A ticket from its JSON. Raises S3Error (usage), with no word of the content."""
    try:
        document = json.loads(content.decode("utf-8"))
        ticket = Ticket(**{field.name: document[field.name] for field in fields(Ticket)})
        names = {RECORD, *map(bundle_name, range(min(ticket.nodes, len(ticket.uploads))))}
        sound = (
            document["schema"] == SCHEMA
            and ticket.nodes > 0
            and ticket.uploads.keys() == names
            and all(_URL.fullmatch(url) and urlsplit(url).port != 0 for url in ticket.uploads.values())
            and _RUN_ID.fullmatch(ticket.run_id)
            and _TIME.fullmatch(ticket.expires_at)
            and ticket.store.isprintable()
            and all(text.isprintable() and text.isascii() for pair in ticket.headers.items() for text in pair)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise S3Error(f"{where} is not a ticket, or is damaged", RENEW, usage=True)
    return ticket


def _send(method: str, url: str, body: IO[bytes] | None = None, headers: Mapping[str, str] = {}) -> S3Error | None:
    """Send a request, again where that may help. Returns what the server refuses, or why there is no answer."""
    perhaps = False
    for wait in WAITS:
        time.sleep(wait)
        if body is not None:
            body.seek(0)
        error = _attempt(method, url, body=body, headers=headers)
        if error is None or (error.taken and perhaps):
            return None
        if error.taken or not error.network:
            return error
        # The server has not seen the end of a file that was not read to its end.
        perhaps = perhaps or (error.status in _PERHAPS and body is not None and not body.read(1))
    return error


def _attempt(method: str, url: str, **options: Any) -> S3Error | None:
    """Send a request once, through the proxy of the environment; it is not redirected."""
    from urllib.request import getproxies, proxy_bypass

    try:
        from urllib3 import PoolManager, ProxyManager
        from urllib3.exceptions import HTTPError, SSLError
        from urllib3.util import make_headers, parse_url
    except ImportError:
        return S3Error("urllib3 is not installed", "pip install urllib3")
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # else it logs the URL
    trusted = os.environ.get("AWS_CA_BUNDLE") or None  # else those of Python, which SSL_CERT_FILE sets
    settings: Any = {"timeout": _SECONDS, "cert_reqs": "CERT_REQUIRED", "ca_certs": trusted}
    pool, proxy = PoolManager(**settings), getproxies().get(urlsplit(url).scheme)
    if proxy and not proxy_bypass(urlsplit(url).hostname or ""):
        proxy = proxy if "://" in proxy else f"http://{proxy}"
        account = parse_url(proxy).auth
        headers = make_headers(proxy_basic_auth=unquote(account)) if account else None
        pool = ProxyManager(proxy, proxy_headers=headers, **settings)
    with pool:
        try:
            answer = pool.request(method, url, retries=False, redirect=False, **options)
        except HTTPError as error:
            remedy = "set AWS_CA_BUNDLE to the certificates of the server's authority"
            why = str(error.args[-1]).rpartition(": ")[2]  # without the object that it begins with
            return S3Error(
                f"the connection failed: {redact(why)}",
                remedy if isinstance(error, SSLError) else _LATER,
                network=True,
            )
    if answer.status < 400 and is_page(answer.headers):
        return S3Error(PAGE, _LATER, network=True)
    if answer.status in (200, 204):
        return None
    found = _CODE.search(answer.data.decode("utf-8", "replace"))
    code, again = found.group(1) if found else "", answer.status in _AGAIN
    why = "; it was revoked, or this machine's clock is wrong" if answer.status == 403 else ""
    words = f"the server answers {answer.status} {code}".rstrip() + why
    return S3Error(words, _LATER if again else RENEW, code=code, status=answer.status, network=again)
