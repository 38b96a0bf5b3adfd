"""Runs that look as if they went well: a rank that leaves with exit 0, a check that fails, a loss that is NaN."""

import glob
import json
import os
import shutil
import sys

import pytest

from faults import fault
from running import ENDLESS, CaseRun, alive, run_case

pytestmark = [pytest.mark.image, pytest.mark.old_torch]

SHORT = ["--preset", "tiny", "--data", "synthetic", "--steps", "20"]


def test_a_rank_that_leaves_before_it_has_joined(tmp_path):
    """The other one would wait for it for ten minutes, longer than a test waits for a run."""
    env = fault(tmp_path, 1, "start", "os._exit(0)")
    ended = run_case(tmp_path, "--gpus", "2", *ENDLESS, env=env)
    ended.failed(4, "launch", "rank 1 ended with exit 0 on node 0")


def test_a_rank_that_closes_its_group_and_leaves_is_named(tmp_path):
    """Rather than its peer."""
    leave = "import torch.distributed as d; d.destroy_process_group(); os._exit(0)"
    ended = run_case(tmp_path, "--gpus", "2", *ENDLESS, env=fault(tmp_path, 0, 30, leave))
    record = ended.failed(4, "train", "rank 0 ended with exit 0 on node 0, in phase train after 30 steps")
    assert record["ranks"][0]["exit"] == "exit 0"
    assert record["window"]["steps"] >= 1, "the steps until then are kept"


def test_the_record_is_kept_where_nobody_reads(tmp_path):
    """A rank that trained every step and leaves before it says that it is done; stdout is full, stderr gone."""
    noise = "sys.stderr.write('x' * 200000); sys.stderr.flush(); print('x' * 200000, flush=True); os._exit(0)"
    out = tmp_path / "out"
    command = ["bash", "-c", 'exec "$@" >/dev/full 2> >(head -c 1 >/dev/null)', "bash", sys.executable]
    command += ["-m", "flagbench_cases", "distilbert"]
    env = fault(tmp_path, 0, "before done", noise)
    ended = run_case(tmp_path, *SHORT, "--out", str(out), command=command, env=env)
    assert (ended.code, ended.lines) == (4, []), "the run's own code: its record is kept"
    (name,) = out.glob("*.json")
    record = json.loads(name.read_text())
    assert (record["status"]["exit_code"], record["status"]["phase"]) == (4, "report")
    assert "exit 0" in record["status"]["reason"]
    assert record["window"]["steps"] == 20


def test_a_spool_that_somebody_removes_ends_the_run(tmp_path):
    run = CaseRun(tmp_path, ENDLESS, isolated=False)
    run.wait_for_steps(1)
    pids = run.pids()
    (folder,) = glob.glob(os.path.join(str(tmp_path), "flagbench-*"))
    shutil.rmtree(folder)
    run.wait().failed(4, "launch", "spool")
    assert not any(alive(pid) for pid in pids)


INFINITE = """
import itertools, flagbench_cases.cases.distilbert.workload as w
def step(self, batch, count=itertools.count(20), real=w.DistilBertWorkload.step):
    self.number = next(count)
    return real(self, batch) * (1.0 if 22 <= self.number < 30 else float("inf"))
w.DistilBertWorkload.step = step
w.DistilBertWorkload.scaler_skipped = lambda self: getattr(self, "number", 30) < 22
"""


def test_a_loss_of_one_rank_that_is_not_finite_ends_the_run(tmp_path):
    """Unless the loss scaler skips the step: two such steps come before the one that it does not skip."""
    ended = run_case(tmp_path, "--gpus", "2", *ENDLESS, env=fault(tmp_path, 1, 20, INFINITE))
    record = ended.failed(12, "train", "rank 1: the loss of step 30 is inf")
    assert record["ranks"][1]["steps"] == 31
    assert {"p_core", "p_train"} <= {metric["name"] for metric in record["metrics"]}


def test_a_failed_check_makes_the_run_fail_and_keeps_metrics(tmp_path):
    """The parameters of one rank are not the others'."""
    other = "sys.modules['flagbench_cases.contract'].Workload.parameter_sum = lambda self: 1.0"
    ended = run_case(tmp_path, "--gpus", "2", *SHORT, env=fault(tmp_path, 1, "before report", other))
    record = ended.failed(12, "report", "ranks_in_step")
    assert [check["name"] for check in record["quality"]["checks"] if not check["ok"]] == ["ranks_in_step"]
    assert {"p_core", "p_train", "loss"} <= {metric["name"] for metric in record["metrics"]}
