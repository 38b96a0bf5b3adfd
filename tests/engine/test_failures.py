"""Every way a run can fail, made for real: each leaves one valid record, the right exit code and no process."""

import json
import os
import signal
import sys

import pytest

from flagbench_cases.shared import processes
from running import ENDLESS, CaseRun, alive, run_case, wait_until

pytestmark = pytest.mark.image

SHORT = ["--preset", "tiny", "--data", "synthetic", "--steps", "1"]


@pytest.fixture
def endless(tmp_path):
    """`endless(*arguments)`: a run of two ranks without an end, in its measured steps."""

    def begin(*arguments):
        run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS, *arguments], isolated=False)
        run.wait_for_steps(2, steps=30)
        return run

    return begin


def test_unknown_case(tmp_path):
    record = run_case(tmp_path, case="no such/case\n").failed(2, "usage", "no such/case")
    assert record["case"] == "no-such-case"


def test_a_run_on_the_wrong_hardware_is_not_stored(tmp_path):
    """No machine has that number of devices."""
    store, out = tmp_path / "store", tmp_path / "out"
    arguments = [*SHORT, "--gpus", "17", "--store", str(store), "--out", str(out)]
    ended = run_case(tmp_path, *arguments, env={"FLAGBENCH_STACK": "cuda13"})
    record = ended.failed(13, "preflight", "--gpus 17")
    assert record["bundle"] is None
    assert not [path for path in store.rglob("*") if path.is_file()]
    assert [path.stem for path in out.glob("*.json")] == [record["record_id"]]


def test_data_missing(tmp_path):
    missing = str(tmp_path / "nowhere")
    record = run_case(tmp_path, "--preset", "tiny", "--data", missing).failed(3, "data", missing)
    assert record["ranks"] == [], "none was started for it"


def test_data_wrong(tmp_path):
    for name in ("train_dataset.npz", "eval_dataset.npz"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 cut")
    run_case(tmp_path, "--preset", "tiny", "--data", str(tmp_path)).failed(3, "data", "train_dataset.npz")


@pytest.mark.old_torch
@pytest.mark.parametrize(("rank", "number"), [(1, signal.SIGKILL), (0, signal.SIGTERM)])
def test_rank_killed(endless, rank, number):
    """It is named itself, and not its peer; also rank 0, and also by a signal that asks to stop."""
    run = endless()
    os.kill(run.pids()[rank], number)
    record = run.wait(60).failed(4, "train", "rank %d was killed by %s" % (rank, number.name))
    assert record["ranks"][rank]["exit"] == number.name
    assert record["work"]["steps"] >= 1, "the steps until then are kept"


@pytest.mark.old_torch
def test_rank_stopped(endless):
    run = endless("--timeout", "5")
    pid = run.pids()[0]
    os.kill(pid, signal.SIGSTOP)
    run.wait().failed(6, "train", "5 s", "rank 0 (process %d)" % pid)


def test_facts_emptied_while_it_trains(tmp_path):
    """By what cleans a temporary folder: the rest of the run is no whole run."""
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS[:-1], "80"], isolated=False)
    run.wait_for_steps(2)
    (spool,) = tmp_path.glob("flagbench-*")
    os.truncate(str(spool / "rank-00000.facts"), 0)
    run.wait().failed(4, "launch", "rank 0", "emptied")


@pytest.mark.old_torch
@pytest.mark.long
@pytest.mark.parametrize(
    "case, arguments, phase",
    [
        ("distilbert", ["--preset", "tiny", "--set", "batch_size=2000"], "warmup"),
        ("llama2-7b-lora", ["--preset", "reference"], "data"),  # 27 GB of weights
    ],
)
def test_memory_limit(tmp_path, limited, case, arguments, phase):
    command = limited("memory", 900 * 2**20, sys.executable, "-m", "flagbench_cases", case)
    arguments = [*arguments, "--data", "synthetic", "--steps", "4"]
    CaseRun(tmp_path, arguments, command=command).wait().failed(5, phase, "OOM")


def test_interrupted_while_a_rank_is_stopped(endless):
    run = endless()
    pids = run.pids()
    os.kill(pids[1], signal.SIGSTOP)
    run.process.terminate()
    record = run.wait(30).failed(7, "train", "SIGTERM")
    assert not any(alive(pid) for pid in pids)
    assert record["window"]["steps"] >= 1, "what was measured is kept"
    assert record["metrics"], "what was measured is kept"


def test_a_run_under_nohup_outlives_its_terminal(tmp_path):
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    run = CaseRun(tmp_path, ENDLESS, isolated=False, preexec_fn=ignore)
    run.wait_for_steps(1)
    run.process.send_signal(signal.SIGHUP)
    steps = run.readers()[0].progress().steps
    run.wait_for_steps(1, steps=steps + 20)
    run.process.terminate()
    run.wait(30).failed(7, "train", "SIGTERM")


def test_time_limit(tmp_path):
    run_case(tmp_path, "--gpus", "2", "--max-minutes", "0.03", *ENDLESS).failed(6, None, "limit")


@pytest.mark.parametrize("small_disk", ["size=4k"], indirect=True)  # an empty file fits
def test_out_full(small_disk, tmp_path):
    ended = run_case(tmp_path, *SHORT, "--out", str(small_disk))
    assert (ended.code, ended.status["state"]) == (14, "ok"), "it was measured"
    assert all(word in ended.stderr for word in (str(small_disk), "fix:"))


def test_spool_disk_full(small_disk):
    run_case(small_disk, *SHORT[:-1], "100000").failed(4, "data", "No space left")


def test_a_record_that_cannot_be_printed_is_kept(tmp_path):
    run = CaseRun(tmp_path, [*SHORT, "--out", str(tmp_path)], isolated=False)
    run.process.stdout.close()
    run.process.stdout = None
    _, stderr = run.process.communicate(timeout=120)
    assert run.process.returncode == 0, "the run's own: its record is kept"
    assert "stdout" in stderr
    (name,) = tmp_path.glob("*.json")
    assert json.loads(name.read_text())["status"]["state"] == "ok"


def test_parent_killed_leaves_no_process(tmp_path):
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS])
    run.wait_for_steps(2)
    pids = processes.descendants(run.process.pid)
    assert len(pids) == 4, "the sampler, both ranks, and the host of their store"
    run.process.kill()
    run.process.communicate(timeout=30)
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)
