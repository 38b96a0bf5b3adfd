"""The layers of a base, read from its registry and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.base_layers import BaseImage, base_blobs
from flagbench.oci.known import Known
from flagbench.oci.model import Blob, digest_of
from places import quiet
from token_registries import CONFIG, DIFF_ID, LAYER, Server, base_manifest


def test_a_download_that_breaks_off_is_continued(
    registry: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flagbench.oci.registry._CHUNK", 3)
    sent: list[int] = []
    expected: list[int] = []
    base = BaseImage(f"{registry.host}/team/x:1", digest_of(base_manifest()), 1)
    (found,) = base_blobs(base, [DIFF_ID], "linux/amd64", Known(tmp_path), tmp_path, expected.append)
    registry.cut = 2
    assert found.path(sent.append).read_bytes() == LAYER
    assert (sum(sent), expected) == (len(LAYER), [len(LAYER)])
    begins = [headers["Range"] for _, headers in registry.sent if "Range" in headers]
    assert begins == ["bytes=9-", "bytes=12-"]
    registry.cut = 1000
    with pytest.raises(FlagbenchError) as caught:
        found.path(quiet)
    assert caught.value.code is ExitCode.ENGINE


def find_base(registry: Server, folder: Path, digest: str | None = None, diff_id: str = DIFF_ID) -> list[Blob]:
    """The base's blobs."""
    base = BaseImage(f"{registry.host}/team/x:1", digest or next(iter(registry.manifests)), 1)
    return base_blobs(base, [diff_id, "sha256:" + "9" * 64], "linux/amd64", Known(folder / "known"), folder)


def test_a_base_s_layers_are_its_registry_s(registry: Server, tmp_path: Path) -> None:
    (found,) = find_base(registry, tmp_path)
    assert (found.descriptor.digest, found.descriptor.size) == (digest_of(LAYER), len(LAYER))
    assert found.descriptor.media_type == "application/vnd.oci.image.layer.v1.tar+gzip"
    assert found.origins == (f"{registry.host}/team/x",)
    assert found.path(quiet).read_bytes() == LAYER
    registry.manifests.clear()
    assert find_base(registry, tmp_path, digest_of(base_manifest())), "a manifest never changes: it is remembered"


def test_a_base_of_two_platforms_is_remembered_for_each(registry: Server, tmp_path: Path) -> None:
    """Two images of one index, with a manifest of their own each; entries that cannot be used are passed over."""
    layers, config = [*json.loads(base_manifest())["layers"]], CONFIG.replace(b"layers", b"stuffs")
    registry.blobs[digest_of(config)] = config
    arm = base_manifest(config={"mediaType": "x", "digest": digest_of(config), "size": len(config)}, layers=layers)
    registry.manifests[digest_of(arm)] = arm
    old = {"digest": digest_of(base_manifest()), "platform": {"os": "linux", "architecture": "arm", "variant": "v6"}}
    new = {"digest": digest_of(arm), "platform": {"os": "linux", "architecture": "arm", "variant": "v7"}}
    useless: list[Any] = [3, None, {"platform": old["platform"]}, {"digest": 3, "platform": old["platform"]}]
    index = json.dumps({"manifests": [*useless, old, new]}).encode()
    registry.manifests[digest_of(index)] = index
    base = BaseImage(f"{registry.host}/team/x:1", digest_of(index), 1)
    known = Known(tmp_path / "known")
    for platform, expected in (
        ("linux/arm/v7", arm),
        ("linux/arm/v6", base_manifest()),
        ("linux/arm", base_manifest()),
    ):
        base_blobs(base, [DIFF_ID], platform, known, tmp_path)
        found = known.base(digest_of(index), platform)
        assert found is not None
        assert found.manifest.encode() == expected


@pytest.mark.parametrize("entries", [3, [3], [{"platform": 3, "digest": "sha256:" + "1" * 64}]])
def test_a_damaged_index_of_a_base_is_refused(entries: Any, registry: Server, tmp_path: Path) -> None:
    index = json.dumps({"manifests": entries}).encode()
    registry.manifests[digest_of(index)] = index
    with pytest.raises(FlagbenchError) as caught:
        find_base(registry, tmp_path, digest_of(index))
    assert caught.value.code is ExitCode.DATA


def test_a_base_for_several_platforms(registry: Server, tmp_path: Path) -> None:
    other = {"digest": "sha256:" + "e" * 64, "platform": {"os": "linux", "architecture": "arm64"}}
    own = {"digest": digest_of(base_manifest()), "platform": {"os": "linux", "architecture": "amd64"}}
    index = json.dumps({"manifests": [other, own]}).encode()
    registry.manifests[digest_of(index)] = index
    assert len(find_base(registry, tmp_path, digest_of(index))) == 1
    index = json.dumps({"manifests": [other]}).encode()
    registry.manifests[digest_of(index)] = index
    with pytest.raises(FlagbenchError) as caught:
        find_base(registry, tmp_path, digest_of(index))
    assert "linux/amd64" in caught.value.message


@pytest.mark.parametrize("damage", ["manifest", "config", "layer", "other layers", "not an image", "gone"])
def test_a_base_that_is_not_what_its_digest_says_is_refused(damage: str, registry: Server, tmp_path: Path) -> None:
    digest, diff_id = digest_of(base_manifest()), DIFF_ID
    if damage == "manifest":
        registry.manifests[digest] = base_manifest(schemaVersion=3)
    elif damage == "gone":
        registry.manifests.clear()
    elif damage == "other layers":
        diff_id = "sha256:" + "8" * 64
    elif damage == "not an image":
        content = base_manifest(layers=[{"digest": "sha256:short"}])
        digest = digest_of(content)
        registry.manifests[digest] = content
    else:
        registry.blobs[digest_of(CONFIG if damage == "config" else LAYER)] = b"something else"
    with pytest.raises(FlagbenchError) as caught:
        [each.path(quiet) for each in find_base(registry, tmp_path, digest, diff_id)]
    assert caught.value.code is (ExitCode.ENGINE if damage == "gone" else ExitCode.DATA)
    assert not [*tmp_path.glob("*.base")]
