"""Layers without their times: what makes two images the same, and what is still told apart."""

import gzip
import io
import json
import tarfile
from unittest.mock import Mock

import pytest

from flagbench.cli import layers as layers_command
from flagbench.engines.base import ImageInfo
from flagbench.engines.reproducible import differences, layers_of
from flagbench.errors import FlagbenchError

EPOCH = 1_577_836_800
NOW = EPOCH + 200_000_000


def layer(*members, format=tarfile.PAX_FORMAT):
    """A tar of (name, content or None for a folder, other fields of its header)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, content, fields in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content or b""), NOW
            for key, value in {"type": tarfile.DIRTYPE if content is None else tarfile.REGTYPE, **fields}.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content or b""))
    return out.getvalue()


def archive(*layers, modern=False, links=()):
    """What `docker save` writes: before 25 a folder a layer, from 25 on blobs."""
    names = [f"blobs/sha256/{n}" if modern else f"{n}/layer.tar" for n in range(len(layers))]
    members = [(name, content, {}) for name, content in zip(names, layers)]
    members += [(name, b"", {"type": tarfile.SYMTYPE, "linkname": target}) for name, target in links]
    manifest = [{"Config": "config.json", "Layers": [*names, *(name for name, _ in links)]}]
    members += [("config.json", b'{"os": "linux"}', {}), ("manifest.json", json.dumps(manifest).encode(), {})]
    raw = layer(*members)
    return [raw[at : at + 700] for at in range(0, len(raw), 700)]


FILES = (("usr/", None, {"mode": 0o755}), ("usr/tool", b"x" * 5000, {"mode": 0o755}))


def read(*layers, **how):
    """The layers of an archive of these."""
    return layers_of(archive(*layers, **how), EPOCH)


@pytest.mark.parametrize("fields", [{"mtime": NOW + 99.5}, {"pax_headers": {"atime": "1.5", "LIBARCHIVE.x": "3"}}])
def test_later_times_and_headers_that_carry_nothing_make_no_difference(fields):
    noted = [(name, content, {**own, **fields}) for name, content, own in FILES]
    one, other = read(layer(*FILES)), read(layer(*noted))
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
    assert differences(read(layer(*FILES)), read(layer(FILES[0], changed))) == ["layer 1: usr/tool"]


def test_old_new_and_packed_archives_read_the_same():
    layers = [layer(*FILES), layer(("b", b"", {}))]
    read_back = [read(*layers), read(*layers, modern=True), read(*map(gzip.compress, layers), modern=True)]
    assert len({tuple(each.digest for each in own) for own in read_back}) == 1


def test_a_layer_that_an_image_has_twice():
    first, again = read(layer(*FILES), links=[("9/layer.tar", "../0/layer.tar")])
    assert first.digest == again.digest


def test_long_and_foreign_names_are_kept():
    name = "usr/" + "ä" * 150 + "/tool"
    (one,) = read(layer((name, b"x", {}), format=tarfile.GNU_FORMAT))
    assert list(one.files) == [name]


def test_an_empty_layer_is_a_layer():
    assert len(read(layer())) == 1


def test_a_missing_layer_and_another_order_are_told():
    two = read(layer(*FILES), layer(("b", b"", {})))
    assert differences(two, two[:1]) == ["2 layers and 1"]
    assert differences(two[:1], read(layer(*reversed(FILES)))) == ["layer 1: the order of its files"]


@pytest.mark.parametrize(
    "broken", [[], [b"not a tar" * 100], archive(layer(*FILES))[:5], [layer()]], ids=["none", "text", "cut", "empty"]
)
def test_what_is_no_archive_is_an_error(broken):
    with pytest.raises(FlagbenchError):
        layers_of(broken, EPOCH)


@pytest.mark.parametrize("place", [slice(4000, 4001), slice(-6, -5), slice(3600, None), slice(-8, None)])
def test_a_damaged_or_cut_packed_layer_is_an_error(place):
    """A bit of a file, one of the checksum, the end with the last files, the end alone."""
    packed = bytearray(gzip.compress(layer(*FILES), compresslevel=0))
    packed[place] = bytes([packed[place][0] ^ 1]) if place.stop in (4001, -5) else b""
    with pytest.raises(FlagbenchError):
        read(bytes(packed), modern=True)


@pytest.fixture
def run(monkeypatch, flagbench):
    """`run(words, *images)`: what `flagbench layers` prints of images: name, layers, the label of the epoch."""

    def invoke(words, *images, code=0):
        described = {
            name: ImageInfo(f"sha256:{name}", {} if label is None else {"dev.flagbench.epoch": label}, 1, (), {}, ())
            for name, _, label in images
        }
        # By id: a name may be many.
        saved = {f"sha256:{name}": archive(*layers) for name, layers, _ in images}
        engine = Mock(inspect=described.get, save=saved.__getitem__)
        monkeypatch.setattr(layers_command, "open_engine", lambda: engine)
        ended = flagbench(f"layers {words}")
        assert ended.code == code
        engine.close.assert_called_once_with()
        return ended.out or ended.err

    return invoke


def made_at(time, content=b"x" * 5000):
    return [layer(("usr/tool", content, {"mtime": time})), layer(("b", b"", {"mtime": EPOCH - 5}))]


def test_the_command_prints_a_digest_for_every_layer(run):
    once, again = (run("one", ("one", made_at(time), str(EPOCH))) for time in (NOW, NOW + 77))
    assert once == again
    assert once.splitlines() == [f"layer {n}: {each.digest}" for n, each in enumerate(read(*made_at(NOW)), 1)]


def test_the_command_says_that_two_builds_are_the_same(run):
    said = run("one two", ("one", made_at(NOW), str(EPOCH)), ("two", made_at(NOW + 77), str(EPOCH)))
    assert said == f"the same: 2 layers, times set to {EPOCH} where they are later\n"


def test_the_command_says_which_file_of_which_layer_differs(run):
    images = ("one", made_at(NOW), str(EPOCH)), ("two", made_at(NOW, b"y"), str(EPOCH))
    assert run("one two", *images, code=2) == "layer 1: usr/tool\n"
    assert json.loads(run("one two --json", *images, code=2)) == {
        "epoch": EPOCH,
        "images": [
            {"image": name, "image_id": f"sha256:{name}", "layers": [each.digest for each in read(*layers)]}
            for name, layers, _ in images
        ],
        "differs": ["layer 1: usr/tool"],
    }


@pytest.mark.parametrize(
    ("labels", "words", "epoch"),
    [
        ((str(EPOCH + 9), str(EPOCH)), "", EPOCH),
        ((None, str(EPOCH)), "", EPOCH),
        ((None, "soon"), "", 315_532_800),
        (("-5", "²"), "", 315_532_800),
        ((str(EPOCH), str(EPOCH)), "--epoch 7", 7),
    ],
)
def test_the_epoch_is_the_options_or_the_earliest_of_a_label(run, labels, words, epoch):
    images = [(name, made_at(NOW), label) for name, label in zip(("one", "two"), labels)]
    assert json.loads(run(f"one two --json {words}", *images))["epoch"] == epoch


def test_an_image_that_is_not_there_is_named(run):
    said = run("one gone", ("one", made_at(NOW), None), code=2)
    assert "gone" in said
    assert "flagbench build" in said
