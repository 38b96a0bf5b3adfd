"""Tickets for tests: those that `flagbench store ticket` makes, and what is uploaded with them."""

from __future__ import annotations

import http.client
import io
import json
import os
from typing import Any
from urllib.parse import urlsplit

import pytest

from bundles import bundle
from flagbench.records.blobs import StoreError
from flagbench.records.bucket_blobs import store_errors
from flagbench.records.store import Store
from flagbench.records.tickets import Inbox, sign
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import Bucket, parse_address
from flagbench_core.s3.ticket import RECORD as RECORD_NAME
from flagbench_core.s3.ticket import Ticket, bundle_name
from unit.host.conftest import RECORD

RUN = "run-of-ticket"
PREFIX = "some/prefix"
ID = "20260101T120000Z-0001"


def make_ticket(bucket: str, endpoint: str, run_id: str, nodes: int = 1, seconds: int = 3600) -> Ticket:
    """A ticket for a run, whose URLs name the server at `endpoint`."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", endpoint)
        return sign(Bucket(parse_address(f"s3://{bucket}")), run_id, nodes, seconds)


def secrets_of(ticket: Ticket) -> set[str]:
    """The signatures of a ticket, each of which gives access."""
    return {url.rpartition("X-Amz-Signature=")[2].partition("&")[0] for url in ticket.uploads.values()}


def record(**changes: Any) -> bytes:
    """As a run prints it."""
    return json.dumps({**RECORD, "run_id": RUN, **changes}).encode() + b"\n"


def bundle_of(node: int = 0, **changes: Any) -> bytes:
    """The bundle of a node of that run."""
    return bundle(**{"record_id": ID, "run_id": RUN, "node": node, **changes})


def upload(ticket: Ticket, content: bytes, node: int | None = None) -> None:
    """Upload a record, or a node's bundle."""
    with store_errors():
        ticket.put(RECORD_NAME if node is None else bundle_name(node), io.BytesIO(content), len(content))


def put(url: str, content: bytes, headers: Any) -> int:
    """The status of a PUT, as anyone can make it."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    connection.request("PUT", f"{parts.path}?{parts.query}", content, dict(headers))
    return connection.getresponse().status


def refused(ticket: Ticket, content: bytes = b"x") -> StoreError:
    """The error of an upload, in which nothing of a URL's query is repeated."""
    with pytest.raises(StoreError) as caught:
        upload(ticket, content)
    assert caught.value.code is ExitCode.NOT_STORED
    told = f"{caught.value.message} {caught.value.remedy}"
    assert not any(word in told for word in ("X-Amz", "Signature=", os.environ["AWS_ACCESS_KEY_ID"]))
    assert ticket.run_id in told
    return caught.value


def collect(store: Store) -> list[Any]:
    """What a collector makes of all that waits."""
    inbox = Inbox(store)
    return [inbox.collect(run_id, places) for run_id, places in inbox.waiting().items()]
