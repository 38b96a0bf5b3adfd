"""Prepared folders: they appear whole or not at all, and a run refuses every one that is not what was prepared."""

from __future__ import annotations

import contextlib
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

from flagbench_cases.node import request
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare import writer as writing_module
from flagbench_cases.shared.errors import CaseError, DataError, ExitCode, UsageError
from unit.cases.refusal import refusal, refuses

pytestmark = pytest.mark.image

ENTRYPOINTS = Path(__file__).parents[4] / "entrypoints"


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


def test_the_index_says_what_the_contract_says(tmp_path: Path) -> None:
    index = json.loads((prepare(tmp_path) / "prepared.json").read_text())
    assert index["schema"] == "prepared/v1"
    assert set(index) == {
        *("schema", "case", "kind", "format", "files", "facts", "sources", "licence", "created_at", "flagbench")
    }


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    one, same, other = (opened(prepare(tmp_path / name, text)) for name, text in zip("xyz", (b"1", b"1", b"2")))
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize(("umask", "folders", "files"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600)])
def test_the_umask_alone_says_who_may_read(tmp_path: Path, umask: int, folders: int, files: int) -> None:
    """Some libraries make files that only their owner may read, and a copy has the mode of what was copied."""
    before = os.umask(umask)
    try:
        with prepared_folder.writing(str(tmp_path / "out"), "glm", "data") as writer:
            for name, mode in (("a.bin", 0o600), ("b.bin", 0o444), ("c.bin", 0o666)):
                Path(writer.path(name)).write_bytes(b"abc")
                Path(writer.path(name)).chmod(mode)
            writer.format("letters/v1")
    finally:
        os.umask(before)
    made = tmp_path / "out" / "data"
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (made, made.parent)} == {folders}
    assert content_of(made) == ["a.bin", "b.bin", "c.bin", "prepared.json"]
    assert {stat.S_IMODE((made / name).stat().st_mode) for name in content_of(made)} == {files}


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "prepared.json", "a\0", "a\nb", "x" * 300])
def test_a_file_lies_in_the_folder_itself(tmp_path: Path, name: str) -> None:
    with refuses(ValueError, repr(name)):
        write(tmp_path / "out", lambda writer: writer.path(name))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("end", [ValueError("x"), KeyboardInterrupt(), DataError("x", "y")])
def test_what_ends_badly_leaves_nothing(tmp_path: Path, end: BaseException) -> None:
    def fail(writer: prepared_folder.Writer) -> None:
        raise end

    (tmp_path / "out").mkdir()
    with pytest.raises(type(end)):
        write(tmp_path / "out", fail)
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


def test_the_old_folder_stays_where_the_new_one_fails(tmp_path: Path) -> None:
    prepare(tmp_path, b"old")
    with pytest.raises(DataError), prepared_folder.writing(str(tmp_path), "glm", "data", force=True):
        raise DataError("the source is damaged", "download it again: it is truncated or not a checkpoint")
    assert opened(tmp_path).facts == {"letters": 3}


def test_a_folder_that_was_moved_aside_by_the_dead_comes_back(tmp_path: Path) -> None:
    prepare(tmp_path, b"old").rename(tmp_path / ".data.replaced-0123abcd")
    (tmp_path / ".data.preparing-0123abcd").mkdir()
    with refuses(UsageError, tmp_path / "data"):
        prepare(tmp_path, b"new")
    assert (opened(tmp_path).facts, content_of(tmp_path)) == ({"letters": 3}, ["data"])


@pytest.mark.parametrize("force", [False, True])
def test_what_prepare_did_not_write_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.txt").write_text("mine")
    with refuses(UsageError, tmp_path / "data"):
        prepare(tmp_path, force=force)
    (tmp_path / "data" / "mine.txt").rename(tmp_path / "mine.txt")
    prepare(tmp_path)  # an empty folder is no obstacle
    (tmp_path / "mine.txt").rename(tmp_path / "data" / "mine.txt")
    with refuses(UsageError, "mine.txt"):
        prepare(tmp_path, force=True)
    assert (tmp_path / "data" / "mine.txt").read_text() == "mine"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    prepare(tmp_path / "elsewhere")
    (tmp_path / "data").symlink_to(tmp_path / "elsewhere" / "data")
    with refuses(UsageError, tmp_path / "data"):
        prepare(tmp_path, force=True)
    (tmp_path / ".weights.preparing-0123abcd").symlink_to(tmp_path / "elsewhere")
    prepare(tmp_path, kind="weights")
    assert content_of(tmp_path / "elsewhere") == ["data"]


def test_of_two_at_once_one_prepares(tmp_path: Path) -> None:
    with prepared_folder.writing(str(tmp_path), "glm", "data") as writer:
        with refuses(UsageError, "another process"):
            prepare(tmp_path)
        prepare(tmp_path, kind="weights")  # the other kind is another place
        Path(writer.path("a.bin")).write_bytes(b"abc")
        writer.format("letters/v1")
    assert content_of(tmp_path) == ["data", "weights"]


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


