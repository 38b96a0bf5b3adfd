"""`flagbench push` of built images into a bucket, and back into the engine: one image id everywhere."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from flagbench.cli import main
from flagbench.console.progress import Progress
from flagbench.images.bucket import ImageBucket, parse_bucket_image, parse_image_bucket
from flagbench.images.pull import pull
from flagbench.images.push import Pushed, find_local_image, push_to_bucket
from flagbench.images.tags import TAG_VERSION
from flagbench_core.exit_codes import ExitCode
from oci_images import MANIFEST, sha256
from registries import Bench, own_stack
from running import wait_until
from storage.policies import become_guest, write_only_policy

pytest_plugins = ["containers", "registries"]
pytestmark = [pytest.mark.s3, pytest.mark.docker]

ROOT = Path(__file__).parents[2]
QUIET = Progress(quiet=True)
PART = 8 * 2**20
Push = Callable[..., Pushed]


@pytest.fixture
def push(bench: Bench, bucket: str) -> Push:
    """`push(IMAGE, CASE)`: into the bucket, as `flagbench push` does."""

    def push_image(image: str, case: str = "case", **options: bool) -> Pushed:
        place = ImageBucket(parse_image_bucket(f"s3://{bucket}"), f"{bench.name}/{case}", **options)
        return push_to_bucket(find_local_image(image, (), bench.engine), place, bench.engine, QUIET)

    return push_image


def build(bench: Bench, image: str, own: bytes, shared: bytes = b"the stack\n" * 10_000) -> str:
    """An image whose lower layer is the same for all."""
    dockerfile = "FROM scratch\nCOPY shared /shared\nCOPY own /own\n"
    return bench.build(image, dockerfile, {"shared": shared, "own": own})


def keys_of(server: Any, bucket: str) -> list[str]:
    """Every key of the bucket."""
    return [each["Key"] for each in server.list_objects_v2(Bucket=bucket).get("Contents", ())]


def hows(pushed: Pushed) -> set[str]:
    """What became of its blobs."""
    return {blob.how for blob in pushed.blobs or ()}


def test_an_image_goes_through_a_bucket(bench: Bench, push: Push, server: Any, bucket: str) -> None:
    image = build(bench, "case:1", os.urandom(1000))
    here = bench.engine.inspect(image)
    pushed = push(image)
    assert hows(pushed) == {"uploaded"}
    root = f"v2/{bench.name}/case"
    manifests = {f"{root}/manifests/{reference}" for reference in ("1", pushed.digest)}
    blobs = {f"{root}/blobs/{blob.digest}" for blob in pushed.blobs or ()}
    assert set(keys_of(server, bucket)) == {"v2/", *manifests, *blobs}
    assert f"{root}/blobs/{here.id}" in blobs, "the configuration is the engine's"
    assert {server.head_object(Bucket=bucket, Key=key)["ContentType"] for key in manifests} == {MANIFEST}

    bench.remove(here.id)
    pulled = pull(parse_bucket_image(f"s3://{bucket}/{bench.name}/case:1"), bench.engine, QUIET)
    assert (pulled.image.id, pulled.image.layers, pulled.manifest) == (here.id, here.layers, pushed.digest)


def test_an_image_that_the_bucket_has_is_not_read_again(
    bench: Bench, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = build(bench, "case:1", b"own")
    pushed = push(image)
    with monkeypatch.context() as patch:
        patch.delattr(type(bench.engine), "save")
        again = push(image)
    assert (again.digest, again.bytes_sent, hows(again)) == (pushed.digest, 0, {"present"})
    assert {blob.digest for blob in again.blobs or ()} == {blob.digest for blob in pushed.blobs or ()}


def test_layers_that_the_bucket_has_are_not_compressed_again(
    bench: Bench, push: Push, server: Any, bucket: str
) -> None:
    """An image that was built again: the manifest names the layer as it is there, however that was compressed."""
    first = push(build(bench, "case:1", b"own"))
    root = f"v2/{bench.name}/case"
    manifest = json.loads(server.get_object(Bucket=bucket, Key=f"{root}/manifests/1")["Body"].read())
    shared = manifest["layers"][0]
    content = gzip.decompress(server.get_object(Bucket=bucket, Key=f"{root}/blobs/{shared['digest']}")["Body"].read())
    other = gzip.compress(content, 9, mtime=0)
    shared.update(digest=sha256(other), size=len(other))
    server.put_object(Bucket=bucket, Key=f"{root}/blobs/{shared['digest']}", Body=other)
    server.put_object(Bucket=bucket, Key=f"{root}/manifests/1", Body=json.dumps(manifest).encode())

    second = push(build(bench, "case:1", b"own, changed"))
    assert second.digest != first.digest
    assert [blob.digest for blob in second.blobs or () if blob.how == "present"] == [shared["digest"]]
    assert [blob.how for blob in second.blobs or ()].count("uploaded") == 2  # its own layer and the configuration
    pulled = pull(parse_bucket_image(f"s3://{bucket}/{bench.name}/case:1"), bench.engine, QUIET)
    assert pulled.manifest == second.digest


def test_a_second_case_sends_its_own_layer(bench: Bench, push: Push, server: Any, bucket: str) -> None:
    shared = os.urandom(PART + 1)
    first = push(build(bench, "one:1", b"one", shared), "one")
    large = max(first.blobs or (), key=lambda blob: blob.size)
    # As a killed copy leaves it.
    server.create_multipart_upload(Bucket=bucket, Key=f"v2/{bench.name}/two/blobs/{large.digest}")
    second = push(build(bench, "two:1", b"two", shared), "two")
    assert hows(second) == {"copied", "uploaded"}
    assert second.bytes_sent < first.bytes_sent / 100
    assert "Uploads" not in server.list_multipart_uploads(Bucket=bucket)
    assert hows(push(f"{bench.name}/one:1", "elsewhere")) == {"copied"}


def test_what_is_damaged_is_put_again(bench: Bench, push: Push, server: Any, bucket: str) -> None:
    image = build(bench, "case:1", os.urandom(1000))
    first = push(image)
    tag = f"v2/{bench.name}/case/manifests/1"
    manifest = server.get_object(Bucket=bucket, Key=tag)["Body"].read()
    blob = (first.blobs or ())[0]
    server.put_object(Bucket=bucket, Key=tag, Body=b"{")
    server.put_object(Bucket=bucket, Key=f"v2/{bench.name}/case/blobs/{blob.digest}", Body=b"cut off")
    assert push(image).bytes_sent == blob.size
    assert server.get_object(Bucket=bucket, Key=tag)["Body"].read() == manifest


def test_a_key_that_may_only_write(
    bench: Bench, push: Push, server: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = build(bench, "case:1", b"own")
    server.put_bucket_policy(Bucket=bucket, Policy=write_only_policy(bucket, "v2"))
    become_guest(monkeypatch)
    first = push(image)
    assert (hows(first), push(image).digest) == ({"uploaded"}, first.digest)
    assert f"v2/{bench.name}/case/manifests/1" in keys_of(server, bucket)


def test_what_may_be_read_without_a_key(bench: Bench, push: Push, server: Any, bucket: str) -> None:
    image = build(bench, "case:1", b"own")
    push(image)
    keys = keys_of(server, bucket)
    assert {status(bucket, key) for key in keys} == {403}
    assert hows(push(image, public=True)) == {"present"}
    assert {key: status(bucket, key) for key in keys} == dict.fromkeys(keys, 200)
    push(image, "copy", public=True)
    assert {status(bucket, key) for key in keys_of(server, bucket)} == {200}


def status(bucket: str, key: str) -> int:
    """The answer to somebody without a key."""
    request = urllib.request.Request(f"{os.environ['FLAGBENCH_TEST_S3']}/{bucket}/{key}", method="HEAD")
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_command(
    bench: Bench, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests, stack = own_stack(bench, tmp_path, build(bench, "case:1", b"own"))
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    push = ["push", f"distilbert:{stack}", "--to"]
    assert main.run([*push, f"s3://{bucket}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["place"] == f"s3://{bucket}/flagbench/distilbert"
    assert answer["tags"] == [f"{stack}-{TAG_VERSION}", stack]
    assert main.run([*push, f"s3://{bucket}"]) == 0
    assert f"{answer['place']}@{answer['digest']}  0.0 MB sent" in capsys.readouterr().out
    for wrong in (f"s3://{bucket}/prefix", "s3://flagbench-nowhere"):
        assert main.run([*push, wrong]) == ExitCode.USAGE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_push_shows_nothing(
    bench: Bench, server: Any, bucket: str, proxy: Any, tmp_path: Path, number: int
) -> None:
    manifests, stack = own_stack(bench, tmp_path, build(bench, "case:1", b"own"))
    command = [sys.executable, "-m", "flagbench", "push", f"distilbert:{stack}", "--to", f"s3://{bucket}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "builder"), "FLAGBENCH_MANIFESTS": str(manifests)}
    arrived = proxy.hold("PUT", 2)  # v2/ and the first layer get through
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        wait_until(lambda: arrived.is_set() or process.poll() is not None, 60)
        process.send_signal(number)
        proxy.release()
        process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else ExitCode.INTERRUPTED)
    left = tmp_path / "cache" / "flagbench" / "blobs"
    assert len([*left.glob("flagbench-*")]) == (number == signal.SIGKILL)
    assert not any("/manifests/" in key for key in keys_of(server, bucket))
    proxy.requests.clear()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert not [*left.glob("flagbench-*")]
    manifests_put = [unquote(each) for each in proxy.requests if "PUT" in each and "/manifests/" in each]
    assert "/manifests/sha256:" in manifests_put[0]
    assert [each.rpartition("/")[2] for each in manifests_put[1:]] == [f"{stack}-{TAG_VERSION}", stack]
