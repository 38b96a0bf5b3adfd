"""Where the cache of fetched folders is, and when a folder in it is complete."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flagbench_cases.prepare import cache
from flagbench_cases.shared.errors import DataError, UsageError
from running import ENTRYPOINTS

pytestmark = pytest.mark.image

FILES = {"one.bin": {"bytes": 3, "sha256": "0" * 64}, "two.bin": {"bytes": 0, "sha256": "1" * 64}}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLAGBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_is_where_the_user_says_or_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = os.path.join(tempfile.gettempdir(), "flagbench-cache-%d" % os.geteuid())
    home = str(tmp_path / "home")
    assert cache.root({"FLAGBENCH_CACHE": "/big", "HOME": home}) == "/big"
    assert cache.root({"XDG_CACHE_HOME": home + "/xdg", "HOME": home}) == home + "/xdg/flagbench"
    assert cache.root({"HOME": home}) == home + "/.cache/flagbench"
    for homeless in ({}, {"HOME": "relative"}, {"HOME": "/dev/null"}):
        assert cache.root(homeless) == temporary
    monkeypatch.chdir(tmp_path)
    assert cache.root({"FLAGBENCH_CACHE": "here"}) == str(tmp_path / "here")
    monkeypatch.setattr(cache, "MOUNT", "/dev/shm")
    assert cache.root({"HOME": home}) == "/dev/shm", "a volume that is mounted for it"


def test_what_another_user_put_into_tmpdir_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLAGBENCH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    Path(cache.root()).symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="another user"):
        cache.make(cache.folder_of("glm", "data", b""))
    with pytest.raises(UsageError, match="another user"):
        cache.check_owner()  # before anything that is there is used
    Path(cache.root()).unlink()
    cache.make(cache.folder_of("glm", "data", b""))
    assert Path(cache.root()).stat().st_mode & 0o777 == 0o700


def test_a_folder_is_complete_with_its_index_and_all_files() -> None:
    folder = Path(cache.folder_of("glm", "data", b"index"))
    cache.make(str(folder))
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


def test_only_leftovers_of_downloads_are_removed(tmp_path: Path) -> None:
    for name in (".one.bin.part", "one.part", ".hidden"):
        (tmp_path / name).write_bytes(b"")
    cache.remove_leftovers(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "one.part"]


def test_more_than_fits_is_refused(place: Path) -> None:
    cache.make(cache.folder_of("glm", "data", b""))
    cache.check_room(1)
    with pytest.raises(DataError, match=r"10000000000\.0 GB"):
        cache.check_room(10**19)


HOLDER = """
import sys
from flagbench_cases.prepare import cache
with cache.locked(sys.argv[1], lambda: print("waiting", flush=True)):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time_has_a_folder(place: Path) -> None:
    """A killed one gives it back."""
    folder = cache.folder_of("glm", "data", b"")
    cache.make(folder)
    environment = dict(os.environ, PYTHONPATH=ENTRYPOINTS)
    pipe = subprocess.PIPE
    first, second = (
        subprocess.Popen([sys.executable, "-c", HOLDER, folder], env=environment, stdin=pipe, stdout=pipe, text=True)
        for _ in range(2)
    )
    lines = {first: first.stdout.readline(), second: second.stdout.readline()}
    holder, waiter = (first, second) if lines[first] == "mine\n" else (second, first)
    assert lines[waiter] == "waiting\n"
    holder.kill()
    holder.communicate()
    assert waiter.stdout.readline() == "mine\n"
    waiter.communicate()
    assert waiter.returncode == 0
    assert os.listdir(os.path.dirname(folder)) == [os.path.basename(folder)]


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FLAGBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError):
        cache.make(cache.folder_of("glm", "data", b""))
