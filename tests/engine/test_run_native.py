"""Runs that end well: one line on stdout, and a record of what was done."""

import gc
import json
import math
import os
import re

import pytest

from faults import fault
from flagbench_cases.shared.interpreter import STARTING
from running import ENTRYPOINTS, run_case

pytestmark = pytest.mark.image

SHORT = ["--preset", "tiny", "--data", "synthetic", "--steps", "1"]


def metrics(record):
    return {metric["name"]: metric for metric in record["metrics"]}


@pytest.mark.old_torch
def test_two_ranks_print_one_valid_record(tmp_path):
    ended = run_case(tmp_path, "--gpus", "2", "--preset", "tiny", "--data", "synthetic", "--steps", "40")
    record = ended.ok("distilbert")
    assert record["work"]["samples_executed"] == 50 * 2 * record["config"]["train"]["batch_size"]
    assert record["window"]["steps"] == 40
    found = metrics(record)
    seconds = sum(record["window"]["step_seconds"])
    assert found["p_core"]["value"] == pytest.approx(record["window"]["samples"] / seconds)
    # Forty steps of two busy processes say nothing certain.
    assert "shorter than 100" in found["p_core"]["ci_reason"]
    assert "acc" not in found, "nothing was evaluated, so nothing is said"
    assert record["conditions"]["data"] == "synthetic"
    assert record["conditions"]["weights"] == "random"
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1]
    assert all(rank["first_collective_median"] > 0 for rank in record["ranks"])
    assert record["telemetry"] is not None
    assert not [name for name in os.listdir(str(tmp_path)) if name.startswith("flagbench-")], "the spool is removed"
    *_, speed, loss, checks, following = ended.stderr.splitlines()
    assert re.match(r"flagbench: p_core [0-9.,]+ samples/s, without a 95 % interval: .*shorter than 100", speed)
    assert loss.startswith("flagbench: loss %.4g, mean " % found["loss"]["value"])
    assert checks == "flagbench: all %d checks passed" % len(record["quality"]["checks"])
    assert following.endswith("`flagbench verify record.json`")


@pytest.mark.long
def test_published_run_evaluates_and_stops(tmp_path):
    """The whole published rule on the shipped set, cut to one epoch."""
    record = run_case(tmp_path, "--gpus", "2", "--preset", "tiny", "--set", "max_epochs=1").ok("distilbert")
    assert record["conditions"]["data"] == "shipped"
    assert record["quality"]["converged"] is False
    assert record["telemetry"]["samples"] >= 1
    assert [e["epoch"] for e in record["quality"]["evaluations"]] == [-1, 0]
    found = metrics(record)
    assert {"p_core", "p_core_host", "p_train", "p_whole", "e2e_time", "acc", "loss", "mem_peak"} <= set(found)
    assert found["e2e_time"]["value"] >= record["timing"]["train"]
    assert all(math.isfinite(metric["value"]) for metric in record["metrics"])


def test_what_base_images_do_changes_nothing(tmp_path):
    """Every Python process of the run writes a banner to descriptor 1, as NCCL does, and a variable of NGC images
    allows TF32, which on torch 1.12 beats code."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import os; os.write(1, b'BANNER\\n')\n")
    path = os.pathsep.join([str(tmp_path / "site"), ENTRYPOINTS])
    env = {"PYTHONPATH": path, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    ended = run_case(tmp_path, *SHORT, isolated=True, env=env)
    assert ended.lines[0] == "BANNER", "the parent's own interpreter start comes before us"
    assert ended.stderr.count("BANNER") >= 2, "sampler and rank"
    record = json.loads(ended.lines[1])
    assert (record["status"]["state"], record["software"]["precision"]["matmul_allow_tf32"]) == ("ok", False)
    assert len(ended.lines) == 2


@pytest.mark.old_torch
@pytest.mark.parametrize("at, expected", [("before data", STARTING), (1, gc.get_threshold()[0])])
def test_garbage_is_collected_as_usual_once_steps_begin(tmp_path, at, expected):
    """As in the publisher's loop; before, while large modules are imported, more rarely."""
    told = tmp_path / "threshold"
    action = "import gc; open(%r, 'w').write(str(gc.get_threshold()[0]))" % str(told)
    assert run_case(tmp_path, *SHORT, env=fault(tmp_path, 0, at, action)).code == 0
    assert int(told.read_text()) == expected
