"""The bundle of a reproduction: no byte of it changes unnoticed, and nothing is written over."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from bundles import archive as packed
from bundles import member
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.reproduce import archive, contents
from flagbench.reproduce.bundle import check_target
from flagbench.reproduce.manifest import MANIFEST, SUMS, entries_of, sums_of
from reproductions import Files, flip, is_damaged, unpacked, written
from unit.host.conftest import Flagbench

STEP = 97


def test_equal_files_make_equal_bytes_that_other_tools_unpack(tmp_path: Path, files: Files) -> None:
    digests = {written(tmp_path / name, files) for name in ("a.tar.gz", "b.tgz", "folder")}
    assert len(digests) == 1
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tgz").read_bytes()
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        names = tar.getnames()
        assert {info.mtime for info in tar} == {0}
    assert names == sorted([*files, MANIFEST, SUMS])
    assert hashlib.sha256((tmp_path / "folder" / MANIFEST).read_bytes()).hexdigest() in digests


def test_a_changed_byte_of_the_file_is_found_wherever_it_is(file: Path) -> None:
    assert not is_damaged(file)
    size = file.stat().st_size
    for place in {*range(60), *range(0, size, STEP), *range(size - 12, size)}:
        undo = flip(file, place)
        assert is_damaged(file), place
        undo()
    assert not is_damaged(file)


def test_a_changed_byte_of_any_file_is_found(folder: Path) -> None:
    assert not is_damaged(folder)
    for name, path in archive.files_below(folder):
        size = path.stat().st_size
        for place in {*range(0, size, STEP), size - 1}:
            undo = flip(path, place)
            assert is_damaged(folder), (name, place)
            undo()
    assert not is_damaged(folder)


@pytest.mark.parametrize(
    "damage", ["more", "less", "longer", "empty", "link", "pipe", "no manifest", "two signatures"]
)
def test_no_file_more_less_or_other(folder: Path, damage: str) -> None:
    log = folder / contents.LOG
    if damage == "more":
        (folder / "records" / "x.json").write_bytes(b"")
    elif damage == "longer":
        log.write_bytes(log.read_bytes() + b" ")
    elif damage == "empty":
        log.write_bytes(b"")
    elif damage == "two signatures":
        for name in ("minisig", "sigstore.json"):
            (folder / f"{MANIFEST}.{name}").write_bytes(b"x")
        (folder / SUMS).write_bytes(sums_of(folder))
    else:
        (folder / MANIFEST if damage == "no manifest" else log).unlink()
        if damage == "link":
            log.symlink_to(folder / contents.CLAIM)
        elif damage == "pipe":
            os.mkfifo(log)
    assert is_damaged(folder)


def test_it_may_be_packed_again_but_not_changed(tmp_path: Path, folder: Path, flagbench: Flagbench) -> None:
    again = tmp_path / "again.tar.gz"
    for changed in (None, contents.LOG, MANIFEST, SUMS):
        if changed is not None:
            flip(folder / changed, 5)
        with tarfile.open(again, "w:gz") as tar:
            tar.add(folder, arcname=".") if changed == "x" else [
                tar.add(path, arcname=name) for name, path in archive.files_below(folder)
            ]
        assert flagbench("bundle verify", str(again)).code == (0 if changed is None else 3)


def test_something_after_the_end_is_found_in_a_repacked_one_too(tmp_path: Path, file: Path) -> None:
    plain = packed([member(name, path.read_bytes()) for name, path in unpacked(file, tmp_path / "u")])
    (tmp_path / "sound.tar.gz").write_bytes(plain)
    assert not is_damaged(tmp_path / "sound.tar.gz")
    for more in (b"\0", gzip.compress(b""), b"x"):
        (tmp_path / "more.tar.gz").write_bytes(plain + more)
        assert is_damaged(tmp_path / "more.tar.gz")


def test_a_manifest_that_names_files_twice_or_outside_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    for edit in (
        {"files": [*manifest["files"], manifest["files"][0]]},
        {"files": [*manifest["files"], {**manifest["files"][0], "path": "../x"}]},
        {"schema": "reproduction/v2"},
    ):
        (folder / MANIFEST).write_text(json.dumps({**manifest, **edit}))
        (folder / SUMS).write_bytes(sums_of(folder))
        assert is_damaged(folder)


def test_a_copied_folder_is_the_same_bundle(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert entries_of(folder) == entries_of(tmp_path / "copy")
    assert not is_damaged(tmp_path / "copy")
    assert io.BytesIO(sums_of(folder)).readline().split()[1] == MANIFEST.encode()


def test_nothing_is_written_over_and_nothing_is_left_behind(tmp_path: Path, files: Files) -> None:
    taken, full = tmp_path / "taken.tar.gz", tmp_path / "full"
    taken.write_bytes(b"mine")
    full.mkdir()
    (full / "mine").touch()
    for target in (taken, full, taken / "below", tmp_path / "x\0.tgz", tmp_path / ("x" * 300)):
        with pytest.raises(FlagbenchError) as error:
            check_target(target)
        assert error.value.code == ExitCode.USAGE
    for target in (taken, full):
        with pytest.raises(FlagbenchError) as error:
            written(target, files)
        assert error.value.code == ExitCode.NOT_STORED
    assert (sorted(os.listdir(tmp_path)), taken.read_bytes()) == (["full", "taken.tar.gz"], b"mine")


def test_a_full_disk_leaves_no_bundle(small_disk: Path, files: Files) -> None:
    with pytest.raises(FlagbenchError) as error:
        written(small_disk / "b.tar.gz", files)
    assert (error.value.code, os.listdir(small_disk)) == (ExitCode.NOT_STORED, [])
