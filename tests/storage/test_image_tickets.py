"""Uploads with a ticket to a real server: once, whole, and decided after a lost answer."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deliveries import bundle_of
from flagbench.stores.issue_ticket import RECORD_SIZES
from flagbench_cases.record.stores.store import Bundle
from flagbench_cases.record.stores.ticket import parse
from flagbench_cases.record.stores.ticket_store import TicketStore
from flagbench_cases.shared.errors import CaseError, ExitCode, UsageError
from flagbench_cases.shared.s3 import deliver
from running import wait_until
from storage.tickets import make_ticket, secrets_of
from unit.cases.refusal import refuses
from unit.host.conftest import RECORD

pytestmark = pytest.mark.s3

LINE = json.dumps(RECORD)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated requests follow at once."""
    monkeypatch.setattr(deliver, "FIRST_WAIT_SECONDS", 0.001)


@pytest.fixture
def ticket(bucket: str, proxy: Any) -> dict[str, Any]:
    return make_ticket(bucket, proxy.url, "mine", nodes=2)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    path = tmp_path / "bundle"
    path.write_bytes(gzip.compress(os.urandom(2**20 + 5)))
    return bundle_of(path)


def opened(ticket: dict[str, Any]) -> TicketStore:
    return TicketStore(parse(json.dumps(ticket).encode(), "the ticket"))


def stored(server: Any, bucket: str, name: str) -> bytes:
    return bytes(server.get_object(Bucket=bucket, Key=f"inbox/mine/{name}")["Body"].read())


def test_a_record_and_a_bundle_are_uploaded_once(server: Any, bucket: str, ticket: Any, bundle: Bundle) -> None:
    place = opened(ticket)
    place.check(0)
    assert "record.json" in place.put_record(RECORD, LINE)
    place.put_bundle("id", bundle)
    record = stored(server, bucket, "record.json")
    assert (len(record), json.loads(record)) == (RECORD_SIZES[0], RECORD)
    assert record.rstrip() == LINE.encode()
    padded = stored(server, bucket, "node-0.tar.gz")
    assert len(padded) == 2**24
    assert gzip.decompress(padded) == gzip.decompress(Path(bundle.path).read_bytes())
    place.put_record(RECORD, LINE)  # again, as after a lost answer
    place.put_bundle("id", bundle)
    with refuses(CaseError, "mine", code=ExitCode.NOT_STORED):
        place.put_record(RECORD, LINE.replace("321.5", "999.5"))
    assert stored(server, bucket, "record.json") == record, "a second put is refused"
    with refuses(UsageError, "used already"):
        opened(ticket).check(0)
    opened(ticket).check(1)


@pytest.mark.parametrize("fault", ["lost", (503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests")])
def test_an_upload_that_is_disturbed_is_repeated(
    server: Any, bucket: str, ticket: Any, proxy: Any, fault: Any, bundle: Bundle
) -> None:
    proxy.fault = lambda method, path, count: fault if count <= 2 else None
    place = opened(ticket)
    place.put_record(RECORD, LINE)
    place.put_bundle("id", bundle)
    assert json.loads(stored(server, bucket, "record.json")) == RECORD
    assert gzip.decompress(stored(server, bucket, "node-0.tar.gz"))


def test_a_ticket_that_expired(bucket: str, proxy: Any, server: Any) -> None:
    place = opened({**make_ticket(bucket, proxy.url, "mine", seconds=1), "expires_at": "2099-01-01T00:00:00Z"})

    def refused() -> bool:
        try:
            place.check(0)
        except UsageError:
            return True
        return False

    wait_until(refused, 10)
    with refuses(CaseError, "403", code=ExitCode.NOT_STORED):
        place.put_record(RECORD, LINE)
    over = opened({**make_ticket(bucket, proxy.url, "mine"), "expires_at": "2024-01-01T00:00:00Z"})
    with refuses(UsageError, "2024-01-01T00:00:00Z"):
        over.check(0)


def test_what_the_server_does_not_let_a_ticket_do(server: Any, bucket: str, ticket: Any, bundle: Bundle) -> None:
    """Neither another length nor an overwriting put: both are signed."""
    put = ticket["uploads"]["record.json"]["puts"][0]
    parts = urlsplit(put["url"])

    def send(headers: dict[str, str], size: int) -> int:
        connection = http.client.HTTPConnection(parts.netloc)
        connection.request("PUT", f"{parts.path}?{parts.query}", body=bytes(size), headers=headers)
        with connection.getresponse() as answer:
            status = answer.status
        connection.close()
        return status

    assert send(put["headers"], put["bytes"] - 1) == 403
    assert send({}, put["bytes"]) == 403
    assert send(put["headers"], put["bytes"]) == 200
    assert send(put["headers"], put["bytes"]) == 412
    with refuses(CaseError, "node-0.tar.gz", code=ExitCode.NOT_STORED):
        opened(ticket).put_bundle("id", bundle._replace(bytes=2**33))


def test_a_redirect_is_not_followed(ticket: Any, proxy: Any) -> None:
    proxy.fault = lambda method, path, count: (307, "TemporaryRedirect")
    with refuses(UsageError, "307"):
        opened(ticket).check(0)


def test_a_server_that_is_gone(ticket: Any, proxy: Any) -> None:
    elsewhere = json.loads(json.dumps(ticket).replace(proxy.url, "http://127.0.0.1:9"))
    with refuses(UsageError) as caught:
        opened(elsewhere).check(0)
    assert not any(secret in caught.value.message + caught.value.remedy for secret in secrets_of(ticket))


def test_requests_go_by_the_proxy_of_the_environment(
    server: Any, bucket: str, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own host name stands in the URL; what answers is the proxy."""
    ticket = make_ticket(bucket, "http://storage.invalid", "mine")
    monkeypatch.setenv("http_proxy", proxy.url)
    proxy.fault = lambda method, path, count: (404, "") if "storage.invalid" in path else None
    opened(ticket).check(0)
    assert any("http://storage.invalid/" in request for request in proxy.requests)


def test_an_unreadable_file_of_certificates(ticket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "missing"))
    with refuses(UsageError, "certificates"):
        opened(ticket).check(0)


def test_the_sum_of_a_padded_stream() -> None:
    from io import BytesIO

    from flagbench_cases.shared.s3.presigned import Padded

    assert deliver._md5(Padded(BytesIO(b"abc"), 200_000)) == hashlib.md5(b"abc" + bytes(199_997)).digest()
