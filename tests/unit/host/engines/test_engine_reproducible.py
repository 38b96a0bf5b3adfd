"""Layers without their times: what makes two images the same, and what is still told apart."""

import gzip
import io
import json
import tarfile

import pytest

from flagbench.engines.reproducible import differences, layers_of
from flagbench.errors import FlagbenchError

EPOCH = 1_577_836_800
NOW = EPOCH + 200_000_000


def layer(*members, format=tarfile.PAX_FORMAT):
    """A layer's tar of (name, content or None for a folder, other fields of its header)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, content, fields in members:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            info.size = len(content or b"")
            info.mtime = NOW
            for key, value in fields.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content or b""))
    return out.getvalue()


def archive(*layers, modern=False, links=None):
    """What `docker save` writes: before 25 a folder a layer, from 25 on blobs."""
    names = [f"blobs/sha256/{n}" if modern else f"{n}/layer.tar" for n in range(len(layers))]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in [*zip(names, layers), ("config.json", b'{"os": "linux"}')]:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
            names.append(name)
        manifest = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
        info = tarfile.TarInfo("manifest.json")
        info.size = len(manifest)
        tar.addfile(info, io.BytesIO(manifest))
    raw = out.getvalue()
    return [raw[at : at + 700] for at in range(0, len(raw), 700)]


FILES = (("usr/", None, {"mode": 0o755}), ("usr/tool", b"x" * 5000, {"mode": 0o755}))


def test_times_after_the_epoch_make_no_difference():
    later = [(name, content, {**fields, "mtime": NOW + 99.5}) for name, content, fields in FILES]
    one, other = layers_of(archive(layer(*FILES)), EPOCH), layers_of(archive(layer(*later)), EPOCH)
    assert one[0].digest == other[0].digest
    assert differences(one, other) == []


@pytest.mark.parametrize(
    "changed",
    [
        ("usr/tool", b"y" * 5000, {"mode": 0o755}),
        ("usr/tool", b"x" * 5000, {"mode": 0o644}),
        ("usr/tool", b"x" * 5000, {"mode": 0o755, "uid": 7}),
        ("usr/tool", b"x" * 5000, {"mode": 0o755, "mtime": EPOCH - 5}),
        ("usr/tool", b"x" * 5000, {"mode": 0o755, "pax_headers": {"SCHILY.xattr.security.capability": "\x01\udcff"}}),
    ],
)
def test_everything_else_of_a_file_does(changed):
    one = layers_of(archive(layer(*FILES)), EPOCH)
    other = layers_of(archive(layer(FILES[0], changed)), EPOCH)
    assert differences(one, other) == ["layer 1: usr/tool"]


def test_headers_that_carry_nothing_of_a_file_make_no_difference():
    noted = [(n, c, {**f, "pax_headers": {"atime": "1.5", "LIBARCHIVE.creationtime": "3"}}) for n, c, f in FILES]
    one, other = layers_of(archive(layer(*FILES)), EPOCH), layers_of(archive(layer(*noted)), EPOCH)
    assert one[0].digest == other[0].digest


def test_old_and_new_archives_read_the_same():
    old = layers_of(archive(layer(*FILES), layer(("b", b"", {}))), EPOCH)
    new = layers_of(archive(layer(*FILES), layer(("b", b"", {})), modern=True), EPOCH)
    packed = layers_of(
        archive(gzip.compress(layer(*FILES)), gzip.compress(layer(("b", b"", {}))), modern=True), EPOCH
    )
    assert [each.digest for each in old] == [each.digest for each in new] == [each.digest for each in packed]


def test_a_layer_that_an_image_has_twice():
    (first, again) = layers_of(archive(layer(*FILES), links={"9/layer.tar": "../0/layer.tar"}), EPOCH)
    assert first.digest == again.digest


def test_long_and_foreign_names_are_kept():
    name = "usr/" + "ä" * 150 + "/tool"
    (one,) = layers_of(archive(layer((name, b"x", {}), format=tarfile.GNU_FORMAT)), EPOCH)
    assert list(one.files) == [name]


def test_an_empty_layer_is_a_layer():
    assert len(layers_of(archive(layer()), EPOCH)) == 1


def test_a_missing_layer_and_another_order_are_told():
    two = layers_of(archive(layer(*FILES), layer(("b", b"", {}))), EPOCH)
    assert differences(two, two[:1]) == ["2 layers and 1"]
    ordered = layers_of(archive(layer(*reversed(FILES))), EPOCH)
    assert differences(two[:1], ordered) == ["layer 1: the order of its files"]


@pytest.mark.parametrize("broken", [[], [b"not a tar" * 100], "cut", "no manifest"])
def test_what_is_no_archive_is_an_error(broken):
    whole = archive(layer(*FILES))
    if broken == "cut":
        broken = whole[:5]
    elif broken == "no manifest":
        raw = io.BytesIO()
        tarfile.open(fileobj=raw, mode="w").close()
        broken = [raw.getvalue()]
    with pytest.raises(FlagbenchError, match="archive of an image cannot be read"):
        layers_of(broken, EPOCH)
