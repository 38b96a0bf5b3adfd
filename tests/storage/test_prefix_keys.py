"""Keys limited to a prefix, by the policy in docs/object-storage.md: what they allow, and what not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from flagbench.records.blobs import IdTaken, ListingDenied, StoreError
from flagbench.records.store import Store, open_store
from flagbench_cases.record.stores import BucketStore, Bundle
from flagbench_core.s3 import Bucket, S3Error, parse_address
from storage.policies import become_guest, become_owner, documented_policy
from unit.host.conftest import RECORD

pytestmark = pytest.mark.s3

SHORT = ["run", "distilbert:cpu", "--preset", "tiny", "--data", "synthetic", "--steps", "2"]
CONTENT = json.dumps(RECORD).encode() + b"\n"
OTHER_CONTENT = json.dumps({**RECORD, "run_id": "another"}).encode() + b"\n"
ID = str(RECORD["record_id"])
PART_BYTES = 8 * 2**20


@pytest.fixture(autouse=True)
def guest(server: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of a user who may do what the page says below `lab`, in a bucket with an object outside of it."""
    server.put_object(Bucket=bucket, Key="private/object", Body=b"of the owner")
    server.put_bucket_policy(Bucket=bucket, Policy=documented_policy(bucket, "lab"))
    become_guest(monkeypatch)


@pytest.fixture
def lab(bucket: str) -> Store:
    """The store below `lab`, opened with the keys of the guest."""
    return open_store(f"s3://{bucket}/lab")


def test_a_run_stores_its_record_and_its_bundle(
    flagbench: Any, lab: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    ran = flagbench(*SHORT, "--store", lab.url, "--json")
    assert ran.returncode == 0, ran.stderr
    become_owner(monkeypatch)
    store = open_store(lab.url)
    record = json.loads(ran.stdout)
    assert json.loads(store.get(record["record_id"])) == record
    (bundle,) = store.bundles.find(record["record_id"])
    store.bundles.get(bundle, tmp_path / "bundle.tar.gz")
    assert hashlib.sha256((tmp_path / "bundle.tar.gz").read_bytes()).hexdigest() == bundle.place.sha256


def test_results_push_stores_a_record(
    flagbench: Any, lab: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "out" / f"{ID}.json"
    file.parent.mkdir()
    file.write_bytes(CONTENT)
    for _ in range(2):  # the same record again is no error
        pushed = flagbench("results", "push", str(file.parent), "--store", lab.url, "--json")
        assert pushed.returncode == 0, pushed.stderr
        assert [stored["record_id"] for stored in json.loads(pushed.stdout)["stored"]] == [ID]
    become_owner(monkeypatch)
    assert open_store(lab.url).get(ID) == CONTENT


def test_an_image_stores_a_record_and_a_large_bundle(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = bytes(PART_BYTES + 1)  # it is uploaded in two parts
    file = tmp_path / "bundle"
    file.write_bytes(content)
    store = BucketStore(f"s3://{bucket}/lab")
    store.check()
    store.put_bundle(ID, Bundle(str(file), 0, hashlib.sha256(content).hexdigest(), len(content)))
    store.put_record(RECORD, CONTENT.decode().rstrip("\n"))
    become_owner(monkeypatch)
    owned = open_store(f"s3://{bucket}/lab")
    assert owned.get(ID) == CONTENT
    assert [bundle.size for bundle in owned.bundles.find(ID)] == [len(content)]


def test_a_record_is_never_replaced(lab: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.put(CONTENT)
    lab.put(CONTENT)
    with pytest.raises(IdTaken):
        lab.put(OTHER_CONTENT)
    become_owner(monkeypatch)
    assert open_store(lab.url).get(ID) == CONTENT


def test_listing_is_denied(lab: Store) -> None:
    with pytest.raises(ListingDenied):
        next(lab.list_records())


def test_deleting_is_denied(lab: Store, server: Any, bucket: str) -> None:
    stored = lab.put(CONTENT)
    with pytest.raises(StoreError, match="AccessDenied"):
        lab.remove(stored)
    assert server.head_object(Bucket=bucket, Key=f"lab/{stored.blob.key}")["ContentLength"] == len(CONTENT)


@pytest.mark.parametrize("prefix", ["", "/private", "/laboratory"])
def test_storing_outside_of_the_prefix_is_denied(server: Any, bucket: str, prefix: str) -> None:
    with pytest.raises(StoreError, match="AccessDenied"):
        open_store(f"s3://{bucket}{prefix}").put(CONTENT)
    assert [entry["Key"] for entry in server.list_objects_v2(Bucket=bucket)["Contents"]] == ["private/object"]


def test_reading_outside_of_the_prefix_is_denied(bucket: str) -> None:
    with pytest.raises(S3Error) as caught:
        Bucket(parse_address(f"s3://{bucket}/private")).read("object", 100)
    assert caught.value.denied


def test_the_policy_cannot_be_changed_with_these_keys(bucket: str) -> None:
    client = Bucket(parse_address(f"s3://{bucket}")).client
    with pytest.raises(ClientError, match="AccessDenied"):
        client.put_bucket_policy(Bucket=bucket, Policy=documented_policy(bucket, "private"))
