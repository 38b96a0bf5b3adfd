"""What the holder of a ticket uploads with it, on a real S3 server: once, through networks that fail, over TLS."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flagbench.s3 import S3Error, deliver, presigned
from flagbench.s3.presign import certificates
from flagbench.s3.ticket import Ticket, parse_ticket
from flagbench.stores import Store, holder, open_store
from flagbench.stores.inbox import Inbox
from flagbench.stores.issue_ticket import issue
from storage.tickets import ID, PREFIX, RUN, record, refused

pytestmark = pytest.mark.s3


@pytest.mark.parametrize("fault", ["lost", "reset", (500, "InternalError"), (503, "SlowDown")])
def test_a_holder_whose_answer_is_lost_stores_once(
    bucket: str, proxy: Any, fault: Any, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(deliver, "FIRST_WAIT_SECONDS", 0)
    ticket = issue(open_store(f"s3://{bucket}/{PREFIX}"), RUN, 2, timedelta(hours=1))
    before = sum(asked.startswith("PUT") for asked in proxy.requests)
    proxy.fault = lambda method, path, count: fault if method == "PUT" and count == before + 1 else None
    holder.upload_record(ticket, record())
    holder.upload_record(ticket, record())  # again is no error
    assert "used" in refused(ticket, record(preset="reference")).message
    (collected,) = (Inbox(store).collect(upload) for upload in Inbox(store).uploads())
    assert (collected.record_id, collected.problems) == (ID, ())
    assert store.get(ID) == record()


def test_a_network_that_fails_for_good(ticket: Ticket, proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "FIRST_WAIT_SECONDS", 0)
    dead = issue_at(proxy.url, ticket)
    proxy.fault = lambda method, path, count: "lost"
    assert "connection" in refused(dead, record()).message
    proxy.fault = lambda method, path, count: (403, "AccessDenied")
    assert "refuses" in refused(dead, record()).message


def issue_at(url: str, ticket: Ticket) -> Ticket:
    """The ticket with the proxy's address in its URLs."""
    return parse_ticket(ticket.encode().replace(os.environ["FLAGBENCH_TEST_S3"].encode(), url.encode()))


def test_over_tls(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["FLAGBENCH_TEST_S3_TLS"])
    monkeypatch.setenv("AWS_CA_BUNDLE", os.environ["FLAGBENCH_TEST_S3_CA"])
    monkeypatch.setattr(deliver, "FIRST_WAIT_SECONDS", 0)
    store = open_store(f"s3://{bucket}")
    ticket = issue(store, RUN, 1, timedelta(hours=1))
    monkeypatch.delenv("AWS_CA_BUNDLE")
    assert "AWS_CA_BUNDLE" in refused(ticket, record()).message
    monkeypatch.setenv("AWS_CA_BUNDLE", os.environ["FLAGBENCH_TEST_S3_CA"])
    holder.upload_record(ticket, record())
    inbox = Inbox(store)
    assert [inbox.collect(upload).record_id for upload in inbox.uploads()] == [ID]


def test_certificates_are_those_of_boto3_and_may_be_a_folder(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(f"[default]\nca_bundle = {tmp_path}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert certificates() == str(tmp_path)
    presigned.opened_client(str(tmp_path))
    with pytest.raises(S3Error, match="certificates"):
        presigned.opened_client(str(tmp_path / "missing"))
