"""Where the cache of fetched folders is, and when a folder in it is complete."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flagbench_cases.prepare import cache
from flagbench_cases.shared.errors import UsageError
from running import ENTRYPOINTS

pytestmark = pytest.mark.image

FILES = {"one.bin": {"bytes": 3, "sha256": "0" * 64}, "two.bin": {"bytes": 0, "sha256": "1" * 64}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the cache, which is not there yet."""
    monkeypatch.setenv("FLAGBENCH_CACHE", str(tmp_path / "cache"))
    return Path(cache.folder_of("glm", "data", b"index"))


def lock(folder: Path) -> None:
    with cache.locked(str(folder), lambda: None):
        pass


def test_the_cache_is_where_the_user_says_or_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = str(tmp_path / "home")
    assert cache.root({"FLAGBENCH_CACHE": "/big", "HOME": home}) == "/big"
    assert cache.root({"XDG_CACHE_HOME": home + "/xdg", "HOME": home}) == home + "/xdg/flagbench"
    assert cache.root({"HOME": home}) == home + "/.cache/flagbench"
    temporary = tmp_path / ("flagbench-cache-%d" % os.geteuid())
    for homeless in ({}, {"HOME": "relative"}, {"HOME": "/dev/null"}):
        assert cache.root(homeless) == str(temporary)
    assert temporary.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(cache, "MOUNT", "/dev/shm")
    assert cache.root({"HOME": home}) == "/dev/shm", "a volume that is mounted for it"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_what_another_user_put_into_tmpdir_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    os.chown(cache.root({}), 12345, -1)
    with pytest.raises(UsageError):
        cache.root({})


def test_a_folder_is_complete_with_its_index_and_all_files(folder: Path) -> None:
    lock(folder)
    (folder / "one.bin").write_bytes(b"abc")
    (folder / "two.bin").write_bytes(b"")
    assert not cache.is_complete(str(folder), FILES)
    cache.finish(str(folder), b"index")
    assert cache.is_complete(str(folder), FILES)
    (folder / "one.bin").write_bytes(b"ab")
    assert not cache.is_complete(str(folder), FILES)
    (folder / "one.bin").unlink()
    (folder / "one.bin").symlink_to("/etc/hostname")
    assert cache.missing(str(folder), FILES) == {"one.bin": 3}


def test_only_leftovers_of_downloads_are_removed(folder: Path) -> None:
    lock(folder)
    for name in (".one.bin.part", "one.part", ".hidden"):
        (folder / name).write_bytes(b"")
    lock(folder)
    assert sorted(path.name for path in folder.iterdir()) == [".hidden", "one.part"]


HOLDER = """
import sys
from flagbench_cases.prepare import cache
with cache.locked(sys.argv[1], lambda: print("waiting", flush=True)):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time_has_a_folder(folder: Path) -> None:
    """A killed one gives it back."""
    environment = dict(os.environ, PYTHONPATH=ENTRYPOINTS)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(folder)]
    first, second = (subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) for _ in range(2))
    lines = {first: first.stdout.readline(), second: second.stdout.readline()}
    holder, waiter = (first, second) if lines[first] == "mine\n" else (second, first)
    assert lines[waiter] == "waiting\n"
    holder.kill()
    holder.communicate()
    assert waiter.stdout.readline() == "mine\n"
    waiter.communicate()
    assert waiter.returncode == 0
    assert os.listdir(folder.parent) == [folder.name]


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FLAGBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError):
        lock(Path(cache.folder_of("glm", "data", b"")))
