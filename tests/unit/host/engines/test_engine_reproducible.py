"""Layers without their times: what makes two images the same, and what is still told apart."""

import gzip
import io
import json
import tarfile

import pytest

from flagbench.cli import layers as layers_command
from flagbench.cli import main
from flagbench.engines.base import ImageInfo
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
    first, again = read(layer(*FILES), links={"9/layer.tar": "../0/layer.tar"})
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


class Engine:
    """Has the images it is given: name to (layers, value of the label of the epoch)."""

    def __init__(self, images):
        self.images = images
        self.closed = False

    def inspect(self, ref):
        if ref not in self.images:
            return None
        label = self.images[ref][1]
        labels = {} if label is None else {"dev.flagbench.epoch": label}
        return ImageInfo(f"sha256:{ref}", labels, size=1, layers=(), env={}, repo_digests=())

    def save(self, ref):
        assert ref.startswith("sha256:"), "by id: a name may be many"
        yield from archive(*self.images[ref.removeprefix("sha256:")][0])

    def close(self):
        self.closed = True


@pytest.fixture
def run(monkeypatch, capsys):
    """`run(images, *words, code=0)`: what `flagbench layers` prints of images."""

    def invoke(images, *words, code=0):
        engine = Engine(images)
        monkeypatch.setattr(layers_command, "open_engine", lambda: engine)
        assert main.run(["layers", *words]) == code
        assert engine.closed
        printed = capsys.readouterr()
        return printed.out or printed.err

    return invoke


def made_at(time, content=b"x" * 5000):
    return [layer(("usr/tool", content, {"mtime": time})), layer(("b", b"", {"mtime": EPOCH - 5}))]


def test_the_command_prints_a_digest_for_every_layer(run):
    once, again = (run({"one": (made_at(time), str(EPOCH))}, "one") for time in (NOW, NOW + 77))
    assert once == again
    assert once.splitlines() == [f"layer {n}: {each.digest}" for n, each in enumerate(read(*made_at(NOW)), 1)]


def test_the_command_says_that_two_builds_are_the_same(run):
    images = {"one": (made_at(NOW), str(EPOCH)), "two": (made_at(NOW + 77), str(EPOCH))}
    assert run(images, "one", "two") == f"the same: 2 layers, times set to {EPOCH} where they are later\n"


def test_the_command_says_which_file_of_which_layer_differs(run):
    images = {"one": (made_at(NOW), str(EPOCH)), "two": (made_at(NOW, b"y"), str(EPOCH))}
    assert run(images, "one", "two", code=2) == "layer 1: usr/tool\n"
    told = json.loads(run(images, "one", "two", "--json", code=2))
    layers = [[each.digest for each in read(*images[name][0])] for name in images]
    assert told == {
        "epoch": EPOCH,
        "images": [
            {"image": "one", "image_id": "sha256:one", "layers": layers[0]},
            {"image": "two", "image_id": "sha256:two", "layers": layers[1]},
        ],
        "differs": ["layer 1: usr/tool"],
    }


@pytest.mark.parametrize(
    ("labels", "words", "epoch"),
    [
        ((str(EPOCH + 9), str(EPOCH)), [], EPOCH),
        ((None, str(EPOCH)), [], EPOCH),
        ((None, "soon"), [], 315_532_800),
        (("-5", "²"), [], 315_532_800),
        ((str(EPOCH), str(EPOCH)), ["--epoch", "7"], 7),
    ],
)
def test_the_epoch_is_the_options_or_the_earliest_of_a_label(run, labels, words, epoch):
    images = {name: (made_at(NOW), label) for name, label in zip(("one", "two"), labels)}
    assert json.loads(run(images, "one", "two", "--json", *words))["epoch"] == epoch


def test_an_image_that_is_not_there_is_named(run):
    said = run({"one": (made_at(NOW), None)}, "one", "gone", code=2)
    assert "gone" in said
    assert "flagbench build" in said
