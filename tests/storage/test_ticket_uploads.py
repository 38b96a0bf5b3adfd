"""What the holder of a ticket may do, on a real S3 server: upload once, through networks that fail, over TLS."""

from __future__ import annotations

import dataclasses
import logging
import os
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from flagbench.errors import FlagbenchError
from flagbench.records.store import Store, open_store
from flagbench.records.tickets import Inbox
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import ticket as s3_ticket
from flagbench_core.s3.ticket import Ticket, in_seconds
from running import wait_until
from storage.tickets import ID, PREFIX, RUN, collect, make_ticket, put, record, refused, upload

pytestmark = pytest.mark.s3


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated requests follow at once."""
    monkeypatch.setattr(s3_ticket, "WAITS", (0, 0, 0))


def through(url: str, ticket: Ticket) -> Ticket:
    """The ticket with another server's address in its URLs."""
    server = os.environ["FLAGBENCH_TEST_S3"]
    uploads = {name: old.replace(server, url) for name, old in ticket.uploads.items()}
    return dataclasses.replace(ticket, uploads=uploads)


def test_a_url_stores_once_and_only_what_it_says(ticket: Ticket, keys: Any) -> None:
    assert list(ticket.uploads) == ["record.json", "node-0.tar.gz", "node-1.tar.gz"]
    url = ticket.uploads["record.json"]
    said = parse_qs(urlsplit(url).query)
    assert (said["X-Amz-Algorithm"], said["X-Amz-Expires"]) == (["AWS4-HMAC-SHA256"], ["3600"])
    assert put(url, b"x", {}) == 403, "the header that forbids overwriting is signed"
    assert put(url, b"x", {"If-None-Match": '"x"'}) == 403
    assert put(url.replace(RUN, "run-2"), b"x", ticket.headers) == 403, "and the key"
    assert put(url, b"x", ticket.headers) == 200
    assert put(url, b"y", ticket.headers) == 412
    assert keys() == [f"inbox/{RUN}/record.json"]


def test_the_header_of_another_kind_of_server_is_signed(bucket: str) -> None:
    ticket = make_ticket(f"{bucket}?profile=oss", "http://oss.test", RUN)
    assert ticket.headers == {"x-oss-forbid-overwrite": "true"}
    said = parse_qs(urlsplit(ticket.uploads["record.json"]).query)
    assert said["X-Amz-SignedHeaders"] == ["host;x-oss-forbid-overwrite"]


@pytest.mark.parametrize("fault", ["lost", "reset", (500, "InternalError"), (503, "SlowDown"), (429, "TooMany")])
def test_a_disturbed_upload_is_repeated(store: Store, bucket: str, proxy: Any, fault: Any) -> None:
    ticket = make_ticket(f"{bucket}/{PREFIX}", proxy.url, RUN)  # the host is signed, too
    proxy.fault = lambda method, path, count: fault if count == 1 else None
    upload(ticket, record())
    assert refused(ticket).remedy.count("results push")
    assert [each.record_id for each in collect(store)] == [ID]


@pytest.mark.parametrize("fault", [(503, "SlowDown"), "unsent"])
def test_what_never_arrived_is_not_taken_for_uploaded(bucket: str, proxy: Any, fault: Any) -> None:
    ticket = make_ticket(bucket, proxy.url, RUN)
    upload(ticket, record())
    proxy.fault = lambda method, path, count: fault if count == 2 else None
    assert "used" in refused(ticket, bytes(2**25)).message


def test_a_network_that_fails_for_good(ticket: Ticket, proxy: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for fault in ((503, "SlowDown"), (403, "AccessDenied"), (307, "TemporaryRedirect")):
        proxy.fault = lambda method, path, count, fault=fault: fault
        assert str(fault[0]) in refused(through(proxy.url, ticket)).message
    assert "Connection refused" in refused(through("http://127.0.0.1:9", ticket)).message
    assert "X-Amz" not in caplog.text


def test_uploads_go_by_the_proxy_of_the_environment(
    ticket: Ticket, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:p%40ss@"))
    proxy.fault = lambda method, path, count: (403, "AccessDenied")
    refused(through("http://storage.invalid", ticket))
    assert proxy.requests[-1].startswith("PUT http://storage.invalid/")
    assert proxy.headers[-1]["proxy-authorization"] == "Basic dXNlcjpwQHNz"


def test_an_expired_ticket(bucket: str, ticket: Ticket) -> None:
    over = dataclasses.replace(ticket, expires_at=in_seconds(0))
    assert over.expires_at in refused(over).message
    late = make_ticket(bucket, os.environ["AWS_ENDPOINT_URL"], RUN, seconds=1)
    wait_until(lambda: put(late.uploads["record.json"], b"x", late.headers) == 403, 10)


def test_over_tls(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["FLAGBENCH_TEST_S3_TLS"])
    monkeypatch.setenv("AWS_CA_BUNDLE", os.environ["FLAGBENCH_TEST_S3_CA"])
    store = open_store(f"s3://{bucket}")
    ticket = Inbox(store).issue(RUN, 1, timedelta(hours=1))
    for wrong in ("", "/missing"):
        monkeypatch.setenv("AWS_CA_BUNDLE", wrong)
        assert "AWS_CA_BUNDLE" in refused(ticket).remedy
    monkeypatch.setenv("AWS_CA_BUNDLE", os.environ["FLAGBENCH_TEST_S3_CA"])
    upload(ticket, record())
    assert [each.record_id for each in collect(store)] == [ID]


def test_a_run_that_was_uploaded_has_no_other_ticket(store: Store, ticket: Ticket, tmp_path: Any) -> None:
    upload(ticket, b"x", node=1)
    for place in (store, open_store(str(tmp_path))):
        with pytest.raises(FlagbenchError) as caught:
            Inbox(place).issue(RUN, 1, timedelta(hours=1))
        assert caught.value.code is ExitCode.USAGE
    assert Inbox(open_store(f"{store.url}/{PREFIX}")).issue(RUN, 1, timedelta(hours=1))
