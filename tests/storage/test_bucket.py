"""Records in a bucket of a real S3 server: kept once and whole, through races, kills and cut connections."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flagbench.history.selection import State, state_of
from flagbench.records.blobs import INDEX, StoreError, Unread
from flagbench.records.read import MAX_RECORD_BYTES
from flagbench.records.removal import may_be_removed
from flagbench.records.store import Store, open_store
from flagbench.records.store_doctor import probe
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import PROFILES
from storage.policies import become_guest, become_owner, write_only_policy
from unit.host.conftest import RECORD

pytestmark = pytest.mark.s3

WRITERS = 32
CONFLICT = (409, "ConditionalRequestConflict")
KEY = "results/v1/case=distilbert/stack=cpu/2026-01-01/20260101T120000Z-0001.json"


def record(**changes: Any) -> bytes:
    return json.dumps({**RECORD, **changes}).encode()


def numbered(count: int) -> list[bytes]:
    return [record(record_id=f"20260101T120000Z-{number:04}") for number in range(count)]


def refused(code: ExitCode, action: Callable[..., object], *arguments: object) -> StoreError:
    """The error with which a call ends, without credentials."""
    with pytest.raises(StoreError) as caught:
        action(*arguments)
    assert caught.value.code is code
    told = f"{caught.value.message} {caught.value.remedy}"
    assert os.environ["FLAGBENCH_TEST_S3_SECRET"] not in told
    assert caught.value.remedy
    return caught.value


def test_a_record_is_kept_byte_for_byte_and_once(store: Store, server: Any, bucket: str) -> None:
    content = record() + b"\n"
    stored = store.put(content)
    assert stored.location == f"s3://{bucket}/some/prefix/{KEY}"
    there = server.get_object(Bucket=bucket, Key=f"some/prefix/{KEY}")
    assert there["Body"].read() == content == store.get(stored.record_id)
    assert there["Metadata"] == {"sha256": hashlib.sha256(content).hexdigest()}
    assert there["ContentType"] == "application/json"
    assert store.put(content) == stored
    assert server.head_object(Bucket=bucket, Key=f"some/prefix/{KEY}")["LastModified"] == there["LastModified"]
    other = refused(ExitCode.NOT_STORED, store.put, record(preset="reference"))
    assert stored.record_id in other.message
    assert stored.record_id in refused(ExitCode.NOT_STORED, store.put, record(stack="a100-cuda11.6")).message
    assert store.get(stored.record_id) == content


def test_of_32_writers_at_once_one_wins(store: Store) -> None:
    for number in range(5):
        key = f"results/v1/race-{number}"
        contents = [b"%d" % writer * 1000 for writer in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            won = [*pool.map(lambda content, key=key: store.blobs.put_if_absent(key, content), contents)]
        assert won.count(True) == 1
        assert store.blobs.get(key, 2000) == contents[won.index(True)]


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
def test_a_bucket_that_keeps_versions_is_refused(store: Store, server: Any, bucket: str, status: str) -> None:
    server.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
    assert "version" in refused(ExitCode.NOT_STORED, store.put, record()).message
    health = store.health()
    assert not health.ok
    assert not all(check.ok for check in probe(store.blobs))
    assert "Versions" not in server.list_object_versions(Bucket=bucket)


def test_a_key_that_can_only_write_stores_and_shows_nothing(
    server: Any, bucket: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put_bucket_policy(Bucket=bucket, Policy=write_only_policy(bucket, "some/prefix"))
    become_guest(monkeypatch)
    writer = open_store(store.url)
    assert writer.health().ok
    writer.put(record())
    refused(ExitCode.NOT_STORED, writer.put, record())  # it cannot see that this is the same
    refused(ExitCode.USAGE, lambda: [*writer.list_records()])
    become_owner(monkeypatch)
    assert store.get("20260101T120000Z-0001") == record()


@pytest.mark.parametrize(
    ("content", "metadata", "word"),
    [
        (record(), {}, "no sha256"),
        (record()[:-1] + b" }", {"sha256": hashlib.sha256(record()).hexdigest()}, "checksum"),
        (b"{" * (MAX_RECORD_BYTES + 1), {"sha256": "0" * 64}, "larger"),
    ],
)
def test_an_object_that_was_changed_is_damaged_and_hides_nothing(
    store: Store, server: Any, bucket: str, content: bytes, metadata: dict[str, str], word: str
) -> None:
    store.put(record(record_id="20260101T120000Z-0009"))
    server.put_object(Bucket=bucket, Key=f"some/prefix/{KEY}", Body=content, Metadata=metadata)
    refused(ExitCode.NOT_STORED, store.put, record())
    assert word in refused(ExitCode.DATA, store.get, "20260101T120000Z-0001").message
    listed = {entry.record_id: entry.error for entry in store.list_records()}
    assert listed["20260101T120000Z-0009"] is None
    assert word in str(listed["20260101T120000Z-0001"])


def test_over_tls_with_the_servers_certificate(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["FLAGBENCH_TEST_S3_TLS"])
    health = open_store(f"s3://{bucket}").health()
    assert not health.ok
    assert "AWS_CA_BUNDLE" in str(health.remedy)
    monkeypatch.setenv("AWS_CA_BUNDLE", os.environ["FLAGBENCH_TEST_S3_CA"])
    store = open_store(f"s3://{bucket}")
    assert store.health().ok
    store.put(record())
    assert store.get("20260101T120000Z-0001") == record()
    # With boto3's default checksums, which it sends as trailers over TLS, this server refuses every put.
    amazons = open_store(f"s3://{bucket}?profile=aws")
    assert "profile" in refused(ExitCode.NOT_STORED, amazons.put, record(record_id="20260101T120000Z-0002")).remedy


@pytest.mark.parametrize(
    ("variables", "address", "word"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "s3://{bucket}", "SignatureDoesNotMatch"),
        ({}, "s3://no-such-{bucket}", "NoSuchBucket"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "s3://{bucket}", "127.0.0.1:1"),
        ({"AWS_ENDPOINT_URL": "nonsense"}, "s3://{bucket}", "nonsense"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "s3://{bucket}", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_what_is_wrong_is_named_before_a_run(
    bucket: str, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], address: str, word: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    health = open_store(address.format(bucket=bucket)).health()
    assert not health.ok
    assert word in f"{health.detail} {health.remedy}"


def test_credentials_in_the_endpoint_are_not_repeated(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://KEYKEY:SECRETS@127.0.0.1:1")
    told = refused(ExitCode.USAGE, open_store(f"s3://{bucket}").blobs.put_if_absent, KEY, record())
    assert "SECRETS" not in f"{told.message} {told.remedy}"


# -- the index -----------------------------------------------------------------------------------------------------


def test_a_listing_opens_each_record_once(bucket: str, store: Store, server: Any, proxy: Any) -> None:
    contents = numbered(40)
    with ThreadPoolExecutor(8) as pool:
        [*pool.map(store.put, contents)]
    through = open_store(f"s3://{bucket}/some/prefix")

    def reads() -> int:
        """How many records a listing has opened, which has them all."""
        proxy.requests.clear()
        listed = [*through.list_records()]
        assert [entry.error for entry in listed if entry.error] == []
        assert sorted(entry.record_id for entry in listed) == [json.loads(each)["record_id"] for each in contents]
        # A request that was sent again is one.
        return len(
            {each for each in proxy.requests if each.startswith("GET") and "/case" in each and "?" not in each}
        )

    assert (reads(), reads()) == (40, 0)
    index = f"some/prefix/{INDEX}"
    whole = server.get_object(Bucket=bucket, Key=index)["Body"].read()
    server.put_object(Bucket=bucket, Key=index, Body=whole[: len(whole) // 2])  # torn
    assert (reads(), reads()) == (40, 0)
    stale = json.loads(whole.partition(b"\n")[2])
    del stale[KEY]
    told = json.dumps(stale).encode()
    server.put_object(Bucket=bucket, Key=index, Body=hashlib.sha256(told).hexdigest().encode() + b"\n" + told)
    assert (reads(), reads()) == (1, 0)
    server.delete_object(Bucket=bucket, Key=index)
    assert reads() == 40


# -- networks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        lambda method, path, count: (503, "SlowDown") if count <= 2 else None,
        lambda method, path, count: CONFLICT if method == "PUT" and count <= 2 else None,
        lambda method, path, count: "lost" if method == "PUT" and count == 1 else None,
        lambda method, path, count: "slow",
    ],
    ids=["throttled", "conflict", "answer lost", "slow"],
)
def test_a_put_survives_its_network(bucket: str, proxy: Any, server: Any, fault: Any) -> None:
    store = open_store(f"s3://{bucket}/some/prefix")
    proxy.fault = fault
    stored = store.put(record())
    assert store.get(stored.record_id) == record()
    assert len(server.list_objects_v2(Bucket=bucket, Prefix="some/prefix/results/v1/")["Contents"]) == 1


@pytest.mark.parametrize("fault", ["cut", "reset"])
def test_an_answer_that_breaks_off_is_read_again(bucket: str, proxy: Any, store: Store, fault: str) -> None:
    store.put(record())
    proxy.fault = lambda method, path, count: fault if "/case" in path and "?" not in path and count <= 4 else None
    assert open_store(f"s3://{bucket}/some/prefix").get("20260101T120000Z-0001") == record()
    assert sum("?" not in each for each in proxy.requests) > 1


def test_a_network_that_never_recovers_is_no_damage(bucket: str, proxy: Any, store: Store) -> None:
    store.put(record())
    through = open_store(f"s3://{bucket}/some/prefix")
    proxy.fault = lambda method, path, count: "cut" if "/case" in path and "?" not in path else None
    assert isinstance(refused(ExitCode.DATA, through.get, "20260101T120000Z-0001"), Unread)
    (listed,) = through.list_records()
    assert (state_of(listed), may_be_removed(listed)) == (State.UNREAD, False)
    proxy.fault = lambda method, path, count: "lost"
    refused(ExitCode.NOT_STORED, through.put, record(record_id="20260101T120000Z-0002"))
    assert not open_store(f"s3://{bucket}/some/prefix").health().ok


def test_a_key_that_may_not_ask_for_versions_is_refused(bucket: str, proxy: Any) -> None:
    store = open_store(f"s3://{bucket}/some/prefix")
    proxy.fault = lambda method, path, count: (403, "AccessDenied") if "versioning" in path else None
    assert "GetBucketVersioning" in refused(ExitCode.NOT_STORED, store.put, record()).message
    assert not store.health().ok


def test_another_answer_to_a_lost_put_is_not_taken_for_ours(bucket: str, proxy: Any, store: Store) -> None:
    """The answer to the first put is lost, and meanwhile the key has another's bytes."""
    store.put(record(preset="reference"))
    proxy.fault = lambda method, path, count: "lost" if method == "PUT" and count == 1 else None
    assert open_store(f"s3://{bucket}/some/prefix").blobs.put_if_absent(KEY, record()) is False
    assert store.get("20260101T120000Z-0001") == record(preset="reference")


