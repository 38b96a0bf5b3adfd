"""A record is printed whole, written whole or not at all, and never replaces another."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from flagbench_cases.shared import output
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_core.exit_codes import ExitCode
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image


def test_a_record_is_readable_by_all(tmp_path: Path) -> None:
    path = output.write_file(str(tmp_path / "new" / "folder"), "r.json", '{"ü":1}')
    assert Path(path).read_bytes() == '{"ü":1}\n'.encode()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
    assert os.listdir(os.path.dirname(path)) == ["r.json"]


def test_an_existing_record_is_kept(tmp_path: Path) -> None:
    output.write_file(str(tmp_path), "r.json", "first")
    with refuses(CaseError, tmp_path / "r.json", code=ExitCode.NOT_STORED):
        output.write_file(str(tmp_path), "r.json", "second")
    assert (tmp_path / "r.json").read_text() == "first\n"
    assert os.listdir(tmp_path) == ["r.json"]


def test_a_record_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(output.os, "fsync", lambda handle: seen.append(os.listdir(tmp_path)))
    output.write_file(str(tmp_path), "r.json", "x" * 100_000)
    (during,) = seen
    assert "r.json" not in during
    assert all(name.startswith(".") for name in during)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*arguments: str) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(output.os, "link", refuse)
    output.write_file(str(tmp_path), "r.json", "first")
    assert (tmp_path / "r.json").read_text() == "first\n"
    with refuses(CaseError, tmp_path / "r.json", code=ExitCode.NOT_STORED):
        output.write_file(str(tmp_path), "r.json", "second")
    assert (tmp_path / "r.json").read_text() == "first\n"
    assert os.listdir(tmp_path) == ["r.json"]

    monkeypatch.setattr(output.os, "replace", refuse)
    with pytest.raises(CaseError):
        output.write_file(str(tmp_path), "s.json", "third")
    assert os.listdir(tmp_path) == ["r.json"]  # the name that was claimed is given back


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (str(tmp_path / "file" / "below"), str(tmp_path / "file"), "/proc/flagbench", "/proc/self/fdinfo"):
        with refuses(CaseError, folder, code=ExitCode.NOT_STORED) as caught:
            output.write_file(folder, "r.json", "line")
        assert "stdout" in caught.value.remedy


def test_in_an_image_the_remedy_is_the_user_of_docker_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(output.os, "makedirs", deny)  # root, as which the tests may run, is denied nothing
    with refuses(UsageError) as native:
        output.check_folder("--out", str(tmp_path / "out"))
    assert "--user" not in native.value.remedy
    monkeypatch.setenv("FLAGBENCH_CONTEXT_DIGEST", "sha256:" + "c" * 64)
    with refuses(UsageError) as in_image:
        output.check_folder("--out", str(tmp_path / "out"))
    assert "uid %d" % os.getuid() in in_image.value.remedy
    assert "docker run --user" in in_image.value.remedy


def test_a_full_disk_leaves_nothing_behind(small_disk: Path) -> None:
    with refuses(CaseError, small_disk, os.strerror(errno.ENOSPC), code=ExitCode.NOT_STORED):
        output.write_file(str(small_disk), "r.json", "x" * 100_000)
    assert os.listdir(small_disk) == []
    output.write_file(str(small_disk), "r.json", "short")  # and its room is free again


def test_a_line_longer_than_a_pipe_is_written_whole(tmp_path: Path) -> None:
    line, read = "ü" * 300_000, tmp_path / "read"
    with read.open("wb") as file:
        reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
        output.write_line(reader.stdin.fileno(), line)
        reader.communicate()
    assert read.read_text(encoding="utf-8") == line + "\n"


def test_a_reader_that_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with refuses(CaseError, os.strerror(errno.EPIPE), code=ExitCode.NOT_STORED) as caught:
        output.write_line(writing, "line")
    assert "--out" in caught.value.remedy
    os.close(writing)


def test_a_stdout_on_a_full_disk() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with refuses(CaseError, os.strerror(errno.ENOSPC), code=ExitCode.NOT_STORED):
        output.write_line(full, "line")
    os.close(full)


NOISY = """
import ctypes, os, subprocess, sys
from flagbench_cases.shared import output
kept = output.keep_stdout()
print("from print", flush=True)
os.write(1, b"from write\\n")
libc = ctypes.CDLL(None)
libc.puts(b"from puts")
libc.fflush(None)
subprocess.run(["echo", "from a child"], check=True)
assert not os.get_inheritable(kept)
output.write_line(kept, '{"a": 1}')
"""


def test_only_the_record_reaches_stdout() -> None:
    done = subprocess.run([sys.executable, "-c", NOISY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    assert done.stdout == b'{"a": 1}\n'
    assert json.loads(done.stdout) == {"a": 1}
    assert sorted(done.stderr.decode().split("\n")[:-1]) == ["from a child", "from print", "from puts", "from write"]
