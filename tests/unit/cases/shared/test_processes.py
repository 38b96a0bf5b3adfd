"""Processes are found at any depth and ended whatever they do, and their ends are told in words."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flagbench_cases.shared import processes

pytestmark = pytest.mark.image

READY = "import os\nos.write(1, b'ready\\n')\n"  # one write: two processes may share the pipe
WAIT = "import signal\nwhile True: signal.pause()\n"
IGNORE = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@contextlib.contextmanager
def running(program: str, ready: int = 0) -> Iterator[subprocess.Popen]:
    """A Python process and whatever it starts, once so many of them are ready; nothing of it is left afterwards."""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert [process.stdout.readline() for _ in range(ready)] == [b"ready\n"] * ready
        yield process
    finally:
        for pid in processes.descendants(process.pid) | {process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def parent_of(program: str) -> str:
    """A program that starts two others and waits."""
    start = "import subprocess, sys\nfor _ in range(2): subprocess.Popen([sys.executable, '-c', %r])\n" % program
    return start + WAIT


# A tree of its own, whose root adopts orphans and reports what it sees: the test run's own children stay out of it.
TREE = """
import os, signal, subprocess, sys, time
from flagbench_cases.shared import processes

processes.adopt_orphans()
waiting = "import signal\\nprint('ready', flush=True)\\nwhile True: signal.pause()"
# A middle process starts one below it and dies at once: its child is an orphan.
middle = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', %r], stdout=subprocess.PIPE); "
middle += "p.stdout.readline(); print(p.pid, flush=True)"
made = subprocess.run([sys.executable, "-c", middle % waiting], stdout=subprocess.PIPE, check=True)
orphan = int(made.stdout)
direct = subprocess.Popen([sys.executable, "-c", waiting], stdout=subprocess.PIPE)
direct.stdout.readline()
assert processes.descendants(os.getpid()) == {orphan, direct.pid}, "an orphan escaped"
processes.end_all(os.getpid())
assert processes.descendants(os.getpid()) == set()
processes.collect_zombies()
assert processes.state(orphan) is None, "the orphan was not collected"
print("done")
"""


def test_orphans_are_adopted_found_ended_and_collected() -> None:
    done = subprocess.run([sys.executable, "-c", TREE], stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_descendants_are_found_at_any_depth() -> None:
    nested = "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', %r])\np.wait()\n"
    with running(nested % (nested % (READY + WAIT)), ready=1) as process:
        below = processes.descendants(process.pid)
        assert len(below) == 2
        assert below < processes.descendants(os.getpid())
        processes.end_all(process.pid)
        assert processes.descendants(process.pid) == set()


@pytest.mark.parametrize(
    ("program", "stop"),
    [(READY + WAIT, False), (READY + WAIT, True), (IGNORE + READY + WAIT, False), (IGNORE + READY + WAIT, True)],
    ids=["willing", "stopped", "ignores SIGTERM", "stopped and ignores SIGTERM"],
)
def test_everything_ends_after_its_grace(program: str, stop: bool) -> None:
    with running(parent_of(program), ready=2) as process:
        below = processes.descendants(process.pid)
        assert len(below) == 2
        if stop:
            for pid in below:
                os.kill(pid, signal.SIGSTOP)
        processes.end_all(process.pid, grace=0.3)
        assert [pid for pid in below if processes.state(pid) not in (None, "Z")] == []


def test_the_spared_live() -> None:
    with running(parent_of(READY + WAIT), ready=2) as process:
        spared, ended = sorted(processes.descendants(process.pid))
        processes.end_all(process.pid, grace=0.3, spare={spared})
        assert processes.descendants(process.pid) == {spared}
        assert processes.state(ended) in (None, "Z")
        processes.end_all(process.pid, grace=0.3)
        assert processes.descendants(process.pid) == set()


def test_a_child_dies_with_its_parent() -> None:
    lonely = "import os, sys\nfrom flagbench_cases.shared import processes\nprocesses.die_with_parent()\n"
    lonely += "print(os.getpid(), flush=True)\n" + WAIT
    parent = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', %r])\n" + WAIT
    with running(parent % lonely) as process:
        assert int(process.stdout.readline()) in processes.descendants(process.pid)
        process.kill()
        process.wait()
        assert process.stdout.read() == b""  # ends only when the child, which holds the pipe too, has ended


def test_a_name_with_brackets_and_spaces_is_no_field() -> None:
    rename = "import ctypes\nctypes.CDLL(None).prctl(15, b') Z 1 (', 0, 0, 0)\n"
    with running(rename + READY + WAIT, ready=1) as process:
        assert processes.state(process.pid) in ("S", "R")
        assert process.pid in processes.descendants(os.getpid())


VERSION_2 = "low 0\nhigh 12\nmax 7\noom 5\noom_kill 3\noom_group_kill 1\n"
VERSION_1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"


@pytest.mark.parametrize(
    ("name", "content", "kills"),
    [
        ("memory.events", VERSION_2, 3),
        ("memory.oom_control", VERSION_1, 4),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", None),  # kernels before 4.13 do not count
        ("memory.events", "", None),
    ],
)
def test_memory_kills_are_read_from_either_version(
    tmp_path: Path, name: str, content: str, kills: int | None
) -> None:
    (tmp_path / name).write_text(content)
    assert processes.oom_kills(str(tmp_path)) == kills
