"""Folders of killed runs are removed by the next one, those of living runs never, whoever else is in TMPDIR."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flagbench_core import scratch
from running import ENTRYPOINTS

pytestmark = pytest.mark.image

HOLDER = "from flagbench_core.scratch import Scratch; s = Scratch(); print(s.folder, flush=True); input()"
RACER = """
from flagbench_core.scratch import Scratch, remove_leftovers
import os
for _ in range(60):
    remove_leftovers()
    mine = Scratch()
    open(os.path.join(mine.folder, "plan.json"), "w").close()
    remove_leftovers()
    assert os.listdir(mine.folder), "another one removed it"
    mine.remove()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TMPDIR of this test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start(program: str, place: Path) -> Any:
    env = dict(os.environ, TMPDIR=str(place), PYTHONPATH=ENTRYPOINTS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program], env=env, **pipes)


@pytest.fixture
def holder(place: Path) -> Iterator[tuple[Any, Path]]:
    """A process with a folder of its own, and that folder."""
    process = start(HOLDER, place)
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.communicate()


def test_the_folder_of_a_killed_process_is_removed(place: Path, holder: tuple[Any, Path]) -> None:
    process, folder = holder
    (folder / "rank-00000.steps").write_bytes(bytes(100))
    assert scratch.remove_leftovers() == []
    assert folder.is_dir()
    process.send_signal(signal.SIGSTOP)
    assert scratch.remove_leftovers() == [], "one that is stopped lives"
    process.kill()
    process.wait()
    assert scratch.remove_leftovers() == [str(folder)]
    assert not folder.exists()


def test_foreign_files_are_left_alone(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Links, pipes, folders without a lock, locks that are links: none is followed, opened for long or removed."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / scratch.LOCK).touch()
    (elsewhere / "precious").touch()
    (place / "flagbench-link").symlink_to(elsewhere)
    (place / "flagbench-file").touch()
    os.mkfifo(place / "flagbench-pipe")
    (place / "flagbench-mine").mkdir()
    for name, made in (("pipe", os.mkfifo), ("link", lambda at: os.symlink(elsewhere / scratch.LOCK, at))):
        (place / ("flagbench-lock-" + name)).mkdir()
        made(place / ("flagbench-lock-" + name) / scratch.LOCK)
    (place / "another").mkdir()
    (place / "another" / scratch.LOCK).touch()
    before = sorted(place.iterdir())
    assert scratch.remove_leftovers() == []
    assert sorted(place.iterdir()) == before
    assert (elsewhere / "precious").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_another_users_folder_is_left_alone(place: Path) -> None:
    left = place / "flagbench-theirs"
    left.mkdir()
    (left / scratch.LOCK).touch()
    os.chown(left, 12345, 12345)
    assert scratch.remove_leftovers() == []
    assert left.is_dir()


def test_concurrent_runs_keep_their_folders(place: Path) -> None:
    racers = [start(RACER, place) for _ in range(4)]
    for racer in racers:
        racer.communicate(timeout=60)
    assert [racer.returncode for racer in racers] == [0] * 4
    assert list(place.iterdir()) == []


def test_a_user_folder_is_this_users_own(place: Path) -> None:
    folder = Path(scratch.user_folder())
    assert (folder.parent, stat.S_IMODE(folder.stat().st_mode)) == (place, 0o700)
    folder.chmod(0o777)
    with pytest.raises(PermissionError):
        scratch.user_folder()
    folder.rename(place / "elsewhere")
    folder.symlink_to(place / "elsewhere")
    with pytest.raises(PermissionError):
        scratch.user_folder()
