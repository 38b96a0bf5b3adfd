"""Images put into a bucket: only what is missing, with a registry's types, surviving kills and faults."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.bucket import BucketPlace
from flagbench.oci.bucket_address import parse_image_bucket
from flagbench.oci.model import DOCKER_MANIFEST, OciImage, Put, digest_of
from flagbench.oci.referrers import attach
from oci_images import LAYER, blob, make_image
from places import quiet

pytestmark = pytest.mark.s3

ROOT = Path(__file__).parents[2]
PART = 8 * 2**20
"""Bytes of a part of an upload."""
NAME = "flagbench/distilbert"
CONFLICT = (409, "ConditionalRequestConflict")


@pytest.fixture
def open_place(bucket: str) -> Callable[..., BucketPlace]:
    """A repository of the bucket."""

    def open_named(name: str = NAME, **options: Any) -> BucketPlace:
        return BucketPlace(parse_image_bucket(f"s3://{bucket}"), name, **options)

    return open_named


def push(place: BucketPlace, image: OciImage, *tags: str) -> list[Put]:
    """Put all of an image; how each of its blobs came there."""
    ways = [place.put_blob(each, lambda count: None) for each in (*image.layers, image.config)]
    assert place.put_manifest(image.manifest, image.media_type, tags) is False
    return ways


def without_bytes(image: OciImage) -> OciImage:
    """The same image, of which no file can be read."""

    def read() -> Path:
        raise AssertionError("a blob that is there was read")

    layers = tuple(replace(layer, path=read) for layer in image.layers)
    return replace(image, config=replace(image.config, path=read), layers=layers)


def test_the_keys_are_the_paths_of_a_registry(
    open_place: Callable[..., BucketPlace], server: Any, bucket: str, tmp_path: Path
) -> None:
    image = make_image(tmp_path, {"one": b"1"}, {"two": b"2"})
    place = open_place()
    assert push(place, image, "cpu", "cpu-0.1") == ["uploaded"] * 3
    listed = {each["Key"] for each in server.list_objects_v2(Bucket=bucket)["Contents"]}
    blobs = {f"v2/{NAME}/blobs/{each.descriptor.digest}" for each in (*image.layers, image.config)}
    manifests = {f"v2/{NAME}/manifests/{name}" for name in ("cpu", "cpu-0.1", image.digest)}
    assert listed == {"v2/", *blobs, *manifests}
    for key in manifests:
        got = server.get_object(Bucket=bucket, Key=key)
        assert (got["ContentType"], got["Body"].read()) == (DOCKER_MANIFEST, image.manifest)
    assert place.read_manifest("cpu") == place.read_manifest(image.digest) == (image.manifest, image.media_type)
    assert place.read_manifest("a100") is None
    assert [place.has_blob(each.descriptor.digest) for each in image.layers] == [True, True]
    assert b"".join(place.read_blob(image.config.descriptor.digest)) == image.config.path(quiet).read_bytes()
    assert not open_place("flagbench/glm").has_blob(image.config.descriptor.digest)


def test_the_same_again_sends_no_blob(open_place: Callable[..., BucketPlace], proxy: Any, tmp_path: Path) -> None:
    image = make_image(tmp_path, {"one": b"1"}, {"two": b"2"})
    push(open_place(), image, "cpu")
    proxy.requests.clear()
    assert push(open_place(), without_bytes(image), "cpu") == ["present"] * 3
    assert [each for each in proxy.requests if each.startswith("PUT") and "/blobs/" in each] == []
    assert not any(each.startswith("POST") for each in proxy.requests)


def test_another_repository_gets_copies_made_by_the_server(
    open_place: Callable[..., BucketPlace], tmp_path: Path
) -> None:
    image = make_image(tmp_path, {"one": b"1"}, {"big": os.urandom(PART + 1)})
    push(open_place("flagbench/distilbert"), image, "cpu")
    assert push(open_place("flagbench/glm"), without_bytes(image), "cpu") == ["copied"] * 3
    other = make_image(tmp_path, {"one": b"1"}, {"three": b"3"})
    assert push(open_place("flagbench/glm"), other, "cpu") == ["present", "uploaded", "uploaded"]
    third = open_place("flagbench/third")
    assert push(third, without_bytes(image), "cpu") == ["copied"] * 3
    assert push(third, without_bytes(image), "cpu") == ["copied"] * 3, "by this very place"
    assert push(open_place("flagbench/third"), without_bytes(image), "cpu") == ["present"] * 3
    for layer in image.layers:
        assert b"".join(third.read_blob(layer.descriptor.digest)) == layer.path(quiet).read_bytes()


def test_a_tag_moves_and_nothing_else_does(
    open_place: Callable[..., BucketPlace], server: Any, bucket: str, tmp_path: Path
) -> None:
    first, second = make_image(tmp_path, {"one": b"1"}), make_image(tmp_path, {"one": b"2"})
    place = open_place()
    push(place, first, "cpu")
    push(place, second, "cpu")
    assert place.read_manifest("cpu") == (second.manifest, second.media_type)
    assert place.read_manifest(first.digest) == (first.manifest, first.media_type)
    server.put_object(Bucket=bucket, Key=f"v2/{NAME}/manifests/{first.digest}", Body=b"{}")
    for use in (lambda: place.read_manifest(first.digest), lambda: push(place, first, "cpu")):
        with pytest.raises(FlagbenchError) as caught:
            use()
        assert caught.value.code is ExitCode.DATA
    assert place.read_manifest("cpu") == (second.manifest, second.media_type)


def test_only_what_was_asked_for_is_public(
    open_place: Callable[..., BucketPlace], bucket: str, tmp_path: Path
) -> None:
    image = make_image(tmp_path, {"one": b"1"})

    def status(path: str) -> int:
        request = urllib.request.Request(f"{os.environ['FLAGBENCH_TEST_S3']}/{bucket}/v2/{path}", method="HEAD")
        try:
            with urllib.request.urlopen(request) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    paths = ["", f"{NAME}/manifests/cpu", f"{NAME}/manifests/{image.digest}"]
    paths += [f"{NAME}/blobs/{each.descriptor.digest}" for each in (*image.layers, image.config)]
    push(open_place(), image, "cpu")
    assert {status(path) for path in paths} == {403}
    push(open_place(public=True), image, "cpu")
    assert {status(path) for path in paths} == {200}
    copies = open_place("flagbench/copy", public=True)
    assert push(copies, without_bytes(image), "cpu") == ["copied"] * 2
    assert {status(path.replace(NAME, "flagbench/copy")) for path in paths} == {200}


def test_an_upload_that_was_begun_in_private_ends_public(
    open_place: Callable[..., BucketPlace], server: Any, bucket: str, tmp_path: Path
) -> None:
    layer = blob(tmp_path, os.urandom(PART + 1), LAYER)
    key = f"v2/{NAME}/blobs/{layer.descriptor.digest}"
    kept = {"sha256": layer.descriptor.digest.removeprefix("sha256:")}
    server.create_multipart_upload(Bucket=bucket, Key=key, Metadata=kept)
    assert open_place(public=True).put_blob(layer, quiet) == "uploaded"
    with urllib.request.urlopen(f"{os.environ['FLAGBENCH_TEST_S3']}/{bucket}/{key}") as answer:
        assert answer.status == 200


@pytest.mark.parametrize("knows_conditions", [True, False])
def test_an_index_loses_no_change_of_another_process(
    knows_conditions: bool, open_place: Callable[..., BucketPlace], proxy: Any
) -> None:
    def refuse(method: str, path: str, count: int) -> tuple[int, str] | None:
        is_conditional = "if-match" in proxy.headers[-1]
        return (501, "NotImplemented") if is_conditional and not knows_conditions else None

    proxy.fault = refuse
    place, others = open_place(), [b"1", b"2"]

    def add(own: bytes, index: bytes | None) -> bytes | None:
        if own == b"0" and others:  # after it was read, and before it is written
            open_place().update_manifest("index", "application/x", partial(add, others.pop()))
        index = index or b""
        return None if own in index else index + own

    place.update_manifest("index", "application/x", partial(add, b"0"))
    assert sorted((place.read_manifest("index") or (b"",))[0]) == sorted(b"012")


def test_two_at_once_put_the_same_image(open_place: Callable[..., BucketPlace], tmp_path: Path) -> None:
    image = make_image(tmp_path, {"big": os.urandom(2 * PART)}, {"one": b"1"})
    with ThreadPoolExecutor(2) as pool:
        ways = [*pool.map(lambda place: push(place, image, "cpu"), [open_place(), open_place()])]
    assert {way for each in ways for way in each} <= {"present", "uploaded"}
    place = open_place()
    assert place.read_manifest("cpu") == (image.manifest, image.media_type)
    for each in (*image.layers, image.config):
        assert b"".join(place.read_blob(each.descriptor.digest)) == each.path(quiet).read_bytes()


@pytest.mark.parametrize("fault", ["lost", "cut"])
def test_faults_of_the_network_are_survived(
    open_place: Callable[..., BucketPlace], proxy: Any, tmp_path: Path, fault: Any
) -> None:
    image = make_image(tmp_path, {"big": os.urandom(PART + 1)})
    seen: set[str] = set()

    def once(method: str, path: str, count: int) -> Any:
        # Each kind of request meets it once.
        if method in seen or (fault == "cut" and method != "GET"):
            return None
        seen.add(method)
        return fault

    proxy.fault = once
    push(open_place(), image, "cpu")
    place = open_place()
    assert place.read_manifest("cpu") == (image.manifest, image.media_type)
    assert b"".join(place.read_blob(image.layers[0].descriptor.digest)) == image.layers[0].path(quiet).read_bytes()
    assert seen >= ({"GET"} if fault == "cut" else {"HEAD", "GET", "PUT", "POST"})


def test_a_key_that_may_only_write_pushes(
    open_place: Callable[..., BucketPlace], server: Any, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_image(tmp_path, {"one": b"1"})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["FLAGBENCH_TEST_S3_WRITER_KEY"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["FLAGBENCH_TEST_S3_WRITER_SECRET"])
    document = tmp_path / "document"
    document.write_text("{}")
    for _ in range(2):
        push(open_place(), image, "cpu")
        attach(open_place(), image.config.descriptor, {"application/x": document}, {})
    kept = server.get_object(Bucket=bucket, Key=f"v2/{NAME}/manifests/cpu")
    assert kept["Body"].read() == image.manifest


def test_a_damaged_blob_is_found_before_it_is_relied_on(
    open_place: Callable[..., BucketPlace], server: Any, bucket: str, tmp_path: Path
) -> None:
    image = make_image(tmp_path, {"one": b"1"})
    digest = image.layers[0].descriptor.digest
    server.put_object(Bucket=bucket, Key=f"v2/{NAME}/blobs/{digest}", Body=b"cut off")
    with pytest.raises(FlagbenchError) as caught:
        push(open_place(), image, "cpu")
    assert caught.value.code is ExitCode.DATA
    assert digest in caught.value.message
    assert open_place().read_manifest("cpu") is None
    same_size, size = f"v2/{NAME}/blobs/{image.config.descriptor.digest}", image.config.descriptor.size
    server.put_object(Bucket=bucket, Key=same_size, Body=bytes(size), Metadata={"sha256": "0" * 64})
    with pytest.raises(FlagbenchError) as caught:
        open_place().put_blob(image.config, quiet)
    assert caught.value.code is ExitCode.DATA


def test_a_server_that_returns_nothing_of_a_blob_is_not_asked_forever(
    open_place: Callable[..., BucketPlace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, layer = open_place(), blob(tmp_path, b"layer", LAYER)
    place.put_blob(layer, quiet)
    monkeypatch.setattr(place._objects, "chunks", lambda key, head, begin: iter(()))
    with pytest.raises(FlagbenchError) as caught:
        [*place.read_blob(layer.descriptor.digest)]
    assert caught.value.code is ExitCode.ENGINE


def test_a_bucket_that_does_not_exist(server: Any, tmp_path: Path) -> None:
    place = BucketPlace(parse_image_bucket("s3://flagbench-nowhere"), NAME)
    with pytest.raises(FlagbenchError) as caught:
        push(place, make_image(tmp_path, {"one": b"1"}), "cpu")
    assert caught.value.code is ExitCode.USAGE
    assert "NoSuchBucket" in caught.value.message
    for ask in (place.require_bucket, lambda: place.read_manifest("cpu")):
        with pytest.raises(FlagbenchError) as caught:
            ask()
        assert (caught.value.code, "flagbench-nowhere" in caught.value.message) == (ExitCode.USAGE, True)


def test_a_key_that_may_not_list_is_not_told_that_there_is_no_bucket(
    open_place: Callable[..., BucketPlace], proxy: Any
) -> None:
    open_place().require_bucket()
    proxy.fault = lambda method, path, count: (403, "AccessDenied") if "list-type" in path else None
    open_place().require_bucket()
    proxy.fault = lambda method, path, count: (503, "SlowDown")
    with pytest.raises(FlagbenchError) as caught:
        open_place().require_bucket()
    assert caught.value.code is ExitCode.ENGINE


def test_a_manifest_is_put_again_while_another_writer_is_at_it(open_place: Any, proxy: Any, tmp_path: Path) -> None:
    """That another writer is at it does not mean that the object will be there."""
    place = open_place()
    image = make_image(tmp_path)
    proxy.fault = lambda method, _, count: CONFLICT if method == "PUT" and count == 1 else None
    place.put_manifest(image.manifest, image.media_type, ("cpu",))
    digest = digest_of(image.manifest)
    assert place.read_manifest(digest) == place.read_manifest("cpu") == (image.manifest, image.media_type)
