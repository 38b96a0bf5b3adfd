"""Parts of the machine that runs lack, made for real, and the host tool in a process of its own.

Where the host tool itself is needed, Python 3.10 is: the image side's tests run on 3.8 without it.
"""

import os
import subprocess
import sys
import uuid

import pytest

from running import ROOT, need, wait_until
from warmup import warm

collect_ignore = (
    [
        *("test_run_command.py", "test_run_terminal.py", "test_docs_add_a_case.py", "test_prepare_command.py"),
        *("test_resume_split_model.py", "test_reproduce.py", "test_explain_runs.py"),
    ]
    if sys.version_info < (3, 10)
    else []
)


@pytest.fixture
def environment(tmp_path):
    """Both packages importable, and a store and a spool of this test's own."""
    (tmp_path / "spool").mkdir()
    store = "file://%s" % (tmp_path / "store")
    paths = os.pathsep.join(os.path.join(ROOT, name) for name in ("builder", "entrypoints"))
    return dict(os.environ, FLAGBENCH_STORE=store, TMPDIR=str(tmp_path / "spool"), NO_COLOR="1", **warm(paths))


@pytest.fixture
def flagbench(environment):
    """`flagbench(*arguments, **options of a process)`: the tool, ended."""

    def run(*arguments, **options):
        command = [sys.executable, "-m", "flagbench", *arguments]
        options = {"env": environment, "capture_output": True, "text": True, "check": False, **options}
        return subprocess.run(command, **options)

    return run


@pytest.fixture
def small_disk(tmp_path):
    """`small_disk(options)`: a file system of that size."""
    need(os.geteuid() == 0, "root, to mount a small file system")
    place = tmp_path / "small"
    place.mkdir()

    def mount(options):
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
        return place

    yield mount
    subprocess.run(["umount", "-l", str(place)], check=True)


LIMITS = {"memory": ("memory.limit_in_bytes", "memory.max"), "pids": ("pids.max", "pids.max")}
"""The setting of each controller in version 1 and in version 2 of control groups."""


@pytest.fixture
def limited():
    """`limited(controller, limit, *command)`: the command in a control group of this test's own."""
    folders = []

    def limit(controller, most, *command):
        first = os.path.isdir("/sys/fs/cgroup/%s" % controller)
        root = "/sys/fs/cgroup/%s" % controller if first else "/sys/fs/cgroup"
        need(os.geteuid() == 0 and os.access(root, os.W_OK), "root and writable control groups")
        folders.append(os.path.join(root, "flagbench-test-%s" % uuid.uuid4().hex[:8]))
        os.mkdir(folders[-1])
        with open(os.path.join(folders[-1], LIMITS[controller][0 if first else 1]), "w") as file:
            file.write(str(most))
        # The shell joins the group before it becomes the run.
        return ["bash", "-c", 'echo $$ > "%s/cgroup.procs"; exec "$0" "$@"' % folders[-1], *command]

    yield limit
    for folder in folders:
        wait_until(lambda folder=folder: not open(os.path.join(folder, "cgroup.procs")).read(), 10)
        os.rmdir(folder)
