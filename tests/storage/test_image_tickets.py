"""Uploads with a ticket by the image side, to a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deliveries import bundle_of
from flagbench_cases.record.stores.ticket import TicketStore, parse
from flagbench_cases.shared.errors import CaseError, ExitCode, UsageError
from flagbench_cases.shared.s3 import ticket as s3_ticket
from storage.tickets import make_ticket, secrets_of
from unit.cases.refusal import refuses
from unit.host.conftest import RECORD

pytestmark = pytest.mark.s3

LINE = json.dumps(RECORD)
EVIDENCE = b"evidence"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated requests follow at once."""
    monkeypatch.setattr(s3_ticket, "FIRST_WAIT_SECONDS", 0)


def opened(ticket: dict[str, Any]) -> TicketStore:
    return TicketStore(parse(json.dumps(ticket).encode(), "the ticket"))


def test_a_record_and_a_bundle_are_uploaded_once(server: Any, bucket: str, proxy: Any, tmp_path: Path) -> None:
    def stored(name: str) -> bytes:
        return bytes(server.get_object(Bucket=bucket, Key=f"inbox/mine/{name}")["Body"].read())

    (tmp_path / "bundle").write_bytes(EVIDENCE)
    bundle = bundle_of(tmp_path / "bundle")
    place = opened(make_ticket(bucket, proxy.url, "mine"))
    place.check(0)
    proxy.fault = lambda method, path, count: "lost" if method == "PUT" and count == 1 else None
    assert "record.json" in place.put_record(RECORD, LINE)
    place.put_bundle("id", bundle)
    assert (stored("record.json"), stored("node-0.tar.gz")) == (LINE.encode() + b"\n", EVIDENCE)
    with refuses(CaseError, "mine", code=ExitCode.NOT_STORED):
        place.put_record(RECORD, LINE.replace("321.5", "999.5"))
    assert stored("record.json").rstrip() == LINE.encode(), "a second put is refused"
    with refuses(CaseError, "node-1", code=ExitCode.NOT_STORED):
        place.put_bundle("id", bundle._replace(node=1))


def test_a_server_that_is_gone_is_found_before_a_run(bucket: str, proxy: Any) -> None:
    ticket = make_ticket(bucket, proxy.url, "mine")
    proxy.fault = lambda method, path, count: (503, "SlowDown")
    opened(ticket).check(0)
    elsewhere = json.loads(json.dumps(ticket).replace(proxy.url, "http://127.0.0.1:9"))
    with refuses(UsageError) as caught:
        opened(elsewhere).check(0)
    assert not any(secret in caught.value.message + caught.value.remedy for secret in secrets_of(ticket))
