"""Bundles are read without trust: no byte changes unnoticed, nothing leaves the folder or fills memory or disk."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from bundles import FILES, archive, bundle, member, sums
from flagbench.records import bundle_archive as archives
from flagbench.records.bundle_archive import BundleError, Origin, pack, read_origin, unpacked

SOUND = [member(name, content) for name, content in FILES.items()]
NAMED = sums(FILES)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "b.tar.gz"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder below which bundles are unpacked."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_equal_files_make_equal_bytes_that_other_tools_read(tmp_path: Path, file: Path) -> None:
    pack(FILES, file)
    (tmp_path / "log").write_bytes(FILES["log/node.log"])
    pack({**FILES, "log/node.log": tmp_path / "log"}, tmp_path / "again.tar.gz")
    assert file.read_bytes() == (tmp_path / "again.tar.gz").read_bytes()
    with pytest.raises(FileExistsError):
        pack(FILES, file)
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "xzf", file, "-C", tmp_path / "unpacked"], check=True)
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / "unpacked", check=True)


def test_a_sound_bundle(file: Path, temporary: Path) -> None:
    """Also one that another tool packed again, with folders in it."""
    for content in (bundle(), archive([member("log", type=tarfile.DIRTYPE), *SOUND, NAMED])):
        file.write_bytes(content)
        with unpacked(file) as files:
            assert {name: files[name].read_bytes() for name in FILES} == FILES
        assert os.listdir(temporary) == []


def test_no_byte_changes_a_file_unnoticed(file: Path) -> None:
    pack(FILES, file)
    sound = file.read_bytes()
    damaged = 0
    for place in range(len(sound)):
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :])
        try:
            with unpacked(file) as files:
                assert {name: files[name].read_bytes() for name in FILES} == FILES
        except BundleError:
            damaged += 1
    assert damaged > 0.9 * len(sound)


def test_what_a_nodes_bundle_is_of(file: Path) -> None:
    file.write_bytes(bundle(record_id="id", run_id="run-1", node=3))
    with unpacked(file) as files:
        assert read_origin(files) == Origin("id", "run-1", 3)
    for content in (bundle(record_id="id", run_id="run-1"), archive([*SOUND, NAMED])):
        file.write_bytes(content)
        with unpacked(file) as files, pytest.raises(BundleError, match=r"MANIFEST\.json"):
            read_origin(files)


def sparse(count: int) -> tuple[tarfile.TarInfo, bytes]:
    """A sparse file with a map of so many numbers."""
    names = {"major": "1", "minor": "0", "name": "a", "realsize": "1"}
    content = b"%d\n" % (count // 2) + b"1\n" * count
    return member("a", content, pax_headers={f"GNU.sparse.{name}": names[name] for name in names})


HOSTILE = {
    "empty": b"",
    "no gzip": b"#!/bin/sh\n" * 100,
    "no tar": gzip.compress(b"not a tar" * 1000),
    "cut off": bundle()[:-20],
    "a sum of gzip": bundle()[:-5] + b"\xff" + bundle()[-4:],
    "something behind it": bundle() + b"more",
    "something behind its archive": gzip.compress(gzip.decompress(bundle()) + b"hidden" * 20_000),
    "no sums": archive(SOUND),
    "deep json": archive([*SOUND, NAMED, member("MANIFEST.json", b'{"files": ' + b"[" * 100_000)]),
    "huge sums": archive([*SOUND, member("SHA256SUMS", bytes(2**22 + 1))]),
    "a file too many": archive([*SOUND, member("more", b"x"), NAMED]),
    "a file too few": archive([*SOUND[1:], NAMED]),
    "other bytes": archive([member(SOUND[0][0].name, b"!" + SOUND[0][1][1:]), *SOUND[1:], NAMED]),
    "twice the same": archive([*SOUND, SOUND[0], NAMED]),
    "a file and a folder": archive([member("a", b"1"), member("a/b", b"2")]),
    **{
        f"the name {name!r}": archive([member(name, b"x"), sums({name: b"x"})])
        for name in ("../up", "/etc/passwd", "a/../b", "a\x1b[2J", "a\\b")
    },
    "a link": archive([member("a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), *SOUND, NAMED]),
    "a hard link": archive([member("a"), member("b", type=tarfile.LNKTYPE, linkname="a"), *SOUND, NAMED]),
    "a pipe": archive([member("a", type=tarfile.FIFOTYPE), *SOUND, NAMED]),
    "a sparse file": archive([sparse(4), *SOUND, NAMED]),
    "a length that is not there": archive([member("a", pax_headers={"size": str(2**60)}), *SOUND, NAMED]),
    "a negative length": archive([member("a", pax_headers={"size": "-512"}), *SOUND, NAMED]),
    "a huge header": archive([member("a", pax_headers={"comment": "x" * 2**20}), *SOUND, NAMED]),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_what_is_refused(file: Path, temporary: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(BundleError) as caught, unpacked(file):
        pass
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert (os.listdir(temporary), sorted(os.listdir(file.parent))) == ([], ["b.tar.gz", "temporary"])


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(BundleError), unpacked(path):
            pass


def test_a_bomb_is_refused_before_it_has_gone_off(
    file: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED_BYTES", 2**24)
    monkeypatch.setattr(archives, "MOST_FILES", 50)
    many = archive([member(f"f{number}") for number in range(51)])
    bomb = archive([member("zeros", bytes(2**25))])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content in (many, bomb):
        file.write_bytes(content)
        with pytest.raises(BundleError, match="unpacks to more"), unpacked(file):
            pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024, "it was not held in memory"


def headers(count: int) -> bytes:
    """Members, each with a header of its own as large as is taken."""
    comment = {"comment": "\U0001f600" * 4000}
    return archive([member(f"folder-{n}", type=tarfile.DIRTYPE, pax_headers=comment) for n in range(count)])


@pytest.mark.parametrize("content", [archive([sparse(500_000)]), headers(500)], ids=["map", "headers"])
def test_memory_does_not_grow_with_what_a_header_says(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(BundleError), unpacked(file):
            pass
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
