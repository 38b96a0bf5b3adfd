"""`flagbench run` for real: a case is trained, its record kept, and the published row shown beside it."""

import json
import os
import signal
import subprocess
import sys

import pytest

from flagbench_cases.shared.spool import SpoolReader
from running import alive, wait_until

pytestmark = pytest.mark.image

COMMAND = [sys.executable, "-m", "flagbench"]
SHORT = ["run", "distilbert:cpu", "--preset", "tiny", "--data", "synthetic", "--steps", "20"]


@pytest.fixture
def begin(environment):
    """`begin(*arguments)`: the tool in the background; what still runs after the test is killed, ranks too."""
    runs = []

    def start(*arguments):
        pipe = subprocess.PIPE
        runs.append(subprocess.Popen([*COMMAND, *arguments], env=environment, stdout=pipe, stderr=pipe, text=True))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()
        run.communicate()


def stored(flagbench):
    """The newest record of the store, read through the tool."""
    shown = flagbench("results", "show", "last", "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def test_a_run_prints_the_table_that_verify_shows(flagbench):
    ended = flagbench(*SHORT, "--gpus", "2", "--via", "native")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == flagbench("verify", "last").stdout
    assert "checks passed" not in ended.stderr, "the image's own answer would be a second one"
    assert ended.stdout.startswith("NOT_COMPARABLE: ")
    assert "NVIDIA A100-SXM4-40GB" in ended.stdout
    verdict = flagbench("verify", "last", "--json")
    assert verdict.returncode == 10
    differing = {c["name"] for c in json.loads(verdict.stdout)["conditions"] if c["agreement"] == "differs"}
    assert {"device_model", "devices", "model", "sequence_length", "precision"} <= differing


def test_a_series_is_kept_and_verified_as_a_whole(flagbench):
    short = [*SHORT[:-1], "2", "--repeat", "2", "--name", "mine", "--json"]
    ended = flagbench(*short)
    assert ended.returncode == 0, ended.stderr
    series = json.loads(ended.stdout)
    assert [(run["run_id"], run["state"]) for run in series["runs"]] == [("mine-1", "ok"), ("mine-2", "ok")]
    assert len({run["seed"] for run in series["runs"]}) == 2
    verdict = flagbench("verify", "mine", "--json")
    assert verdict.returncode == 10, verdict.stderr
    (held,) = json.loads(verdict.stdout)["series"]
    assert (held["held"], held["left_out"], held["problems"]) == (2, [], [])
    assert stored(flagbench)["launch"]["seconds"] == series["runs"][1]["seconds"]


def test_a_failed_run_is_kept_too(flagbench, tmp_path):
    """A folder that exists but has no data: only the run finds that."""
    (tmp_path / "empty").mkdir()
    ended = flagbench(*SHORT, "--data", str(tmp_path / "empty"))
    assert ended.returncode == 3, ended.stderr
    record = stored(flagbench)
    assert (record["status"]["state"], record["status"]["exit_code"]) == ("failed", 3)
    assert flagbench("verify", "last").returncode == 12


def test_a_record_that_could_not_be_stored_is_printed(flagbench, tmp_path):
    (tmp_path / "results" / "v1").mkdir(parents=True)
    (tmp_path / "results" / "v1" / "case=distilbert").write_text("")
    ended = flagbench(*SHORT, "--store", str(tmp_path))
    assert ended.returncode == 14
    assert "fix:" in ended.stderr
    assert json.loads(ended.stdout)["status"]["state"] == "ok", "what was measured is printed all the same"


def test_what_the_image_stores_the_host_reads(environment, flagbench, tmp_path):
    store = tmp_path / "shared"
    command = [sys.executable, "-m", "flagbench_cases", "distilbert", *SHORT[2:], "--store", "file://%s" % store]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    shown = flagbench("results", "show", "last", "--json", "--store", str(store))
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == json.loads(printed)


def test_out_of_processes(flagbench, limited):
    """The tool itself can start none."""
    ended = flagbench(*SHORT, command=limited("pids", 1, *COMMAND))
    assert ended.returncode == 4, ended.stderr
    assert "pids.max" in ended.stderr


def ranks(tmp_path):
    """The processes of the ranks that have begun to train."""
    spool = tmp_path / "spool"
    folders = [os.path.join(str(spool), name) for name in os.listdir(str(spool)) if name.startswith("flagbench-")]
    readers = [SpoolReader(folder, rank) for folder in folders for rank in range(2)]
    progress = [reader.progress() for reader in readers]
    if len(progress) != 2 or not all(p is not None and p.steps > 2 for p in progress):
        return []
    return [f["pid"] for reader in readers for f in reader.facts() if f["kind"] == "rank"]


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 7), (signal.SIGKILL, None)])
def test_signals_reach_the_run(flagbench, begin, tmp_path, number, code):
    run = begin(*SHORT[:-1], "1000000", "--gpus", "2")
    wait_until(lambda: ranks(tmp_path) or run.poll() is not None, 120)
    pids = ranks(tmp_path)
    assert pids
    run.send_signal(number)
    run.communicate(timeout=30)
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)
    if code is not None:
        assert run.returncode == code
        assert stored(flagbench)["status"]["state"] == "interrupted"


@pytest.mark.parametrize(
    ("number", "code", "reason"), [(signal.SIGKILL, 4, "SIGKILL"), (signal.SIGSTOP, 6, "no progress")]
)
def test_an_entrypoint_killed_or_frozen_still_leaves_a_record(flagbench, begin, tmp_path, number, code, reason):
    """The host writes it: nobody else is left who could."""
    run = begin(*SHORT[:-1], "1000000", "--gpus", "2", "--timeout", "2")
    wait_until(lambda: ranks(tmp_path) or run.poll() is not None, 120)
    pids = ranks(tmp_path)
    with open("/proc/%d/task/%d/children" % (run.pid, run.pid)) as file:
        (entrypoint,) = file.read().split()
    os.kill(int(entrypoint), number)
    run.communicate(timeout=30)
    assert run.returncode == code
    record = stored(flagbench)
    assert reason in record["status"]["reason"]
    assert record["metrics"] == []
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)
