"""What the image side does with a bucket: one winner, and nothing lost by a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import deliveries
from deliveries import bundle_of, push, start, waiting
from flagbench.stores import open_store
from flagbench_cases.node.delivery import Delivery, Targets
from flagbench_cases.record import stores
from flagbench_cases.record.stores.bucket import BucketStore
from flagbench_cases.shared.errors import CaseError, ExitCode, UsageError
from flagbench_cases.shared.interruption import Interruption
from unit.cases.refusal import refuses
from unit.host.conftest import RECORD

pytestmark = pytest.mark.s3

KILLS = 5
WRITERS = 32


def record(**changes: Any) -> dict[str, Any]:
    return {**RECORD, "record_id": f"20260101T120000Z-{uuid.uuid4().hex[:8]}", **changes}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two parts and a bit."""
    path = tmp_path_factory.mktemp("large") / "bundle"
    path.write_bytes(random.Random(1).randbytes(17 * 2**20))
    return path


def test_one_of_many_writers_of_a_record_wins(bucket: str) -> None:
    made = [record(record_id="20260101T120000Z-race", run_id=f"run-{writer}") for writer in range(WRITERS)]
    place = BucketStore(f"s3://{bucket}/lab")

    def put(each: dict[str, Any]) -> bool:
        try:
            place.put_record(each, json.dumps(each))
        except CaseError:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        won = [each for each, kept in zip(made, pool.map(put, made)) if kept]
    assert len(won) == 1
    assert json.loads(open_store(f"s3://{bucket}/lab").get("20260101T120000Z-race")) == won[0]


@pytest.mark.parametrize("fault", ["lost", (503, "SlowDown"), (500, "InternalError")])
def test_a_disturbed_upload_is_a_success(bucket: str, proxy: Any, fault: Any, tmp_path: Path) -> None:
    proxy.fault = lambda method, path, count: fault if method == "PUT" and count == 1 else None
    made, address = record(), f"s3://{bucket}/lab"
    place = BucketStore(address)
    assert place.put_record(made, json.dumps(made)).startswith(address)
    assert json.loads(open_store(address).get(made["record_id"])) == made


