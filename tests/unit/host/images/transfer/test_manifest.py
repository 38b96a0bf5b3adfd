"""Manifests and configurations from a bucket that may be damaged or hostile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.docker_archive import Config, Manifest, decode
from flagbench_core.exit_codes import ExitCode
from oci_images import make_image, sha256


def test_a_manifest_is_written_as_docker_has_it() -> None:
    image = make_image({"one": b"1"}, {"two": b"2"})
    manifest = decode(image.manifest, Manifest, "it")
    assert json.loads(msgspec.json.encode(manifest)) == json.loads(image.manifest)
    assert decode(image.config, Config, "it").rootfs.diff_ids == json.loads(image.config)["rootfs"]["diff_ids"]


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(schemaVersion=1),
        lambda document: document.update(layers=[]),
        lambda document: document.update(layers=None, manifests=[]),
        lambda document: document.update(config=[]),
        lambda document: document["config"].update(size=-1),
        lambda document: document["layers"][0].update(digest="sha256:../../etc/passwd"),
        lambda document: document["layers"][0].update(digest=f"{sha256(b'')}\n"),
        lambda document: document["layers"][0].update(mediaType="application/vnd.oci.image.layer.v1.tar+zstd"),
    ],
)
def test_what_is_no_manifest_of_an_image(change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(make_image({"one": b"1"}).manifest)
    change(document)
    refused(json.dumps(document).encode(), Manifest)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b"<html>\x1b[2J"])
def test_what_is_no_json_object(content: bytes) -> None:
    refused(content, Manifest)


@pytest.mark.parametrize("root", [None, [], {"diff_ids": None}, {"diff_ids": ["x"]}])
def test_a_configuration_that_does_not_name_its_layers(root: object) -> None:
    refused(json.dumps({"rootfs": root}).encode(), Config)


def refused(content: bytes, kind: type[msgspec.Struct]) -> None:
    """It is refused as damaged, with words that a terminal can show."""
    with pytest.raises(FlagbenchError) as caught:
        decode(content, kind, "it")
    assert caught.value.code is ExitCode.DATA
    assert caught.value.message.isprintable()
