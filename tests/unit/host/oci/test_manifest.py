"""Manifests and configurations from a place that may be damaged or hostile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.manifest import parse_diff_ids, parse_manifest
from flagbench.oci.model import DOCKER_MANIFEST, OCI_MANIFEST
from oci_images import make_image, sha256
from places import quiet

WHERE = "s3://lab/a:cpu"


def test_an_image_is_read(tmp_path: Path) -> None:
    image = make_image(tmp_path, {"one": b"1"}, {"two": b"2"})
    read = parse_manifest(image.manifest, image.media_type, WHERE)
    assert (read.digest, read.config) == (image.digest, image.config.descriptor)
    assert read.layers == tuple(layer.descriptor for layer in image.layers)
    config = image.config.path(quiet).read_bytes()
    assert list(parse_diff_ids(config, read, WHERE)) == json.loads(config)["rootfs"]["diff_ids"]


@pytest.mark.parametrize(
    ("kept_with", "inside", "kind"),
    [
        ("application/octet-stream", DOCKER_MANIFEST, DOCKER_MANIFEST),
        (OCI_MANIFEST, None, OCI_MANIFEST),
        ("binary/octet-stream", None, OCI_MANIFEST),
        ("", 7, OCI_MANIFEST),
    ],
)
def test_a_manifest_whose_type_was_lost(tmp_path: Path, kept_with: str, inside: object, kind: str) -> None:
    document = {**json.loads(make_image(tmp_path, {"one": b"1"}).manifest), "mediaType": inside}
    assert parse_manifest(json.dumps(document).encode(), kept_with, WHERE).media_type == kind


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(schemaVersion=1),
        lambda document: document.update(layers=[]),
        lambda document: document.update(layers={}),
        lambda document: document.update(layers=document["layers"] * 2000),
        lambda document: document.update(layers=None, manifests=[]),
        lambda document: document.update(config=[]),
        lambda document: document["config"].update(size=-1),
        lambda document: document["config"].update(size=True),
        lambda document: document["config"].update(size="12"),
        lambda document: document["layers"][0].update(size=2**60),
        lambda document: document["layers"][0].update(digest="sha256:../../etc/passwd"),
        lambda document: document["layers"][0].update(digest=None),
        lambda document: document["layers"][0].update(mediaType="text/html\x1b"),
        lambda document: document["layers"][0].pop("mediaType"),
    ],
)
def test_what_is_no_manifest_of_an_image(tmp_path: Path, change: Change) -> None:
    document = json.loads(make_image(tmp_path, {"one": b"1"}).manifest)
    change(document)
    refused(lambda: parse_manifest(json.dumps(document).encode(), DOCKER_MANIFEST, WHERE))


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b"<html>"])
def test_what_is_no_json_object(content: bytes) -> None:
    refused(lambda: parse_manifest(content, DOCKER_MANIFEST, WHERE))


@pytest.mark.parametrize(
    "root", [None, [], {"diff_ids": None}, {"diff_ids": []}, {"diff_ids": ["x"]}, {"diff_ids": [sha256(b"")] * 2}]
)
def test_a_configuration_that_does_not_name_its_layers(tmp_path: Path, root: object) -> None:
    image = make_image(tmp_path, {"one": b"1"})
    config = json.dumps({"rootfs": root}).encode()
    document = json.loads(image.manifest)
    document["config"].update(digest=sha256(config), size=len(config))
    manifest = parse_manifest(json.dumps(document).encode(), DOCKER_MANIFEST, WHERE)
    refused(lambda: parse_diff_ids(config, manifest, WHERE))


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    image = make_image(tmp_path, {"one": b"1"})
    manifest = parse_manifest(image.manifest, image.media_type, WHERE)
    other = image.config.path(quiet).read_bytes().replace(b"amd64", b"arm64")
    refused(lambda: parse_diff_ids(other, manifest, WHERE))


def refused(read: Callable[[], object]) -> None:
    """It is refused as damaged, with words that a terminal can show."""
    with pytest.raises(FlagbenchError) as caught:
        read()
    assert caught.value.code is ExitCode.DATA
    assert caught.value.message.isprintable()
