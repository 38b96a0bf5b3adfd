"""Tickets as `flagbench store ticket` makes them, with the address of another server in their URLs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flagbench.s3 import Bucket, parse_address
from flagbench.stores.issue_ticket import sign


def make_ticket(bucket: str, endpoint: str, run_id: str, nodes: int = 1, seconds: int = 3600) -> dict[str, Any]:
    """A ticket for a run, whose URLs name the server at `endpoint`."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", endpoint)
        signed = sign(Bucket(parse_address(f"s3://{bucket}")), run_id, nodes, seconds)
    made: dict[str, Any] = json.loads(signed.encode())
    return made


def secrets_of(ticket: dict[str, Any]) -> set[str]:
    """The signatures of a ticket, each of which gives access."""
    found = set()
    for upload in ticket["uploads"].values():
        for url in (upload["head"], *(put["url"] for put in upload["puts"])):
            found.add(url.rpartition("X-Amz-Signature=")[2].partition("&")[0])
    return found
