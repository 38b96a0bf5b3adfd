"""Every way a run can fail, made for real: each leaves one valid record, the right exit code and no process."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import jsonschema
import numpy as np
import pytest

from running import ENDLESS, CaseRun, alive, free_port, need, run_case, wait_until

pytestmark = pytest.mark.image


@pytest.fixture
def check(record_schema):
    """Assert how a run ended: exit code, phase, words of the reason; a remedy is always given."""

    def assert_ended(ended, code, phase, *words):
        record = ended.record
        jsonschema.Draft202012Validator(record_schema).validate(record)
        status = record["status"]
        assert (ended.code, status["exit_code"], status["phase"]) == (code, code, phase), (status, ended.stderr)
        assert all(word in status["reason"] for word in words), status["reason"]
        assert status["remedy"]
        assert "error: %s" % status["reason"] in ended.stderr
        return record

    return assert_ended


@pytest.fixture
def tiny_tmpfs(tmp_path):
    """A file system of 64 KiB; made for real, which needs root."""
    need(os.geteuid() == 0, "root, to mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def write_npz(path, **changes):
    """FlagPerf's layout for the tiny preset: every array int64, rows padded to 128."""
    n, length = 40, 128
    lengths = np.full(n, 12)
    arrays = {
        "idx": np.arange(n),
        "sentence": np.array(["a sentence"] * n),
        "label": np.arange(n) % 2,
        "input_ids": np.where(np.arange(length) < lengths[:, None], 7, 0),
        "attention_mask": (np.arange(length) < lengths[:, None]).astype(np.int64),
    }
    arrays.update(changes)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--gpus", "0"], ["--gpus"]),
        (["--no-such-option"], ["--no-such-option"]),
        (["--set", "batch_size=many"], ["batch_size", "many"]),
        (["--nodes", "2", "--gpus", "1"], ["--nodes 2"]),
        (["--division", "tuned"], ["tuned"]),
        (["--precision", "tf32"], ["TF32"]),
        (["--resume", "/tmp"], ["distilbert", "resum"]),
        (["--steps", "5", "--full"], ["--full"]),
    ],
)
def test_usage(tmp_path, check, arguments, words):
    check(run_case(tmp_path, *arguments), 2, "usage", *words)


def test_unknown_case(tmp_path, check):
    command = CaseRun(tmp_path, [], command=[os.sys.executable, "-m", "flagbench_cases", "no such/case\n"])
    record = check(command.wait(), 2, "usage", "no such/case")
    assert record["case"] == "no-such-case"


def test_data_missing(tmp_path, check):
    missing = str(tmp_path / "nowhere")
    record = check(run_case(tmp_path, "--preset", "tiny", "--data", missing), 3, "data", missing, "does not exist")
    assert record["ranks"] == [], "none was started for it"


@pytest.mark.parametrize(
    "broken, words",
    [
        ({"label": np.full(40, 2)}, ["label 2 is out of range"]),
        ({"input_ids": np.full((40, 128), 7.0)}, ["input_ids is float64"]),
    ],
)
def test_data_wrong(tmp_path, check, broken, words):
    write_npz(tmp_path / "train_dataset.npz", **broken)
    write_npz(tmp_path / "eval_dataset.npz")
    check(run_case(tmp_path, "--preset", "tiny", "--data", str(tmp_path)), 3, "data", *words)


def test_data_truncated(tmp_path, check):
    write_npz(tmp_path / "train_dataset.npz")
    write_npz(tmp_path / "eval_dataset.npz")
    whole = (tmp_path / "train_dataset.npz").read_bytes()
    (tmp_path / "train_dataset.npz").write_bytes(whole[: len(whole) // 2])
    check(run_case(tmp_path, "--preset", "tiny", "--data", str(tmp_path)), 3, "data", "train_dataset.npz")


def test_rank_killed(tmp_path, check):
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS], isolated=False)
    run.wait_for_steps(2, steps=30)
    pids = run.pids()
    os.kill(pids[1], signal.SIGKILL)
    record = check(run.wait(60), 4, "train", "rank 1 was killed by SIGKILL")
    assert not any(alive(pid) for pid in pids)
    assert record["ranks"][1]["exit"] == "SIGKILL"
    assert record["work"]["steps"] >= 1, "the steps until then are kept"


def test_rank_stopped(tmp_path, check):
    run = CaseRun(tmp_path, ["--gpus", "2", "--timeout", "5", *ENDLESS], isolated=False)
    run.wait_for_steps(2, steps=30)
    pids = run.pids()
    os.kill(pids[0], signal.SIGSTOP)
    stopped = time.monotonic()
    check(run.wait(60), 6, "train", "no progress for 5 s", "rank 0 (process %d) is stopped" % pids[0])
    assert time.monotonic() - stopped < 5 + 6
    assert not any(alive(pid) for pid in pids)


def memory_cgroup(limit):
    """A memory cgroup of this test's own with `limit` bytes: its folder, in whichever version is mounted."""
    name = "flagbench-test-%s" % uuid.uuid4().hex[:8]
    if os.path.isdir("/sys/fs/cgroup/memory"):
        folder, setting = os.path.join("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes"
    else:
        folder, setting = os.path.join("/sys/fs/cgroup", name), "memory.max"
    need(os.geteuid() == 0 and os.access(os.path.dirname(folder), os.W_OK), "root and writable memory cgroups")
    os.mkdir(folder)
    with open(os.path.join(folder, setting), "w") as file:
        file.write(str(limit))
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    "case, arguments, phase",
    [
        ("distilbert", ["--preset", "tiny", "--set", "batch_size=2000"], "warmup"),
        ("llama2-7b-lora", [], "data"),  # the published size: 27 GB of weights
    ],
)
def test_memory_limit(tmp_path, check, case, arguments, phase):
    folder = memory_cgroup(900 * 2**20)
    try:
        # The shell joins the cgroup before it becomes the run.
        script = 'echo $$ > "%s/cgroup.procs"; exec "$0" "$@"' % folder
        command = ["bash", "-c", script, os.sys.executable, "-m", "flagbench_cases", case]
        arguments = [*arguments, "--data", "synthetic", "--steps", "4"]
        check(CaseRun(tmp_path, arguments, command=command).wait(), 5, phase, "OOM")
    finally:
        wait_until(lambda: not open(os.path.join(folder, "cgroup.procs")).read(), 10)
        os.rmdir(folder)