@pytest.mark.parametrize("old", [False, True])
def test_leftovers_of_a_killed_process(tmp_path: Path, old: bool) -> None:
    if old:
        prepare(tmp_path, b"old")
    environment = dict(os.environ, PYTHONPATH=str(ENTRYPOINTS))
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False)
    assert ended.returncode == -9
    assert len(content_of(tmp_path)) == 2 + old
    if old:
        assert opened(tmp_path).facts == {"letters": 3}
    else:
        refusal(opened, tmp_path)
    prepare(tmp_path, b"newer", force=True)
    assert (opened(tmp_path).facts, content_of(tmp_path)) == ({"letters": 5}, ["data"])


# The disk


def test_a_full_disk_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as full, refuses(CaseError, tmp_path, "full", code=ExitCode.NOT_STORED):
        write(tmp_path / "out", lambda writer: full.write(b"x"))
    assert not (tmp_path / "out").exists()


def test_libraries_say_a_full_disk_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert writing_module.is_full(RuntimeError("I/O error: No space left on device (os error 28)"), str(tmp_path))
    assert not writing_module.is_full(RuntimeError("bad header"), str(tmp_path))
    assert not writing_module.is_full(FileNotFoundError(errno.ENOENT, "no"), str(tmp_path))
    monkeypatch.setattr(writing_module, "free_bytes", lambda folder: 4096)
    assert writing_module.is_full(OSError("1000 requested and 12 written"), str(tmp_path))


def test_what_a_disk_has_not_got_is_said_beforehand(tmp_path: Path) -> None:
    with refuses(CaseError, "1000000.0 GB", code=ExitCode.NOT_STORED):
        write(tmp_path / "out", lambda writer: writer.need(10**15))


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
        ({"files": {"/etc/passwd": SOME}}, "/etc/passwd"),
        ({"files": {".bashrc": SOME}}, ".bashrc"),
        ({"files": {"a.bin": {"bytes": -1, "sha256": "0" * 64}}}, "a.bin"),
        ({"files": {"a.bin": {"bytes": "3", "sha256": ""}}}, "a.bin"),
        ({"files": {"a.bin": {"bytes": 4, "sha256": "0" * 64}}}, "3 bytes"),
        ({"files": {"a.bin": SOME}}, "checksum"),
        ({"files": {"b.bin": SOME}}, "b.bin"),
    ],
)
def test_a_folder_that_is_not_what_it_says_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    folder = prepare(tmp_path)
    change(folder, **changes)
    with refuses(DataError, folder, named):
        opened(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_an_index_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = prepare(tmp_path)
    (folder / "prepared.json").write_bytes(content)
    assert "prepared.json" in refusal(opened, folder)


def test_what_is_no_prepared_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "none", tmp_path, tmp_path / "file"):
        assert str(folder) in refusal(opened, folder)
    refusal(prepared_folder.open_folder, "", "glm", "data")


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    folder = prepare(tmp_path)
    (folder / "a.bin").unlink()
    os.mkfifo(folder / "a.bin")
    assert "not a file" in refusal(opened, folder)
    assert "not a file" in refusal(write, tmp_path / "out", lambda writer: writer.source(str(folder / "a.bin")))


def test_sums_of_large_files_are_left_to_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare(tmp_path)
    (folder / "a.bin").write_bytes(b"xyz")
    monkeypatch.setattr(prepared_folder, "MAX_CHECKSUM_BYTES_IN_A_RUN", 2)
    seen = []
    assert opened(folder).facts == {"letters": 3}
    with contextlib.suppress(DataError):
        opened(folder, thorough=True, report=lambda *words: seen.append(words))
    assert seen == [("check", 3, 3, "bytes")]
    assert "its checksum" in refusal(opened, folder, thorough=True)
    monkeypatch.undo()
    assert opened(folder, thorough=False).files
    assert "its checksum" in refusal(opened, folder)


# What a run takes


def test_a_run_finds_both_folders(tmp_path: Path) -> None:
    data, weights = prepare(tmp_path), prepare(tmp_path, kind="weights")
    out = str(tmp_path)
    assert request.find_data(out) == request.find_data(str(data)) == str(data)
    assert request.find_weights(None, out) == request.find_weights(out, None) == str(weights)
    assert request.find_weights(str(weights), None) == str(weights)
    assert request.find_weights("/elsewhere", out) == "/elsewhere"
    assert request.find_weights(None, str(data)) is None
    assert request.find_data(None) is None


def test_other_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert request.find_data(str(tmp_path)) == str(tmp_path)
    assert request.find_weights(None, str(tmp_path)) == str(tmp_path / "model")
