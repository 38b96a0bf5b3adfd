"""What the holder of a ticket may do, on a real S3 server: upload once, through networks that fail, over TLS."""

from __future__ import annotations

import dataclasses
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.s3 import PROFILES
from flagbench.s3 import ticket as s3_ticket
from flagbench.s3.ticket import Ticket, parse_ticket
from flagbench.stores import Store, StoreError, open_store
from flagbench.stores.issue_ticket import issue
from flagbench.stores.ticket import upload_record
from running import wait_until
from storage.tickets import ID, PREFIX, RUN, collect, make_ticket, put, record, refused

pytestmark = pytest.mark.s3
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated requests follow at once."""
    monkeypatch.setattr(s3_ticket, "FIRST_WAIT_SECONDS", 0)


def through(url: str, ticket: Ticket) -> Ticket:
    """The ticket with the proxy's address in its URLs."""
    return parse_ticket(ticket.encode().replace(os.environ["FLAGBENCH_TEST_S3"].encode(), url.encode()))


def test_a_url_stores_once_and_only_what_it_says(ticket: Ticket, keys: Any) -> None:
    assert list(ticket.uploads) == ["record.json", "node-0.tar.gz", "node-1.tar.gz"]
    url = ticket.uploads["record.json"]
    said = parse_qs(urlsplit(url).query)
    assert (said["X-Amz-Algorithm"], said["X-Amz-Expires"]) == (["AWS4-HMAC-SHA256"], ["3600"])
    assert put(url, b"x", {}) == 403, "the header that forbids overwriting is signed"
    assert put(url, b"x", {"If-None-Match": '"x"'}) == 403
    for path in (url.replace(RUN, "run-2"), url.replace("record.json", "node-0.tar.gz")):
        assert put(path, b"x", ticket.headers) == 403, "and the key"
    assert keys() == []
    assert put(url, b"x", ticket.headers) == 200
    assert put(url, b"y", ticket.headers) == 412
    assert keys() == [f"inbox/{RUN}/record.json"]


@pytest.mark.parametrize("fault", ["lost", "reset", (500, "InternalError"), (503, "SlowDown"), (429, "TooMany")])
def test_a_disturbed_upload_is_repeated(store: Store, bucket: str, proxy: Any, fault: Any) -> None:
    ticket = issue(open_store(f"s3://{bucket}/{PREFIX}?profile=ceph"), RUN, 1, HOUR)  # the host is signed, too
    before = sum(asked.startswith("PUT") for asked in proxy.requests)
    proxy.fault = lambda method, path, count: fault if method == "PUT" and count == before + 1 else None
    upload_record(ticket, record())
    assert "used" in refused(ticket, record()).message
    assert [each.record_id for each in collect(store)] == [ID]
    assert store.get(ID) == record()


def test_a_network_that_fails_for_good(ticket: Ticket, proxy: Any) -> None:
    dead = through(proxy.url, ticket)
    for fault, word in (
        ((503, "SlowDown"), "503"),
        ((403, "AccessDenied"), "refuses"),
        ((307, "TemporaryRedirect"), "307"),
    ):
        proxy.fault = lambda method, path, count, fault=fault: fault
        assert word in refused(dead, record()).message
    proxy.fault = lambda method, path, count: None
    assert "connection" in refused(through("http://127.0.0.1:9", ticket), record()).message


def test_uploads_go_by_the_proxy_of_the_environment(
    ticket: Ticket, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    proxy.fault = lambda method, path, count: (403, "AccessDenied")
    refused(through("http://storage.invalid", ticket), record())
    assert any("http://storage.invalid/" in request for request in proxy.requests)


def test_an_expired_ticket(bucket: str, ticket: Ticket) -> None:
    over = dataclasses.replace(ticket, expires=ticket.expires - timedelta(hours=2))
    assert over.expires_at in refused(over, record()).message
    late = make_ticket(bucket, os.environ["AWS_ENDPOINT_URL"], RUN, seconds=1)
    wait_until(lambda: put(late["uploads"]["record.json"], b"x", late["headers"]) == 403, 10)


def test_over_tls(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["FLAGBENCH_TEST_S3_TLS"])
    monkeypatch.setenv("AWS_CA_BUNDLE", os.environ["FLAGBENCH_TEST_S3_CA"])
    store = open_store(f"s3://{bucket}")
    ticket = issue(store, RUN, 1, HOUR)
    monkeypatch.delenv("AWS_CA_BUNDLE")
    assert "AWS_CA_BUNDLE" in refused(ticket, record()).remedy
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "missing"))
    assert "certificates" in refused(ticket, record()).message
    monkeypatch.setenv("AWS_CA_BUNDLE", os.environ["FLAGBENCH_TEST_S3_CA"])
    upload_record(ticket, record())
    assert [each.record_id for each in collect(store)] == [ID]


@pytest.mark.parametrize(
    ("prepare", "word"),
    [
        (lambda server, bucket: server.put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}), "versions"),
        (lambda server, bucket: server.put_object(
            Bucket=bucket, Key=f"{PREFIX}/inbox/{RUN}/node-1.tar.gz", Body=b"x"), RUN),
        (lambda server, bucket: open_store(f"s3://{bucket}/{PREFIX}").put(record()), RUN),
    ],
)  # fmt: skip
def test_where_there_is_no_ticket(store: Store, server: Any, bucket: str, prepare: Any, word: str) -> None:
    prepare(server, bucket)
    with pytest.raises(FlagbenchError) as caught:
        issue(store, RUN, 1, HOUR)
    assert (caught.value.code, word in caught.value.message) == (ExitCode.USAGE, True)


def test_swift_has_a_ticket_if_overwriting_is_accepted(bucket: str) -> None:
    swift = open_store(f"s3://{bucket}/{PREFIX}?profile=swift")
    with pytest.raises(FlagbenchError) as caught:
        issue(swift, RUN, 1, HOUR)
    assert "--allow-overwrite" in caught.value.remedy
    assert issue(swift, RUN, 1, HOUR, overwriting=True).nodes == 1


@pytest.mark.parametrize("answer", [(200, "OK"), None])
def test_a_server_that_does_not_keep_what_a_url_says(
    bucket: str, proxy: Any, keys: Any, answer: tuple[int, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:  # a server that ignores the header: it is signed as another, which means nothing to it
        monkeypatch.setitem(PROFILES, "ceph", dataclasses.replace(PROFILES["ceph"], create={"x-nothing": "true"}))
    else:
        proxy.fault = lambda method, path, count: answer if method == "PUT" else None
    with pytest.raises(StoreError) as caught:
        issue(open_store(f"s3://{bucket}/{PREFIX}?profile=ceph"), RUN, 1, HOUR)
    assert caught.value.code is ExitCode.USAGE
    assert keys() == []