@pytest.mark.parametrize(("number", "stopped_rank"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_interrupted(tmp_path, check, number, stopped_rank):
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS], isolated=False)
    run.wait_for_steps(2, steps=30)
    pids = run.pids()
    if stopped_rank:
        os.kill(pids[1], signal.SIGSTOP)
    run.process.send_signal(number)
    sent = time.monotonic()
    wait_until(lambda: not any(alive(pid) for pid in pids), 5)
    record = check(run.wait(30), 7, "train", number.name)
    assert time.monotonic() - sent < 8
    assert record["status"]["state"] == "interrupted"
    assert record["window"]["steps"] >= 1, "what was measured is kept"
    assert record["metrics"], "what was measured is kept"


def test_a_run_under_nohup_outlives_its_terminal(tmp_path, check):
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    run = CaseRun(tmp_path, ENDLESS, isolated=False, preexec_fn=ignore)
    run.wait_for_steps(1)
    run.process.send_signal(signal.SIGHUP)
    steps = run.readers()[0].progress().steps
    run.wait_for_steps(1, steps=steps + 20)
    run.process.terminate()
    check(run.wait(30), 7, "train", "SIGTERM")


def test_interrupted_while_it_waits_for_node_0(tmp_path, check):
    nowhere = ["--nodes", "2", "--node-rank", "0", "--master", "no-such-node.invalid:%d" % free_port()]
    run = CaseRun(tmp_path, ["--preset", "tiny", *nowhere])
    wait_until(lambda: b"no-such-node" in open("/proc/%d/cmdline" % run.process.pid, "rb").read(), 10)
    wait_until(lambda: handles(run.process.pid, signal.SIGTERM), 30)
    run.process.terminate()
    record = check(run.wait(30), 7, "launch", "SIGTERM")
    assert record["status"]["state"] == "interrupted"


def handles(pid, number):
    """Whether a process has a handler of its own for a signal, by the kernel's mask."""
    with open("/proc/%d/status" % pid) as file:
        mask = next(line.split()[1] for line in file if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_time_limit(tmp_path, check):
    ended = run_case(tmp_path, "--gpus", "2", "--max-minutes", "0.03", *ENDLESS)
    record = check(ended, 6, ended.status["phase"], "--max-minutes")
    assert record["status"]["state"] == "failed"


def test_out_unwritable(tmp_path):
    place = tmp_path / "a-file"
    place.write_text("")
    arguments = ["--preset", "tiny", "--data", "synthetic", "--steps", "1", "--out", str(place / "records")]
    ended = run_case(tmp_path, *arguments)
    assert ended.code == 14
    assert ended.status["state"] == "ok", "it was measured"
    assert str(place) in ended.stderr
    assert "fix:" in ended.stderr


def test_out_disk_full(tmp_path, tiny_tmpfs):
    (tiny_tmpfs / "filler").write_bytes(b"x" * 60 * 1024)
    arguments = ["--preset", "tiny", "--data", "synthetic", "--steps", "30", "--out", str(tiny_tmpfs)]
    ended = run_case(tmp_path, *arguments)
    assert (ended.code, ended.status["state"]) == (14, "ok")
    assert "No space left" in ended.stderr
    assert os.listdir(str(tiny_tmpfs)) == ["filler"], "no partial output was left; run again"


def test_spool_disk_full(tmp_path, tiny_tmpfs, check):
    arguments = ["--preset", "tiny", "--data", "synthetic", "--steps", "100000"]
    ended = run_case(tiny_tmpfs, *arguments)
    check(ended, 4, "data", "No space left")


def test_reader_gone(tmp_path):
    arguments = ["--preset", "tiny", "--data", "synthetic", "--steps", "1", "--out", str(tmp_path)]
    run = CaseRun(tmp_path, arguments, isolated=False)
    run.process.stdout.close()
    run.process.stdout = None
    _, stderr = run.process.communicate(timeout=120)
    assert run.process.returncode == 0, "the run's own: its record is kept"
    assert "stdout" in stderr
    assert written_to(tmp_path)["status"]["state"] == "ok", "--out still has it"


def test_stdout_closed(tmp_path):
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "flagbench_cases", "distilbert"]
    arguments = ["--preset", "tiny", "--data", "synthetic", "--steps", "1", "--out", str(tmp_path)]
    ended = run_case(tmp_path, *arguments, command=command)
    assert (ended.code, ended.lines) == (0, []), "the run's own: its record is kept"
    assert "stdout" in ended.stderr
    assert written_to(tmp_path)["status"]["state"] == "ok", "--out still has it"


def written_to(folder):
    """The one record in an --out folder."""
    (name,) = [name for name in os.listdir(str(folder)) if name.endswith(".json")]
    return json.loads((folder / name).read_text())


def test_parent_killed_leaves_no_process(tmp_path):
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS])
    run.wait_for_steps(2)
    pids = run.pids()
    run.process.kill()
    run.process.communicate(timeout=30)
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)
