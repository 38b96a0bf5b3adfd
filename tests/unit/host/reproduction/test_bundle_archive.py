"""Archives that are no bundle: nothing in a hostile one leaves its folder or fills the disk."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from pathlib import Path

import pytest

from bundles import archive as packed
from bundles import member
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.reproduce import archive
from flagbench.reproduce.bundle import opened
from reproductions import is_damaged

HOSTILE = {
    "above": [member("../above")],
    "absolute": [member("/tmp/absolute")],
    "link": [member("a", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
    "link, then through it": [member("a", type=tarfile.SYMTYPE, linkname="/tmp"), member("a/b")],
    "hard link": [member("a"), member("b", type=tarfile.LNKTYPE, linkname="a")],
    "device": [member("a", type=tarfile.CHRTYPE)],
    "pipe": [member("a", type=tarfile.FIFOTYPE)],
    "twice": [member("a", b"1"), member("a", b"2")],
    "file and folder": [member("a", b"1"), member("a/b", b"2")],
    "escape": [member("a\x1b[2J")],
    "nothing": [],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused(tmp_path: Path, name: str) -> None:
    path, inside = tmp_path / "hostile.tar.gz", tmp_path / "inside"
    path.write_bytes(packed(HOSTILE[name]))
    assert is_damaged(path)
    inside.mkdir()
    try:
        archive.unpack(path, inside)
    except archive.BundleError:
        pass
    assert sorted(os.listdir(tmp_path)) == ["hostile.tar.gz", "inside"]
    assert all(stat.S_ISREG(os.lstat(found).st_mode) for _, found in archive.files_below(inside))


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "ALWAYS", 2**16)
    monkeypatch.setattr(archive, "MOST_FILES", 50)
    path = tmp_path / "bomb.tar.gz"
    for members in ([member("zeros", bytes(2**23))], [member(f"f{number}") for number in range(51)]):
        path.write_bytes(packed(members))
        inside = tmp_path / f"inside{len(members)}"
        inside.mkdir()
        with pytest.raises(archive.BundleError, match="more than"):
            archive.unpack(path, inside)
        assert sum(found.stat().st_size for _, found in archive.files_below(inside)) < 2**23


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", gzip.compress(b"no tar"), archive._START, archive._START + bytes(32)],
    ids=["empty", "zip", "no tar", "header", "cut off"],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tar.gz").write_bytes(content)
    assert is_damaged(tmp_path / "b.tar.gz")


@pytest.mark.parametrize("name", ["missing.tar.gz", "a/b.tar.gz", "nul\0.tar.gz", "x" * 300])
def test_what_is_not_there_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(FlagbenchError) as error, opened(tmp_path / name):
        pass
    assert error.value.code == ExitCode.DATA
