"""Archives of docker save as blobs and a manifest, and documents from a bucket that may be hostile."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.docker_archive import Config, ImageManifest, Layer, decode, read_archive
from flagbench_core.exit_codes import ExitCode
from oci_images import make_image, sha256, tar

ONE, TWO = {"one": b"1" * 10_000}, {"two": b"2"}


def archive(members: dict[str, bytes | str], layers: list[str], config: str) -> Iterator[bytes]:
    """Chunks of an archive: name to content, or to what a link leads to; `manifest.json` comes last."""
    out = io.BytesIO()
    documents = {"manifest.json": json.dumps([{"Config": config, "RepoTags": ["a:1"], "Layers": layers}]).encode()}
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, content in {**members, **documents}.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                made.addfile(member)
            else:
                member.size = len(content)
                made.addfile(member, io.BytesIO(content))
    text = out.getvalue()
    return (text[at : at + 1000] for at in range(0, len(text), 1000))


def old_archive(*layers: dict[str, bytes]) -> Iterator[bytes]:
    """As before Docker 25, where a layer that the image has twice is a link; layers come in any order."""
    config = make_image(*layers).config
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    members: dict[str, bytes | str] = {"0/VERSION": b"1.0", "0/json": b"{}", "c.json": config}
    for number in reversed(range(len(layers))):
        first = layers.index(layers[number])
        members[names[number]] = tar(layers[number]) if first == number else f"../{first}/layer.tar"
    return archive(members, names, "c.json")


def new_archive(*layers: dict[str, bytes], compressed: bool = False) -> Iterator[bytes]:
    """As since Docker 25; with the containerd image store layers are compressed."""
    config = make_image(*layers).config
    packed = [gzip.compress(tar(each)) if compressed else tar(each) for each in layers]
    members: dict[str, bytes | str] = {f"blobs/{sha256(each).replace(':', '/')}": each for each in (config, *packed)}
    names = [f"blobs/{sha256(each).replace(':', '/')}" for each in packed]
    return archive({**members, "oci-layout": b"{}"}, names, f"blobs/{sha256(config).replace(':', '/')}")


def saved(
    chunks: Iterator[bytes], folder: Path, held: Mapping[str, Layer] = MappingProxyType({})
) -> tuple[ImageManifest, dict[str, bytes]]:
    """The manifest, and every blob that was put by its digest."""
    blobs: dict[str, bytes] = {}
    manifest = read_archive(chunks, folder, lambda blob, path: blobs.update({blob.digest: path.read_bytes()}), held)
    assert all(sha256(content) == digest for digest, content in blobs.items())
    return manifest, blobs


@pytest.mark.parametrize("make", [old_archive, new_archive, lambda *layers: new_archive(*layers, compressed=True)])
def test_an_image_keeps_its_id_and_its_layers(make: type, tmp_path: Path) -> None:
    manifest, blobs = saved(make(ONE, TWO, ONE), tmp_path)
    assert blobs[manifest.config.digest] == make_image(ONE, TWO, ONE).config
    assert [gzip.decompress(blobs[layer.digest]) for layer in manifest.layers] == [*map(tar, (ONE, TWO, ONE))]
    assert [len(blobs[layer.digest]) for layer in manifest.layers] == [layer.size for layer in manifest.layers]
    assert len(blobs) == 3


def test_a_shared_layer_is_one_blob(tmp_path: Path) -> None:
    first, _ = saved(old_archive(ONE, TWO), tmp_path)
    second, _ = saved(new_archive(ONE, {"three": b"3"}), tmp_path)
    assert first.layers[0] == second.layers[0]
    assert first.layers[1] != second.layers[1]


@pytest.mark.parametrize("make", [old_archive, new_archive, lambda *layers: new_archive(*layers, compressed=True)])
def test_a_layer_that_is_held_is_not_compressed_again(make: type, tmp_path: Path) -> None:
    """As its holder describes it, whatever another compression would make of it."""
    held = {sha256(tar(ONE)): Layer(size=7, digest=sha256(b"as another zlib compresses it"))}
    manifest, blobs = saved(make(ONE, TWO), tmp_path, held)
    assert manifest.layers[0] == held[sha256(tar(ONE))]
    assert blobs.keys() == {manifest.layers[1].digest, manifest.config.digest}


@pytest.mark.parametrize(
    "chunks",
    [
        iter([b"not a tar"]),
        iter([b"".join(old_archive(ONE))[:8000]]),
        archive({"c.json": make_image(ONE).config, "0/layer.tar": tar(TWO)}, ["0/layer.tar"], "c.json"),
        archive({"c.json": make_image(ONE).config}, ["0/layer.tar"], "c.json"),
        archive({"0/layer.tar": tar(ONE)}, ["0/layer.tar"], "c.json"),
        archive({"blobs/x": gzip.compress(tar(ONE))[:-9]}, ["blobs/x"], "c.json"),
    ],
)
def test_a_damaged_archive_is_refused(chunks: Iterator[bytes], tmp_path: Path) -> None:
    with pytest.raises(FlagbenchError) as caught:
        saved(chunks, tmp_path)
    assert caught.value.code is ExitCode.DATA


def test_a_manifest_is_written_as_docker_has_it() -> None:
    image = make_image({"one": b"1"}, {"two": b"2"})
    manifest = decode(image.manifest, ImageManifest, "it")
    assert json.loads(msgspec.json.encode(manifest)) == json.loads(image.manifest)
    assert decode(image.config, Config, "it").rootfs.diff_ids == json.loads(image.config)["rootfs"]["diff_ids"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"sha256:", b"sha256:../../etc/passwd"),
        (b"tar.gzip", b"tar+zstd"),
        (b'"layers"', b'"manifests"'),
        (b"{", b"\xff"),
        (b"{", b"<html>\x1b[2J"),
        (b"{", b"[" * 100_000),
    ],
)
def test_a_hostile_manifest_is_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(FlagbenchError) as caught:
        decode(make_image({"one": b"1"}).manifest.replace(old, new), ImageManifest, "it")
    assert caught.value.code is ExitCode.DATA
    assert caught.value.message.isprintable()
