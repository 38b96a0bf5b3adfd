"""The guard of a rank: every end of it is written down, and exit 0 believed of a rank that did its work alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flagbench_cases.node import guard
from flagbench_cases.shared import processes
from flagbench_cases.shared.spool import SpoolReader

pytestmark = pytest.mark.image

ENTRYPOINTS = Path(__file__).parents[4] / "entrypoints"
DONE = "from flagbench_cases.shared.spool import RankSpool\nRankSpool(sys.argv[-1], 3).phase('done')\n"


def guarded(folder: Path, ends: str) -> subprocess.Popen[bytes]:
    """The guard of rank 3, whose own interpreter does `ends` as it starts, before it imports torch."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("import os, signal, sys\n" + ends)
    path = os.pathsep.join([str(folder / "site"), str(ENTRYPOINTS)])
    env = dict(os.environ, PYTHONPATH=path, RANK="3")
    return subprocess.Popen([sys.executable, *guard.COMMAND, str(folder)], env=env)


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("os._exit(0)", 0),
        ("os._exit(5)", 5),
        ("os.execv('/bin/true', ['true'])", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.abort()", -signal.SIGABRT),
        (DONE + "os._exit(9)", 9),
    ],
)
def test_a_rank_that_ends_early_is_a_failure(tmp_path: Path, ends: str, code: int) -> None:
    before = time.time()
    assert guarded(tmp_path, ends).wait(30) == 1
    found = SpoolReader(str(tmp_path), 3).exit()
    assert found.code == code
    assert before - 1 < found.time < time.time() + 1


def test_a_rank_that_did_its_work_is_a_success(tmp_path: Path) -> None:
    ends = "sys.argv[-1:] = [%r]\n" % str(tmp_path) + DONE + "os._exit(0)"
    assert guarded(tmp_path, ends).wait(30) == 0
    assert SpoolReader(str(tmp_path), 3).exit() is None


def test_a_rank_does_not_outlive_its_guard(tmp_path: Path) -> None:
    process = guarded(tmp_path, "open(%r, 'w').write(str(os.getpid()))\nsignal.pause()" % str(tmp_path / "pid"))
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int((tmp_path / "pid").read_text())
    process.terminate()
    assert process.wait(10) == -signal.SIGTERM
    while processes.state(pid) not in (None, "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert SpoolReader(str(tmp_path), 3).exit() is None, "ended by the launcher, which is no end of its own"
