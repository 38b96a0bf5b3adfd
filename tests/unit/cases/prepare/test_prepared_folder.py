"""Prepared folders: they appear whole or not at all, and a run refuses every one that is not what was prepared."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.prepare import disk, prepared_folder
from flagbench_cases.shared.errors import CaseError, DataError, UsageError
from flagbench_core.exit_codes import ExitCode
from running import ENTRYPOINTS
from unit.cases.refusal import refusal, refuses

pytestmark = pytest.mark.image


def prepare(out: Path, content: bytes = b"abc", kind: str = "data", **options: Any) -> Path:
    """OUT/KIND with a file of that content."""
    with prepared_folder.writing(str(out), "glm", kind, **options) as writer:
        Path(writer.path("a.bin")).write_bytes(content)
        writer.format("letters/v1")
        writer.fact(letters=len(content))
    return out / kind


def write(out: Path, action: Callable[[prepared_folder.Writer], Any]) -> None:
    """A preparation in which something happens."""
    with prepared_folder.writing(str(out), "glm", "data") as writer:
        Path(writer.path("a.bin")).write_bytes(b"abc")
        action(writer)


def opened(folder: Path, **options: Any) -> prepared_folder.PreparedFolder:
    return prepared_folder.open_folder(str(folder), "glm", "data", ("letters/v1",), **options)


def content_of(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# What is written


def test_what_was_written_is_what_is_opened(tmp_path: Path) -> None:
    source = tmp_path / "súrce.json"
    source.write_bytes(b"{}")
    with prepared_folder.writing(str(tmp_path / "out"), "glm", "data", licence="as it comes") as writer:
        Path(writer.path("a.bin")).write_bytes(b"abc")
        Path(writer.path("b.bin")).write_bytes(bytes(1000))
        writer.source(str(source))
        writer.format("letters/v1")
        writer.fact(letters=3)
        writer.fact(names=["a"])
        assert content_of(tmp_path / "out") == sorted([".data.lock", Path(writer.folder).name])
    assert content_of(tmp_path / "out") == ["data"]
    for folder in (tmp_path / "out" / "data", tmp_path / "out"):
        made = opened(folder)
        assert (made.format, made.facts) == ("letters/v1", {"letters": 3, "names": ["a"]})
        assert Path(made.path("a.bin")).read_bytes() == b"abc"
        assert made.files["b.bin"]["bytes"] == 1000
        assert made.files["a.bin"]["sha256"] == hashlib.sha256(b"abc").hexdigest()
        assert made.sources == [{"name": "súrce.json", "bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}]
        assert made.licence == "as it comes"
    assert "c.bin" in refusal(made.path, "c.bin")
    assert set(json.loads((tmp_path / "out" / "data" / "prepared.json").read_text())) == {
        *("schema", "case", "kind", "format", "files", "facts", "sources", "licence", "created_at", "flagbench")
    }


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    one, same, other = (opened(prepare(tmp_path / name, text)) for name, text in zip("xyz", (b"1", b"1", b"2")))
    assert one.digest == same.digest != other.digest


def test_the_umask_alone_says_who_may_read(tmp_path: Path) -> None:
    """Some libraries make files that only their owner may read, and a copy has the mode of what was copied."""
    before = os.umask(0o027)
    try:
        with prepared_folder.writing(str(tmp_path), "glm", "data") as writer:
            for name, mode in (("a.bin", 0o600), ("b.bin", 0o444), ("c.bin", 0o666)):
                Path(writer.path(name)).write_bytes(b"abc")
                Path(writer.path(name)).chmod(mode)
            writer.format("letters/v1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "data").iterdir()} == {0o640}


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "prepared.json", "a\nb", "x" * 300])
def test_a_file_lies_in_the_folder_itself(tmp_path: Path, name: str) -> None:
    with refuses(ValueError, repr(name)):
        write(tmp_path / "out", lambda writer: writer.path(name))
    assert content_of(tmp_path / "out") == []


# The place


def test_what_is_prepared_is_replaced_on_request_alone(tmp_path: Path) -> None:
    prepare(tmp_path, b"old")
    with refuses(UsageError, tmp_path / "data") as caught:
        prepare(tmp_path, b"new")
    assert "--force" in caught.value.remedy
    assert opened(tmp_path).facts == {"letters": 3}
    prepare(tmp_path, b"newer", force=True)
    assert opened(tmp_path).facts == {"letters": 5}
    assert content_of(tmp_path) == ["data"]


def test_a_folder_that_was_moved_aside_by_the_dead_comes_back(tmp_path: Path) -> None:
    prepare(tmp_path, b"old").rename(tmp_path / ".data.replaced")
    (tmp_path / ".data.preparing").mkdir()
    with refuses(UsageError, tmp_path / "data"):
        prepare(tmp_path, b"new")
    assert (opened(tmp_path).facts, content_of(tmp_path)) == ({"letters": 3}, ["data"])


def test_what_prepare_did_not_write_is_never_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "data" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    for force in (False, True):
        with refuses(UsageError, "mine.txt"):
            prepare(tmp_path, force=force)
    mine.unlink()
    prepare(tmp_path)  # an empty folder is no obstacle
    mine.write_text("mine")
    with refuses(UsageError, "mine.txt"):
        prepare(tmp_path, force=True)
    with refuses(UsageError, "mine.txt"), prepared_folder.writing(str(tmp_path / "x"), "glm", "data") as writer:
        Path(writer.path("a.bin")).write_bytes(b"abc")
        writer.format("letters/v1")
        mine.parent.rename(tmp_path / "x" / "data")  # meanwhile
    assert (tmp_path / "x" / "data" / "mine.txt").read_text() == "mine"


def test_of_many_at_once_exactly_one_wins(tmp_path: Path) -> None:
    """Locks are of open files, so threads contend for them as processes do."""
    barrier = threading.Barrier(8)

    def one(number: int) -> int | None:
        barrier.wait()
        try:
            prepare(tmp_path, b"x" * number)
        except UsageError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(one, range(1, 9)) if number]
    assert len(won) == 1
    assert opened(tmp_path).facts == {"letters": won[0]}
    assert content_of(tmp_path) == ["data"]


KILLED = """
import os, signal, sys
from flagbench_cases.prepare import prepared_folder
with prepared_folder.writing(sys.argv[1], "glm", "data", force=True) as writer:
    open(writer.path("a.bin"), "wb").write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers_of_a_killed_process(tmp_path: Path) -> None:
    prepare(tmp_path, b"old")
    environment = dict(os.environ, PYTHONPATH=ENTRYPOINTS)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False)
    assert ended.returncode == -9
    assert content_of(tmp_path) == [".data.lock", ".data.preparing", "data"]
    assert opened(tmp_path).facts == {"letters": 3}
    prepare(tmp_path, b"newer", force=True)
    assert (opened(tmp_path).facts, content_of(tmp_path)) == ({"letters": 5}, ["data"])


