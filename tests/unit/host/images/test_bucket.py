"""Addresses of images in a bucket, and where blobs are kept on their way."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.bucket import blob_folder, is_in_bucket, parse_bucket_image, parse_image_bucket
from flagbench.images.pull import find_in_bucket
from flagbench_core.exit_codes import ExitCode

DIGEST = f"sha256:{'0123456789ab' + 'c' * 52}"


@pytest.mark.parametrize(
    ("address", "name", "reference", "local"),
    [
        ("s3://lab/flagbench/distilbert:cpu", "flagbench/distilbert", "cpu", "flagbench/distilbert:cpu"),
        ("s3://lab/glm:a100-0.1", "glm", "a100-0.1", "glm:a100-0.1"),
        (f"s3://lab/a/b/c@{DIGEST}", "a/b/c", DIGEST, "a/b/c:sha256-0123456789ab"),
        (f"s3://lab/a/b:cpu@{DIGEST}", "a/b", DIGEST, "a/b:cpu"),
        ("s3://lab/a.b/c:cpu?profile=ceph", "a.b/c", "cpu", "a.b/c:cpu"),
        ("S3://lab/a:cpu", "a", "cpu", "a:cpu"),
    ],
)
def test_an_image_in_a_bucket(address: str, name: str, reference: str, local: str) -> None:
    found = parse_bucket_image(address)
    assert (found.bucket.bucket, found.bucket.prefix, found.name) == ("lab", "", name)
    assert (found.reference, found.local_name) == (reference, local)
    assert parse_bucket_image(found.url) == found
    assert is_in_bucket(address)


@pytest.mark.parametrize(
    "address",
    [
        "s3://lab",
        "s3://lab/",
        "s3://lab/flagbench/distilbert",
        "s3://lab/Upper:cpu",
        "s3://lab/a:cpu:cpu",
        "s3://lab/a@sha256:12",
        "s3://lab/../a:cpu",
        "s3://lab/a:cpu#part",
        "s3://lab/a:cpu?tag=cpu",
        "s3:/lab/a:cpu",
        "s3://lab/a:\x1b[2J",
        "s3://lab/ä:cpu",
    ],
)
def test_what_is_no_image_in_a_bucket(address: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        parse_bucket_image(address)
    assert caught.value.code is ExitCode.USAGE
    assert caught.value.message.isprintable()


def test_an_address_without_an_image_is_named() -> None:
    with pytest.raises(FlagbenchError, match="s3://lab") as caught:
        parse_bucket_image("s3://lab")
    assert caught.value.code is ExitCode.USAGE


def test_keys_in_an_address_are_refused_without_being_repeated() -> None:
    with pytest.raises(FlagbenchError) as caught:
        parse_bucket_image("s3://AKIAEXAMPLE:hunter2/x@lab/a:cpu")
    assert "hunter2" not in caught.value.message + caught.value.remedy


def test_images_are_pushed_to_the_root_of_a_bucket() -> None:
    assert parse_image_bucket("s3://lab?profile=ceph").profile == "ceph"
    with pytest.raises(FlagbenchError) as caught:
        parse_image_bucket("s3://lab/team/images")
    assert caught.value.code is ExitCode.USAGE
    assert "location /v2/" in caught.value.remedy


def test_only_what_nobody_uses_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    left = tmp_path / "flagbench" / "blobs" / "flagbench-left"
    left.mkdir(parents=True)
    (left / "owner.lock").touch()
    with blob_folder() as one:
        assert not left.exists()
        with blob_folder() as other:
            assert one.is_dir()
            assert other != one
    assert not one.exists()


@pytest.mark.parametrize(
    ("image", "bucket"),
    [
        ("distilbert:cpu", None),
        ("distilbert:cpu", "s3://lab/prefix"),
        ("distilbert:cpu", "registry.example:5000/team"),
        ("nothing:cpu", "s3://lab"),
        ("s3://lab/flagbench/distilbert:cpu", "s3://lab"),
    ],
)
def test_what_cannot_be_pulled(image: str, bucket: str | None) -> None:
    with pytest.raises(FlagbenchError) as caught:
        find_in_bucket(image, bucket)
    assert caught.value.code is ExitCode.USAGE


def test_from_a_registry_docker_pulls() -> None:
    with pytest.raises(FlagbenchError) as caught:
        find_in_bucket("distilbert:cpu", "registry.example:5000/team")
    assert "docker pull" in caught.value.remedy
    assert "flagbench/distilbert:cpu" in caught.value.remedy


def test_an_image_is_named_by_its_bucket() -> None:
    assert find_in_bucket("distilbert:cpu", "s3://lab").url == "s3://lab/flagbench/distilbert:cpu"