def test_the_header_of_oss_is_sent_and_signed(bucket: str, proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers are made up here; it takes only buckets in host names, which this server does not."""
    monkeypatch.setitem(PROFILES, "oss", dataclasses.replace(PROFILES["oss"], addressing="path"))
    store = open_store(f"s3://{bucket}/some/prefix?profile=oss")
    assert store.blobs.put_if_absent(KEY, record())
    (put,) = (sent for sent, asked in zip(proxy.headers, proxy.requests) if asked.startswith("PUT"))
    assert put["x-oss-forbid-overwrite"] == "true"
    assert "if-none-match" not in put
    assert "x-oss-forbid-overwrite" in put["authorization"].partition("SignedHeaders=")[2].partition(",")[0]
    proxy.fault = lambda method, path, count: (409, "FileAlreadyExists") if method == "PUT" else None
    assert store.blobs.put_if_absent(KEY, record()) is True
    assert store.blobs.put_if_absent(KEY, record(preset="reference")) is False


def test_what_the_doctor_says(store: Store, server: Any, bucket: str) -> None:
    checks = [*probe(store.blobs)]
    assert all(check.ok for check in checks), checks
    assert "Contents" not in server.list_objects_v2(Bucket=bucket)
    swift = open_store(f"s3://{bucket}?profile=swift")
    assert [check.name for check in probe(swift.blobs) if not check.ok] == ["one of several writers wins"]
    unknown, known = store.blobs.health(), open_store(f"s3://{bucket}?profile=ceph").blobs.health()
    assert (unknown.ok, "store doctor" in unknown.detail) == (True, True)
    assert (known.ok, "store doctor" in known.detail) == (True, False)
