"""What the image side does with a bucket: nothing is lost by a kill, a signal or a full disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import deliveries
from deliveries import bundle_of, push, start, waiting
from flagbench.records.store import open_store
from flagbench_cases.node.delivery import Delivery, Targets
from flagbench_cases.record import stores
from flagbench_cases.record.stores import BucketStore
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.interruption import Interruption
from flagbench_core.exit_codes import ExitCode
from unit.cases.refusal import refuses
from unit.host.conftest import RECORD

pytestmark = pytest.mark.s3

KILLS = int(os.environ.get("KILLS", "5"))


def record(**changes: Any) -> dict[str, Any]:
    return {**RECORD, "record_id": f"20260101T120000Z-{uuid.uuid4().hex[:8]}", **changes}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two parts and a bit."""
    path = tmp_path_factory.mktemp("large") / "bundle"
    path.write_bytes(random.Random(1).randbytes(17 * 2**20))
    return path


def test_a_bucket_that_cannot_be_used_is_refused(server: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BucketStore(f"s3://{bucket}").check()
    with refuses(UsageError, "NoSuchBucket"):
        BucketStore(f"s3://{bucket}-not").check()
    server.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with refuses(UsageError, "versions"):
        BucketStore(f"s3://{bucket}").check()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" * 8)
    with refuses(UsageError, "SignatureDoesNotMatch"):
        BucketStore(f"s3://{bucket}").check()
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with refuses(UsageError) as caught:
        BucketStore(f"s3://{bucket}").check()
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy


def test_a_key_that_may_not_list_is_enough(bucket: str, proxy: Any) -> None:
    proxy.fault = lambda method, path, count: (403, "AccessDenied") if "list-type" in path else None
    BucketStore(f"s3://{bucket}").check()


def test_an_image_without_boto3_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with refuses(UsageError, "boto3"):
        BucketStore("s3://bucket").check()


def test_what_was_killed_at_a_random_moment_is_finished(bucket: str, large: Path, tmp_path: Path) -> None:
    """Whatever was printed or announced is in the store in the end, and whole."""
    address, moments, seen, span = f"s3://{bucket}/lab", random.Random(7), set(), 60.0
    for number in range(KILLS + 1):  # the first is not killed
        made, out = record(), tmp_path / f"out-{number}"
        child = start(address, out, large, made)
        assert child.stderr is not None
        assert child.stderr.readline() == deliveries.BEGIN
        began = time.monotonic()
        try:
            child.wait(moments.uniform(0, span) if number else span)
            span = min(span, time.monotonic() - began)
        except subprocess.TimeoutExpired:
            child.kill()
        printed = child.communicate()[0].endswith(b"\n")
        if printed or any(out / f"{made['record_id']}.json" in kept for kept in waiting(out).values()):
            seen.add(made["record_id"])
        push(out)
    store, found = open_store(address), bundle_of(large)
    stored = {entry.record_id: entry.error for entry in store.list_records()}
    assert {stored.get(name, "lost") for name in seen} == {None}
    for name in seen:
        head = store.blobs.bucket.head(f"bundles/{name}/node-0-{found.sha256}.tar.gz")  # type: ignore[attr-defined]
        assert head is not None
        assert (head.sha256, head.size) == (found.sha256, found.bytes)


@contextmanager
def held(proxy: Any, past: int, *arguments: Any, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A delivery of which a PUT, after so many (the first is the check), has arrived and is not answered."""
    arrived = proxy.hold("PUT", past=past)
    child = start(*arguments, **environment)
    try:
        assert arrived.wait(30)
        yield child
    finally:
        child.kill()
        child.communicate()
        proxy.release()


def test_an_upload_that_was_killed_is_sent_again(
    bucket: str, large: Path, proxy: Any, server: Any, tmp_path: Path
) -> None:
    made, address = record(), f"s3://{bucket}/lab"
    with held(proxy, 2, address, tmp_path, large, made) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline()) == made, "it is printed before it is uploaded"
    push(tmp_path)
    assert json.loads(open_store(address).get(made["record_id"])) == made
    assert "Uploads" not in server.list_multipart_uploads(Bucket=bucket)


def test_a_second_signal_ends_an_upload_at_once(bucket: str, large: Path, proxy: Any, tmp_path: Path) -> None:
    made, address = record(), f"s3://{bucket}/lab"
    with held(proxy, 1, address, tmp_path, large, made) as child:
        child.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)  # the first one lets an upload go on for a while
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=30)
        assert time.monotonic() - began < 3
    assert json.loads(out) == made
    assert len(waiting(tmp_path)[address]) == 2, "the record and the bundle"


def test_a_first_signal_ends_an_upload_that_hangs(bucket: str, large: Path, proxy: Any, tmp_path: Path) -> None:
    made, address = record(), f"s3://{bucket}/lab"
    with held(proxy, 1, address, tmp_path, large, made, PATIENCE="0.5") as child:
        child.terminate()
        out, err = child.communicate(timeout=30)
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
        code, lost = Delivery(targets, made["record_id"], bundle_of(large), interruption).deliver_record(made, 1)
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
