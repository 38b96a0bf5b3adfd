"""Runs that look as if they went well: a rank that leaves with exit 0, a check that fails, a loss that is NaN."""

import glob
import json
import os
import shutil
import sys
import time

import jsonschema
import pytest

from faults import fault
from flagbench_cases.cases import distilbert
from running import ENDLESS, CaseRun, alive, wait_until

pytestmark = pytest.mark.image

# How long a parent may take to end a run once a rank has left it.
SECONDS = 15.0
SHORT = ["--preset", "tiny", "--data", "synthetic", "--steps", "20"]


def check_failed(record, schema, code, phase):
    jsonschema.Draft202012Validator(schema).validate(record)
    status = record["status"]
    assert (status["state"], status["exit_code"], status["phase"]) == ("failed", code, phase), status
    assert status["remedy"]
    return status["reason"]


def test_one_of_two_ranks_that_leaves_before_it_has_joined(tmp_path, record_schema):
    """The other would wait for it for minutes."""
    env = fault(tmp_path, 1, "start", "os._exit(0)")
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS], isolated=False, env=env)
    left = os.path.join(str(tmp_path), "flagbench-*", "rank-00001.exit")
    wait_until(lambda: glob.glob(left) or run.process.poll() is not None, 120)
    began = time.monotonic()
    ended = run.wait(60)
    assert time.monotonic() - began < SECONDS
    assert ended.code == 4
    assert check_failed(ended.record, record_schema, 4, "init").startswith("rank 1 ended with exit 0 on node 0")


def test_a_rank_that_closes_its_group_and_leaves_is_named_rather_than_its_peer(tmp_path, record_schema):
    leave = "import torch.distributed as d; d.destroy_process_group(); os._exit(0)"
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS], isolated=False, env=fault(tmp_path, 0, 30, leave))
    ended = run.wait(120)
    assert ended.code == 4
    reason = check_failed(ended.record, record_schema, 4, "train")
    assert reason.startswith("rank 0 ended with exit 0 on node 0, in phase train after 30 steps")
    assert ended.record["ranks"][0]["exit"] == "exit 0"
    assert ended.record["window"]["steps"] >= 1, "the steps until then are kept"
    assert not any(alive(rank["pid"]) for rank in ended.record["ranks"])


def test_the_last_word_counts_and_the_record_is_kept_where_nobody_reads(tmp_path, record_schema):
    """A rank that trained every step and leaves before it says that it is done; stdout is full, stderr gone."""
    noise = "sys.stderr.write('x' * 200000); sys.stderr.flush(); print('x' * 200000, flush=True); os._exit(0)"
    out = tmp_path / "out"
    command = ["bash", "-c", 'exec "$@" >/dev/full 2> >(head -c 1 >/dev/null)', "bash", sys.executable]
    command += ["-m", "flagbench_cases", "distilbert"]
    env = fault(tmp_path, 0, "before done", noise)
    ended = CaseRun(tmp_path, [*SHORT, "--out", str(out)], isolated=False, command=command, env=env).wait()
    assert (ended.code, ended.lines) == (4, []), "the run's own code: its record is kept"
    (name,) = out.glob("*.json")
    record = json.loads(name.read_text())
    assert "exit 0" in check_failed(record, record_schema, 4, "report")
    assert record["window"]["steps"] == 20


EVALUATION = """
import flagbench_cases.cases.distilbert.workload as w
w.DistilBertWorkload.evaluate = lambda self, last: os._exit(0)
"""


@pytest.mark.parametrize(
    ("at", "action", "phase"),
    [("before warmup", "os._exit(0)", "data"), (5, "os._exit(0)", "warmup"), ("before eval", EVALUATION, "eval")],
    ids=["data", "warmup", "eval"],
)
def test_a_rank_that_leaves_in_any_phase_has_failed(tmp_path, record_schema, at, action, phase):
    real = ["--preset", "tiny", "--data", os.path.join(os.path.dirname(distilbert.__file__), "tiny")]
    arguments = real if phase == "eval" else SHORT
    ended = CaseRun(tmp_path, arguments, isolated=False, env=fault(tmp_path, 0, at, action)).wait(120)
    assert ended.code == 4
    reason = check_failed(ended.record, record_schema, 4, phase)
    assert reason.startswith("rank 0 ended with exit 0 on node 0, in phase %s after" % phase)
    assert not glob.glob(os.path.join(str(tmp_path), "flagbench-*"))


def test_a_spool_that_somebody_removes_ends_the_run(tmp_path, record_schema):
    run = CaseRun(tmp_path, ENDLESS, isolated=False)
    run.wait_for_steps(1)
    pids = run.pids()
    (folder,) = glob.glob(os.path.join(str(tmp_path), "flagbench-*"))
    shutil.rmtree(folder)
    began = time.monotonic()
    ended = run.wait(60)
    assert time.monotonic() - began < SECONDS
    assert ended.code == 4
    assert "spool" in check_failed(ended.record, record_schema, 4, "launch")
    assert not any(alive(pid) for pid in pids)


INFINITE = """
import itertools, flagbench_cases.cases.distilbert.workload as w
def step(self, batch, count=itertools.count(20), real=w.DistilBertWorkload.step):
    self.number = next(count)
    return real(self, batch) * (1.0 if 22 <= self.number < 30 else float("inf"))
w.DistilBertWorkload.step = step
w.DistilBertWorkload.scaler_skipped = lambda self: getattr(self, "number", 30) < 22
"""


def test_a_loss_of_one_rank_that_is_not_finite_ends_the_run_unless_the_scaler_skips_the_step(tmp_path, record_schema):
    """Two steps without a finite loss that the scaler skips, and later one that it does not."""
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS], isolated=False, env=fault(tmp_path, 1, 20, INFINITE))
    ended = run.wait(120)
    assert ended.code == 12
    reason = check_failed(ended.record, record_schema, 12, "train")
    assert reason.startswith("rank 1: the loss of step 30 is inf")
    assert ended.record["ranks"][1]["steps"] == 31
    assert {"p_core", "p_train"} <= {metric["name"] for metric in ended.record["metrics"]}


def test_a_check_that_fails_makes_the_run_fail_and_keeps_its_metrics(tmp_path, record_schema):
    """The parameters of one rank are not the others'."""
    other = "sys.modules['flagbench_cases.rank.run'].parameter_sum = lambda module: 1.0"
    run = CaseRun(tmp_path, ["--gpus", "2", *SHORT], isolated=False, env=fault(tmp_path, 1, "before report", other))
    ended = run.wait()
    assert ended.code == 12
    assert "ranks_in_step" in check_failed(ended.record, record_schema, 12, "report")
    assert "error: " in ended.stderr
    checks = {check["name"]: check["ok"] for check in ended.record["quality"]["checks"]}
    assert [name for name, ok in checks.items() if not ok] == ["ranks_in_step"]
    assert {"p_core", "p_train", "loss"} <= {metric["name"] for metric in ended.record["metrics"]}
