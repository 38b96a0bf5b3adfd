"""What a run lacks beside memory, made for real: processes, room for its own files, a working directory, files."""

import os
import socket
import sys

import pytest

from flagbench_core import python_module
from running import CaseRun, free_port, need, run_case

pytestmark = pytest.mark.image

RUN = ["--preset", "tiny", "--data", "synthetic", "--steps", "1"]
COMMAND = [sys.executable, "-m", "flagbench_cases", "distilbert"]


@pytest.mark.parametrize("limit", [1, 4], ids=["the sampler", "the second rank"])
def test_out_of_processes(tmp_path, limited, limit):
    command = limited("pids", limit, *COMMAND)
    CaseRun(tmp_path, [*RUN, "--gpus", "2"], command=command).wait().failed(4, "launch", "processes")
    assert os.listdir(str(tmp_path)) in ([], ["torchinductor_root"])


@pytest.mark.old_torch
def test_out_of_threads_while_it_looks_for_node_0(tmp_path, limited):
    """The resolver is asked in a thread."""
    job = ["--nodes", "2", "--node-rank", "0", "--master", "no-such.invalid:%d" % free_port()]
    run = CaseRun(tmp_path, [*RUN, *job], command=limited("pids", 1, *COMMAND))
    run.wait().failed(4, "launch", "processes")


@pytest.mark.old_torch
def test_loopback_down(tmp_path):
    """A new network namespace, whose loopback interface nobody has brought up."""
    need(os.geteuid() == 0, "root, for a network namespace")
    CaseRun(tmp_path, RUN, command=["unshare", "--net", *COMMAND]).wait().failed(15, "launch", "127.0.0.1")


@pytest.mark.old_torch
def test_a_port_in_use(tmp_path):
    """Of one node that was given a port, and of node 0 of two: neither waits."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = str(taken.getsockname()[1])
        for nodes in ("1", "2"):
            job = ["--nodes", nodes, "--node-rank", "0", "--master", "127.0.0.1:" + port]
            run_case(tmp_path, *RUN, *job).failed(15, "launch", port)


@pytest.mark.parametrize("small_disk", ["size=4k", "nr_inodes=4"], indirect=True)
def test_a_full_disk_at_the_start(small_disk):
    """There is room for the plan and nothing after it, or for as many files."""
    run_case(small_disk, *RUN).failed(4, "launch", "full")


@pytest.mark.old_torch
def test_shared_memory_is_full(tmp_path):
    """Which the processes that load data use."""
    need(os.geteuid() == 0, "root, to mount a small file system")
    mounts = 'mount --make-rprivate / && mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mounts, "sh", *COMMAND]
    run = CaseRun(tmp_path, [*RUN, "--set", "workers=2"], command=command)
    run.wait().failed(5, None, "/dev/shm")


@pytest.mark.parametrize("small_disk", ["nr_inodes=3"], indirect=True)
def test_a_full_disk_of_another_node_is_the_jobs_cause(tmp_path, small_disk):
    """Node 1 has none for its plan, once both have met."""
    job = ["--nodes", "2", "--master", "127.0.0.1:%d" % free_port()]
    first = CaseRun(tmp_path, [*RUN, *job, "--node-rank", "0"])
    other = CaseRun(small_disk, [*RUN, *job, "--node-rank", "1"]).wait()
    first.wait().failed(4, "launch", "full", "node 1")
    assert other.code == 4


def test_modules_of_strangers_in_the_working_directory(tmp_path):
    """No process of a run imports them, nor a package that has the name of a framework."""
    for name in ("random", "json", "platform", "types", "torch"):
        (tmp_path / (name + ".py")).write_text("raise SystemExit(9)")
    command = [sys.executable, *python_module.options("flagbench_cases"), "distilbert"]
    ended = CaseRun(tmp_path, RUN, command=command, cwd=str(tmp_path)).wait()
    assert (ended.code, ended.status["state"]) == (0, "ok"), ended.stderr


GONE = ["bash", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$0" "$@"', *COMMAND]


def test_a_removed_working_directory_changes_nothing(tmp_path):
    ended = CaseRun(tmp_path, RUN, command=GONE, cwd=str(tmp_path)).wait()
    assert (ended.code, ended.status["state"]) == (0, "ok"), ended.stderr


@pytest.mark.parametrize("option", ["--data", "--out"])
def test_a_path_relative_to_a_removed_directory(tmp_path, option):
    run = CaseRun(tmp_path, [*RUN, option, "some/folder"], command=GONE, cwd=str(tmp_path))
    run.wait().failed(2, "usage", option)


@pytest.mark.parametrize("option", ["--data", "--weights"])
def test_what_is_no_folder_is_refused_at_once(tmp_path, option):
    """A pipe blocks a process that opens it."""
    given = tmp_path / "given"
    os.mkfifo(str(given))
    assert run_case(tmp_path, *RUN, option, str(given)).failed(3, "data", str(given))["ranks"] == []


def test_what_is_no_checkpoint_is_refused_at_once(tmp_path):
    os.mkfifo(str(tmp_path / "checkpoint.json"))
    ended = run_case(tmp_path, "--preset", "tiny", "--resume", str(tmp_path), case="llama2-7b-lora")
    ended.failed(3, "usage", str(tmp_path))
