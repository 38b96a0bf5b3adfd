"""What the URLs of a ticket bind, on a real S3 server, and where there is no ticket."""

from __future__ import annotations

import dataclasses
import datetime
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.s3 import PROFILES, presigned
from flagbench.s3.checksums import md5
from flagbench.s3.presign import presign_head, presign_put
from flagbench.s3.ticket import SignedPut, SignedUpload, Ticket
from flagbench.stores import Store, StoreError, open_store
from flagbench.stores.bucket import BucketBlobs
from flagbench.stores.issue_ticket import issue
from storage.tickets import PREFIX, RUN, put, record, refused, smallest

pytestmark = pytest.mark.s3


def test_a_url_stores_once_and_nothing_but_what_it_says(ticket: Ticket, keys: Any) -> None:
    one = smallest(ticket)
    content, headers = b"x" * one.bytes, one.headers
    assert put(one.url, content, {}) == 403, "the header that forbids overwriting is signed"
    assert put(one.url, content, {"If-None-Match": '"x"'}) == 403
    assert put(one.url, content + b"x", headers) == 403, "so is the length"
    assert put(one.url, content[1:], headers) == 403
    other = urlsplit(one.url)
    for path in (other.path.replace(RUN, "run-2"), other.path.replace("record.json", "node-0.tar.gz")):
        assert put(other._replace(path=path).geturl(), content, headers) == 403, "and the key"
    assert keys() == []
    assert put(one.url, content, headers) == 200
    assert put(one.url, b"y" * one.bytes, headers) == 412
    assert put(ticket.uploads["record.json"].puts[1].url, b"y" * 2**18, headers) == 412
    assert keys() == [f"inbox/{RUN}/record.json"]


def test_every_url_is_signed_with_version_4_and_says_what_it_binds(ticket: Ticket) -> None:
    assert list(ticket.uploads) == ["record.json", "node-0.tar.gz", "node-1.tar.gz"]
    for upload in ticket.uploads.values():
        sizes = [one.bytes for one in upload.puts]
        assert sizes == sorted(sizes)
        for one in upload.puts:
            said = parse_qs(urlsplit(one.url).query)
            assert said["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
            assert said["X-Amz-SignedHeaders"] == ["content-length;host;if-none-match"]
            assert said["X-Amz-Expires"] == ["3600"]
    assert ticket.uploads["node-1.tar.gz"].puts[-1].bytes < 5 * 10**9


def test_an_expired_ticket_is_refused_with_words(
    ticket: Ticket, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store.blobs, BucketBlobs)
    earlier = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) - timedelta(hours=2)
    with monkeypatch.context() as past:
        past.setattr("botocore.auth.get_current_datetime", lambda *args, **more: earlier)
        signed = presign_put(store.blobs.bucket, f"inbox/{RUN}/record.json", 2**16, 3600)
        head = presign_head(store.blobs.bucket, f"inbox/{RUN}/record.json", 3600)
    old = SignedPut(2**16, signed.url, dict(signed.headers))
    assert put(old.url, b"x" * old.bytes, old.headers) == 403
    uploads = {**ticket.uploads, "record.json": SignedUpload(head.url, [old])}
    over = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    expired = dataclasses.replace(ticket, uploads=uploads, expires=over)
    assert "expired" in refused(expired, record()).message


@pytest.mark.parametrize(
    ("prepare", "word"),
    [
        (lambda server, bucket: server.put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}), "versions"),
        (lambda server, bucket: server.put_object(
            Bucket=bucket, Key=f"{PREFIX}/inbox/{RUN}/node-1.tar.gz", Body=b"x"), RUN),
    ],
)  # fmt: skip
def test_where_there_is_no_ticket(store: Store, server: Any, bucket: str, prepare: Any, word: str) -> None:
    prepare(server, bucket)
    with pytest.raises(FlagbenchError) as caught:
        issue(store, RUN, 1, timedelta(hours=1))
    assert word in caught.value.message