# The disk


def test_a_full_disk_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as full, refuses(CaseError, tmp_path, "full", code=ExitCode.NOT_STORED):
        write(tmp_path / "out", lambda writer: full.write(b"x"))
    assert content_of(tmp_path / "out") == []
    with refuses(CaseError, "1000000.0 GB", code=ExitCode.NOT_STORED):
        write(tmp_path / "out", lambda writer: writer.need(10**15))


def test_libraries_say_a_full_disk_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk.is_full(RuntimeError("I/O error: No space left on device (os error 28)"), str(tmp_path))
    assert not disk.is_full(RuntimeError("bad header"), str(tmp_path))
    assert not disk.is_full(FileNotFoundError(errno.ENOENT, "no"), str(tmp_path))
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 4096)
    assert disk.is_full(OSError("1000 requested and 12 written"), str(tmp_path))


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/out")):
        with refuses(UsageError, out):
            prepare(out)


# What is opened


def change(folder: Path, **changes: Any) -> None:
    index = json.loads((folder / "prepared.json").read_text())
    (folder / "prepared.json").write_text(json.dumps({**index, **changes}))


SOME = {"bytes": 3, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema": "prepared/v2"}, "prepared/v1"),
        ({"case": "other"}, "case 'other'"),
        ({"kind": "weights"}, "kind 'weights'"),
        ({"format": "letters/v2"}, "letters/v2"),
        ({"files": {}}, "files"),
        ({"files": {"../../a.bin": SOME}}, "../../a.bin"),
        ({"files": {"a.bin": {"bytes": "3", "sha256": ""}}}, "a.bin"),
        ({"files": {"a.bin": {"bytes": 4, "sha256": "0" * 64}}}, "3 bytes"),
        ({"files": {"a.bin": SOME}}, "checksum"),
        ({"files": {"b.bin": SOME}}, "b.bin"),
        ({"sources": [SOME]}, "sources"),
    ],
)
def test_a_folder_that_is_not_what_it_says_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    folder = prepare(tmp_path)
    change(folder, **changes)
    with refuses(DataError, folder, named):
        opened(folder)


@pytest.mark.parametrize("content", [b"[]", b"\xff", b"[" * 100_000])
def test_an_invalid_index_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = prepare(tmp_path)
    (folder / "prepared.json").write_bytes(content)
    assert "prepared.json" in refusal(opened, folder)
    for other in (str(tmp_path / "none"), str(tmp_path.parent), str(folder / "a.bin"), ""):
        assert "prepared.json" in refusal(prepared_folder.open_folder, other, "glm", "data")


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    folder = prepare(tmp_path)
    (folder / "a.bin").unlink()
    os.mkfifo(folder / "a.bin")
    assert "not a file" in refusal(opened, folder)
    assert "not a file" in refusal(write, tmp_path / "out", lambda writer: writer.source(str(folder / "a.bin")))


def test_sums_of_large_files_are_left_to_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare(tmp_path)
    (folder / "a.bin").write_bytes(b"xyz")
    assert "its checksum" in refusal(opened, folder)
    assert opened(folder, verify=prepared_folder.Verification.SIZES).files
    monkeypatch.setattr(prepared_folder, "MAX_CHECKSUM_BYTES_IN_A_RUN", 2)
    assert opened(folder).files
    assert "its checksum" in refusal(opened, folder, verify=prepared_folder.Verification.CHECKSUMS)