def test_a_bucket_that_cannot_be_used_is_refused(server: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BucketStore(f"s3://{bucket}").check(0)
    with refuses(UsageError, "NoSuchBucket"):
        BucketStore(f"s3://{bucket}-not").check(0)
    server.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with refuses(UsageError, "versions"):
        BucketStore(f"s3://{bucket}").check(0)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" * 8)
    with refuses(UsageError, "SignatureDoesNotMatch"):
        BucketStore(f"s3://{bucket}").check(0)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with refuses(UsageError) as caught:
        BucketStore(f"s3://{bucket}").check(0)
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy


def test_a_key_that_may_not_ask_for_versions_is_refused_and_one_that_may_not_list_is_not(
    bucket: str, proxy: Any
) -> None:
    proxy.fault = lambda method, path, count: (403, "AccessDenied") if "list-type" in path else None
    BucketStore(f"s3://{bucket}").check(0)
    proxy.fault = lambda method, path, count: (403, "AccessDenied") if "versioning" in path else None
    with refuses(UsageError, "versions") as caught:
        BucketStore(f"s3://{bucket}").check(0)
    assert "GetBucketVersioning" in caught.value.message


def test_an_image_without_boto3_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with refuses(UsageError, "boto3"):
        BucketStore("s3://bucket").check(0)


def test_what_was_killed_at_a_random_moment_is_finished(bucket: str, large: Path, tmp_path: Path) -> None:
    """Whatever was printed or announced is in the store in the end, and whole."""
    address = f"s3://{bucket}/lab"
    began = time.monotonic()
    child = start(address, tmp_path / "timed", large, record())
    out, err = child.communicate()
    assert child.returncode == 0, err
    span = time.monotonic() - began
    seen = {json.loads(out)["record_id"]}
    moments = random.Random(7)
    for number in range(KILLS):
        made = record()
        child = start(address, tmp_path / f"out-{number}", large, made)
        assert child.stderr is not None
        assert child.stderr.readline() == deliveries.BEGIN
        try:
            child.wait(moments.uniform(0, span / 2))
        except subprocess.TimeoutExpired:
            child.kill()
        out, _ = child.communicate()
        push(tmp_path / f"out-{number}")
        if out.endswith(b"\n") or waiting(tmp_path / f"out-{number}") or child.returncode == 0:
            seen.add(made["record_id"])
    store = open_store(address)
    assert {entry.record_id for entry in store.list()} >= seen
    assert {entry.error for entry in store.list()} == {None}
    found = bundle_of(large)
    for name in seen:
        head = store.blobs.bucket.head(f"bundles/{name}/node-0-{found.sha256}.tar.gz")  # type: ignore[attr-defined]
        assert head is not None
        assert (head.sha256, head.size) == (found.sha256, found.bytes)


def test_an_upload_that_was_killed_is_sent_again(
    bucket: str, large: Path, proxy: Any, server: Any, tmp_path: Path
) -> None:
    made, address = record(), f"s3://{bucket}/lab"
    held = proxy.hold("PUT", past=1)
    child = start(address, tmp_path, large, made)
    try:
        assert held.wait(30)
        assert child.stdout is not None
        assert json.loads(child.stdout.readline()) == made, "it is printed before it is uploaded"
    finally:
        child.kill()
        child.communicate()
        proxy.release()
    push(tmp_path)
    assert json.loads(open_store(address).get(made["record_id"])) == made
    assert "Uploads" not in server.list_multipart_uploads(Bucket=bucket)


def test_a_second_signal_ends_an_upload_at_once(bucket: str, large: Path, proxy: Any, tmp_path: Path) -> None:
    made, address = record(), f"s3://{bucket}/lab"
    held = proxy.hold("PUT", past=0)
    child = start(address, tmp_path, large, made)
    try:
        assert held.wait(30)
        child.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)  # the first one lets an upload go on for a while
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=30)
        assert time.monotonic() - began < 3
    finally:
        child.kill()
        child.communicate()
        proxy.release()
    assert json.loads(out) == made
    assert len(waiting(tmp_path)[address]) == 2, "the record and the bundle"


def test_a_first_signal_ends_an_upload_that_hangs(bucket: str, large: Path, proxy: Any, tmp_path: Path) -> None:
    made, address = record(), f"s3://{bucket}/lab"
    held = proxy.hold("PUT", past=0)
    child = start(address, tmp_path, large, made, PATIENCE="0.5")
    try:
        assert held.wait(30)
        child.terminate()
        out, err = child.communicate(timeout=30)
    finally:
        child.kill()
        child.communicate()
        proxy.release()
    assert (child.returncode, json.loads(out)) == (ExitCode.NOT_STORED, made)
    assert b"SIGTERM" in err
    assert b"results push" in err
    assert len(waiting(tmp_path)[address]) == 2


@pytest.mark.parametrize("reachable", [True, False])
def test_results_are_stored_without_a_place_to_wait(
    bucket: str, proxy: Any, tmp_path: Path, large: Path, reachable: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """A record is stored all the same, or printed."""
    full = tmp_path / "data"
    full.write_text("a file where a folder should be")  # as root no folder is unwritable
    os.environ["XDG_DATA_HOME"] = str(full)
    made, address = record(), f"s3://{bucket}/lab"
    if not reachable:
        proxy.fault = lambda method, path, count: (403, "AccessDenied") if method in ("PUT", "POST") else None
    with Interruption() as interruption:
        targets = Targets(None, None, stores.open_store(address))
        code, lost = Delivery(targets, made["record_id"], bundle_of(large), interruption).of_record(made, 1)
    out, err = capfd.readouterr()
    assert json.loads(out) == made
    assert "warning" in err
    if reachable:
        assert (code, lost) == (0, None)
        assert json.loads(open_store(address).get(made["record_id"])) == made
    else:
        assert code == ExitCode.NOT_STORED
        assert "AccessDenied" in (lost or "")
        assert "results push" not in err, "nothing waits"
