"""What a run lacks beside memory, made for real: processes, room for its own files, a working directory, files."""

import os
import socket
import subprocess
import sys
import uuid

import pytest

from running import CaseRun, free_port, need, run_case, wait_until

pytestmark = pytest.mark.image

RUN = ["--preset", "tiny", "--data", "synthetic", "--steps", "1"]
COMMAND = [sys.executable, "-m", "flagbench_cases", "distilbert"]


def ended_with(ended, code, phase, word):
    status = ended.status
    assert (ended.code, status["exit_code"], status["phase"]) == (code, code, phase), (status, ended.stderr)
    assert word in status["reason"]
    assert status["remedy"]
    assert "bug" not in status["reason"]


@pytest.fixture
def few_processes():
    """A cgroup of this test's own: `few_processes(limit)` gives the command that runs a case in it."""
    root = "/sys/fs/cgroup/pids" if os.path.isdir("/sys/fs/cgroup/pids") else "/sys/fs/cgroup"
    need(os.geteuid() == 0 and os.access(root, os.W_OK), "root and writable pids cgroups")
    folder = os.path.join(root, "flagbench-test-%s" % uuid.uuid4().hex[:8])
    os.mkdir(folder)

    def command(limit):
        with open(os.path.join(folder, "pids.max"), "w") as file:
            file.write(str(limit))
        return ["bash", "-c", 'echo $$ > "%s/cgroup.procs"; exec "$0" "$@"' % folder, *COMMAND]

    yield command
    wait_until(lambda: not open(os.path.join(folder, "cgroup.procs")).read(), 10)
    os.rmdir(folder)


@pytest.mark.parametrize(
    ("limit", "phase"),
    [
        (1, "launch"),  # the sampler
        (4, "launch"),  # the second rank
    ],
)
def test_out_of_processes(tmp_path, few_processes, limit, phase):
    command = few_processes(limit)
    ended = CaseRun(tmp_path, [*RUN, "--gpus", "2"], command=command).wait()
    ended_with(ended, 4, phase, "processes")
    assert os.listdir(str(tmp_path)) in ([], ["torchinductor_root"])


def test_out_of_threads_while_it_looks_for_node_0(tmp_path, few_processes):
    """The resolver is asked in a thread."""
    job = ["--nodes", "2", "--node-rank", "0", "--master", "no-such.invalid:%d" % free_port()]
    ended = CaseRun(tmp_path, [*RUN, *job], command=few_processes(1)).wait()
    ended_with(ended, 4, "launch", "processes")


def test_loopback_down(tmp_path):
    """A new network namespace, whose loopback interface nobody has brought up."""
    need(os.geteuid() == 0, "root, for a network namespace")
    ended = CaseRun(tmp_path, RUN, command=["unshare", "--net", *COMMAND]).wait()
    ended_with(ended, 15, "launch", "127.0.0.1")


def test_a_port_in_use(tmp_path):
    """Of one node that was given a port, and of node 0 of two: neither waits."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        for nodes in ("1", "2"):
            ended = run_case(tmp_path, *RUN, "--nodes", nodes, "--node-rank", "0", "--master", "127.0.0.1:%d" % port)
            ended_with(ended, 15, "launch", str(port))


@pytest.fixture
def small_disk(tmp_path):
    """`small_disk(options)`: a file system of the given size."""
    need(os.geteuid() == 0, "root, to mount a small file system")
    place = tmp_path / "small"
    place.mkdir()

    def mount(options):
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
        return place

    yield mount
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize(
    "options",
    [
        "size=4k",  # for the plan, and nothing after it
        "nr_inodes=4",  # for as many files
    ],
)
def test_a_full_disk_at_the_start(small_disk, options):
    ended_with(CaseRun(small_disk(options), RUN).wait(), 4, "launch", "full")


def test_a_full_disk_of_another_node_is_the_jobs_cause(tmp_path, small_disk):
    """Node 1 has none for its plan, once both have met."""
    job = ["--nodes", "2", "--master", "127.0.0.1:%d" % free_port()]
    first = CaseRun(tmp_path, [*RUN, *job, "--node-rank", "0"])
    other = CaseRun(small_disk("nr_inodes=3"), [*RUN, *job, "--node-rank", "1"]).wait()
    ended = first.wait()
    ended_with(ended, 4, "launch", "full")
    assert "node 1" in ended.status["reason"]
    assert other.code == 4


GONE = ["bash", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$0" "$@"', *COMMAND]


def test_a_removed_working_directory_changes_nothing(tmp_path):
    ended = CaseRun(tmp_path, RUN, command=GONE, cwd=str(tmp_path)).wait()
    assert (ended.code, ended.status["state"]) == (0, "ok"), ended.stderr


@pytest.mark.parametrize("option", ["--data", "--weights", "--out", "--resume", "--store"])
def test_a_path_that_is_relative_to_a_removed_directory_is_a_usage_error(tmp_path, option):
    ended = CaseRun(tmp_path, [*RUN, option, "some/folder"], command=GONE, cwd=str(tmp_path)).wait()
    ended_with(ended, 2, "usage", option)


def made(path, kind):
    """What is not a folder, or not a file, at a path."""
    if kind == "pipe":
        os.mkfifo(str(path))
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            before = os.getcwd()
            os.chdir(str(path.parent))  # an address has a hundred characters
            try:
                listener.bind(path.name)
            finally:
                os.chdir(before)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("")
    return path


@pytest.mark.parametrize("option", ["--data", "--weights"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "dangling", "file"])
def test_what_is_no_folder_is_refused_before_anything_is_started(tmp_path, option, kind):
    path = made(tmp_path / "given", kind)
    ended = run_case(tmp_path, *RUN, option, str(path))
    ended_with(ended, 3, "data", str(path))
    assert ended.record["ranks"] == []


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
@pytest.mark.parametrize("name", ["", "checkpoint.json"])
def test_what_is_no_checkpoint_is_refused_before_anything_is_started(tmp_path, kind, name):
    folder = tmp_path / "given"
    if name:
        folder.mkdir()
    made(folder / name if name else folder, kind)
    command = [*COMMAND[:-1], "llama2-7b-lora"]
    ended = CaseRun(tmp_path, ["--preset", "tiny", "--resume", str(folder)], command=command).wait()
    ended_with(ended, 3, "usage", str(folder))
