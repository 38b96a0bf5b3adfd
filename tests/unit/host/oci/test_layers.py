"""Layers: read from an engine's archive, normalised, compressed; the same bytes whatever the time and the threads."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flagbench.engines.reproducible import layers_of
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.archive import ImageToLoad, LayerToLoad, SavedImages, archive_to_load
from flagbench.oci.compress import COMPRESSIONS, Compression, compress, decompressed
from flagbench.oci.normalise import normalise_config, normalise_layer

EPOCH = 315_532_800


def layer(mtime: float, content: bytes = b"hello\n", **options: object) -> bytes:
    """A layer with a folder, a file, a link and extended attributes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind in (("a", tarfile.DIRTYPE), ("a/file-é", tarfile.REGTYPE), ("a/link", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.mtime, member.mode, member.uid = kind, mtime, 0o750, 1000
            if kind == tarfile.REGTYPE:
                member.size = len(content)
                member.pax_headers = {"SCHILY.xattr.security.capability": "\x01\x02", "atime": "1700000000.5"}
            member.linkname = "file-é" if kind == tarfile.SYMTYPE else ""
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def normal(content: bytes, folder: Path) -> tuple[str | None, bytes]:
    """What a layer becomes."""
    source, target = folder / "source.tar", folder / "target.tar"
    source.write_bytes(content)
    return normalise_layer(source, target, EPOCH), target.read_bytes()


def test_two_builds_become_one_layer(tmp_path: Path) -> None:
    first, made = normal(layer(1_700_000_000.25), tmp_path)
    assert (first, made) == normal(layer(1_700_000_099), tmp_path)
    assert first == digest(made)
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        file = tar.getmember("a/file-é")
        assert {member.mtime for member in tar} == {EPOCH}
        assert tar.extractfile(file).read() == b"hello\n"  # type: ignore[union-attr]
        assert (file.mode, file.uid, tar.getmember("a/link").linkname) == (0o750, 1000, "file-é")
        assert file.pax_headers["SCHILY.xattr.security.capability"] == "\x01\x02"
        assert "atime" not in file.pax_headers


def test_a_normal_layer_is_kept_as_it_is(tmp_path: Path) -> None:
    _, made = normal(layer(1_700_000_000), tmp_path)
    assert normal(made, tmp_path)[0] is None
    assert normal(layer(EPOCH), tmp_path)[0] is None, "also one that another program wrote"


def test_it_is_the_layer_that_flagbench_layers_shows(tmp_path: Path) -> None:
    archive = saved({"x/layer.tar": layer(1_700_000_000)})
    (shown,) = layers_of([archive], EPOCH)
    assert normal(layer(1_700_000_001), tmp_path)[0] == shown.digest


def test_a_damaged_layer_is_told(tmp_path: Path) -> None:
    with pytest.raises(FlagbenchError) as caught:
        normal(layer(1_700_000_000, bytes(100_000))[:60_000], tmp_path)
    assert caught.value.code is ExitCode.DATA


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_number_of_threads_changes_no_byte(
    compression: Compression, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compression == "zstd":
        pytest.importorskip("zstandard")
    content = b"".join(hashlib.sha256(bytes([n % 251, n // 251])).digest() * 40 for n in range(3000))
    source = tmp_path / "layer.tar"
    source.write_bytes(content)
    made = []
    for threads in (1, 2, 5):
        monkeypatch.setattr("os.sched_getaffinity", lambda process, threads=threads: set(range(threads)))
        made.append(compress(source, tmp_path / str(threads), compression))
    assert made[0] == made[1] == made[2]
    blob = (tmp_path / "1").read_bytes()
    assert (made[0].digest, made[0].size) == (digest(blob), len(blob))
    assert b"".join(decompressed(tmp_path / "2", compression)) == content
    if compression == "gzip":
        assert gzip.decompress(blob) == content
        assert blob[3:8] == bytes(5), "no name, no time"


def saved(members: dict[str, bytes], **documents: object) -> bytes:
    """An archive as `docker save` writes it."""
    layers = [name for name in members if name.endswith("layer.tar") or name.startswith("blobs/")]
    documents = {"manifest.json": [{"Config": "c.json", "RepoTags": ["a:1"], "Layers": layers}], **documents}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in {
            **members,
            "c.json": b'{"rootfs": {}}',
            **{k: json.dumps(v).encode() for k, v in documents.items()},
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", ["x/layer.tar", "blobs/sha256/0123"])
def test_an_archive_gives_every_layer_once(pack: object, name: str, tmp_path: Path) -> None:
    content = layer(EPOCH)
    images = SavedImages(chunks(saved({name: pack(content), "x/VERSION": b"1.0"})), tmp_path)  # type: ignore[operator]
    (found,) = [(each.diff_id, each.path.read_bytes()) for each in images.layers()]
    assert found == (digest(content), content)
    assert images.config("a:1") == b'{"rootfs": {}}'
    assert not [*tmp_path.iterdir()], "one layer at a time is kept"
    with pytest.raises(FlagbenchError):
        images.config("b:1")


def chunks(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), 700):
        yield content[start : start + 700]


def test_a_layer_without_a_file_is_a_layer(tmp_path: Path) -> None:
    (found,) = [each.diff_id for each in SavedImages([saved({"x/layer.tar": bytes(1024)})], tmp_path).layers()]
    assert found == digest(bytes(1024))
    assert normal(bytes(1024), tmp_path)[0] is None


def test_an_archive_that_is_cut_off_is_told(tmp_path: Path) -> None:
    content = saved({"x/layer.tar": layer(EPOCH, bytes(50_000))})
    with pytest.raises(FlagbenchError) as caught:
        [*SavedImages(chunks(content[:30_000]), tmp_path).layers()]
    assert caught.value.code is ExitCode.DATA


def test_what_is_loaded_is_read_as_it_was_saved(tmp_path: Path) -> None:
    content, config = layer(EPOCH), b'{"rootfs": {"diff_ids": []}}'
    images = [ImageToLoad(config, ["a:1", "a:2"], [digest(content), "sha256:" + "b" * 64])]
    layers = {digest(content): LayerToLoad(len(content), lambda: chunks(content))}
    read = SavedImages(archive_to_load(images, layers), tmp_path)
    assert [each.diff_id for each in read.layers()] == [digest(content)]
    assert read.config("a:2") == config


A, B, NEW = ("sha256:" + each * 64 for each in "abc")


def config(**changes: object) -> bytes:
    """A configuration."""
    history = [
        {"created": "2020-01-01T00:00:00Z"},
        {"created": "2026-05-05T05:05:05.123456789Z", "empty_layer": True},
    ]
    plain = {
        "architecture": "amd64",
        "created": "2026-05-05T05:05:05.5Z",
        "history": history,
        "rootfs": {"type": "layers", "diff_ids": [A, B]},
        "unknown": {"kept": "ü"},
    }
    return json.dumps({**plain, **changes}).encode()


def test_a_configuration_gets_its_layers_and_its_time() -> None:
    made = normalise_config(config(), {A: A, B: NEW}, "2026-02-02T02:02:02Z")
    found = json.loads(made)
    assert found["rootfs"]["diff_ids"] == [A, NEW]
    assert found["created"] == "2026-02-02T02:02:02Z"
    assert [step["created"] for step in found["history"]] == ["2020-01-01T00:00:00Z", "2026-02-02T02:02:02Z"]
    assert found["unknown"] == {"kept": "ü"}
    assert normalise_config(made, {A: A, NEW: NEW}, "2026-02-02T02:02:02Z") == made
    assert normalise_config(config(), {A: A, B: B}, None) == config(), "not even its white space changes"


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"rootfs": {"diff_ids": 1}}', b'{"rootfs": {"diff_ids": [1]}}']
)
def test_what_is_no_configuration_is_told(content: bytes) -> None:
    with pytest.raises(FlagbenchError) as caught:
        normalise_config(content, {}, None)
    assert caught.value.code is ExitCode.DATA
