"""Layers without their times: what makes two images the same, and what is still told apart."""

import gzip
import io
import json
import tarfile

import pytest
import typer
from typer.testing import CliRunner

from flagbench.cli import layers as layers_command
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
    with pytest.raises(FlagbenchError):
        layers_of(broken, EPOCH)


class Engine:
    """Has the images it is given: name to (layers, value of the label of the epoch)."""

    def __init__(self, images):
        self.images = images
        self.saved = []
        self.closed = False

    def inspect(self, ref):
        if ref not in self.images:
            return None
        label = self.images[ref][1]
        labels = {} if label is None else {"dev.flagbench.epoch": label}
        return ImageInfo(f"sha256:{ref}", labels, size=1, layers=(), env={}, repo_digests=())

    def save(self, ref):
        self.saved.append(ref)
        yield from archive(*self.images[ref.removeprefix("sha256:")][0])

    def close(self):
        self.closed = True


@pytest.fixture
def run(monkeypatch):
    """Runs `flagbench layers` against images; returns what it printed, or raises what is told to a person."""

    def invoke(images, *words, code=0):
        engine = Engine(images)
        monkeypatch.setattr(layers_command, "open_engine", lambda: engine)
        app = typer.Typer()
        app.command()(layers_command.command)
        result = CliRunner().invoke(app, words)
        assert engine.closed
        if isinstance(result.exception, FlagbenchError):
            raise result.exception
        assert result.exit_code == code, result.output
        assert engine.saved == [f"sha256:{name}" for name in images if name in words], "by id: a name may be many"
        return result.output

    return invoke


def made_at(time, content=b"x" * 5000):
    return [layer(("usr/tool", content, {"mtime": time})), layer(("b", b"", {"mtime": EPOCH - 5}))]


def test_the_command_prints_a_digest_for_every_layer(run):
    once, again = (run({"one": (made_at(time), str(EPOCH))}, "one") for time in (NOW, NOW + 77))
    assert once == again
    expected = layers_of(archive(*made_at(NOW)), EPOCH)
    assert once.splitlines() == [f"layer {n}: {each.digest}" for n, each in enumerate(expected, 1)]


def test_the_command_says_that_two_builds_are_the_same(run):
    images = {"one": (made_at(NOW), str(EPOCH)), "two": (made_at(NOW + 77), str(EPOCH))}
    assert run(images, "one", "two") == f"the same: 2 layers, times set to {EPOCH} where they are later\n"


def test_the_command_says_which_file_of_which_layer_differs(run):
    images = {"one": (made_at(NOW), str(EPOCH)), "two": (made_at(NOW, b"y"), str(EPOCH))}
    assert run(images, "one", "two", code=2) == "layer 1: usr/tool\n"
    told = json.loads(run(images, "one", "two", "--json", code=2))
    assert told["epoch"] == EPOCH
    assert [(each["image"], each["image_id"]) for each in told["images"]] == [
        ("one", "sha256:one"),
        ("two", "sha256:two"),
    ]
    assert told["images"][0]["layers"][1] == told["images"][1]["layers"][1]
    assert told["images"][0]["layers"][0] != told["images"][1]["layers"][0]
    assert told["differs"] == ["layer 1: usr/tool"]


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
    with pytest.raises(FlagbenchError) as caught:
        run({"one": (made_at(NOW), None)}, "one", "gone")
    assert caught.value.code == 2
    assert "flagbench build" in caught.value.remedy
