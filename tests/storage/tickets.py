"""Tickets for tests: those that `flagbench store ticket` makes, and what is uploaded with them."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

import pytest

from bundles import bundle
from flagbench.errors import ExitCode
from flagbench.s3 import Bucket, parse_address
from flagbench.s3.ticket import Ticket
from flagbench.stores import Store, StoreError
from flagbench.stores.inbox import Inbox
from flagbench.stores.issue_ticket import sign
from flagbench.stores.ticket import upload_record
from unit.host.conftest import RECORD

RUN = "run-of-ticket"
PREFIX = "some/prefix"
ID = "20260101T120000Z-0001"


def make_ticket(bucket: str, endpoint: str, run_id: str, nodes: int = 1, seconds: int = 3600) -> dict[str, Any]:
    """A ticket for a run, whose URLs name the server at `endpoint`."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", endpoint)
        signed = sign(Bucket(parse_address(f"s3://{bucket}")), run_id, nodes, seconds)
    made: dict[str, Any] = json.loads(signed.encode())
    return made


def secrets_of(ticket: dict[str, Any]) -> set[str]:
    """The signatures of a ticket, each of which gives access."""
    return {url.rpartition("X-Amz-Signature=")[2].partition("&")[0] for url in ticket["uploads"].values()}


def record(**changes: Any) -> bytes:
    """As a run prints it."""
    return (
        json.dumps({**RECORD, "run_id": RUN, "system": {**RECORD["system"], "nodes": 2}, **changes}).encode() + b"\n"
    )


def bundle_of(node: int = 0, **changes: Any) -> bytes:
    """The bundle of a node of that run."""
    return bundle(**{"record_id": ID, "run_id": RUN, "node": node, **changes})


def put(url: str, content: bytes, headers: Any) -> int:
    """The status of a PUT, as the standard library alone makes it."""
    asked = urllib.request.Request(url, data=content, headers=dict(headers), method="PUT")
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def refused(ticket: Ticket, content: bytes) -> StoreError:
    """The error of an upload, in which nothing of a URL's query is repeated."""
    with pytest.raises(StoreError) as caught:
        upload_record(ticket, content)
    assert caught.value.code is ExitCode.NOT_STORED
    told = f"{caught.value.message} {caught.value.remedy}"
    assert not any(word in told for word in ("X-Amz", "Signature", os.environ["AWS_ACCESS_KEY_ID"]))
    assert ticket.run_id in told
    return caught.value


def collect(store: Store) -> list[Any]:
    """What a collector makes of all that waits."""
    inbox = Inbox(store)
    return [inbox.collect(run_id, places) for run_id, places in inbox.waiting().items()]