def test_neither_for_a_folder_nor_for_a_run_that_has_a_record(store: Store, tmp_path: Path) -> None:
    store.put(record())
    for place in (store, open_store(str(tmp_path))):
        with pytest.raises(FlagbenchError) as caught:
            issue(place, RUN, 1, timedelta(hours=1))
        assert caught.value.code in (ExitCode.USAGE, ExitCode.NOT_STORED)


def test_swift_has_a_ticket_only_for_who_accepts_what_it_does(bucket: str) -> None:
    swift = open_store(f"s3://{bucket}/{PREFIX}?profile=swift")
    with pytest.raises(FlagbenchError) as caught:
        issue(swift, RUN, 1, timedelta(hours=1))
    assert "--allow-overwrite" in caught.value.remedy
    assert issue(swift, RUN, 1, timedelta(hours=1), overwriting=True).nodes == 1


@pytest.mark.parametrize(
    ("answer", "word"), [((200, "OK"), "without the header"), (None, "a second put"), ((500, "InternalError"), "500")]
)
def test_a_server_that_does_not_keep_what_urls_say_is_found(
    bucket: str, proxy: Any, keys: Any, answer: tuple[int, str] | None, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:  # a server that ignores the header: it is signed as another, which means nothing to it
        monkeypatch.setitem(PROFILES, "ceph", dataclasses.replace(PROFILES["ceph"], create={"x-nothing": "true"}))
    else:
        proxy.fault = lambda method, path, count: answer if method == "PUT" else None
    with pytest.raises(StoreError) as caught:
        issue(open_store(f"s3://{bucket}/{PREFIX}?profile=ceph"), RUN, 1, timedelta(hours=1))
    assert word in caught.value.message
    assert keys() == []


def test_a_bucket_whose_etags_are_no_sums_has_no_tickets(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of objects that are encrypted with keys of a KMS."""
    real = presigned.Client.head
    monkeypatch.setattr(presigned.Client, "head", lambda *args: real(*args)._replace(etag="0" * 32))
    with pytest.raises(StoreError, match="MD5"):
        issue(store, RUN, 1, timedelta(hours=1))


def test_a_ticket_that_could_not_be_read_is_not_made(store: Store) -> None:
    with pytest.raises(FlagbenchError) as caught:
        issue(store, RUN, 90_000, timedelta(hours=1))
    assert (caught.value.code, "nodes" in caught.value.remedy) == (ExitCode.USAGE, True)


def test_a_server_of_an_unknown_kind_has_a_ticket_if_one_of_several_writers_wins(
    store: Store, bucket: str, keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert issue(store, RUN, 1, timedelta(hours=1)).nodes == 1
    assert keys() == []
    real = BucketBlobs.put_if_absent
    monkeypatch.setattr(BucketBlobs, "put_if_absent", lambda *args: real(*args) or True)
    with pytest.raises(FlagbenchError) as caught:
        issue(store, RUN, 1, timedelta(hours=1))
    assert ("--allow-overwrite" in caught.value.remedy, caught.value.code) == (True, ExitCode.USAGE)
    broken = StoreError("the server did not answer", remedy="try again")

    def fail(*args: Any) -> bool:
        raise broken

    monkeypatch.setattr(BucketBlobs, "put_if_absent", fail)
    with pytest.raises(StoreError) as failed:
        issue(store, RUN, 1, timedelta(hours=1))
    assert failed.value is broken
    assert issue(open_store(f"s3://{bucket}/{PREFIX}?profile=ceph"), RUN, 1, timedelta(hours=1)).nodes == 1


def test_an_etag_in_capital_letters_is_the_same() -> None:
    """As Alibaba Cloud OSS writes them."""
    answer = presigned._answer(200, {"ETag": '"0CC175B9C0F1B6A831C399E269772661"'}, "")
    assert answer.etag == md5(b"a").hex()
