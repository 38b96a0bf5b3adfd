"""Cases whose model is split over layers' parts and stages, run for real: to their end, and failing.

Llama2-70B trains, Aquila-33B infers.
"""

import json
import os
import signal

import pytest

from running import ENDLESS, CaseRun, run_case

pytestmark = pytest.mark.image

TRAINS, INFERS = "llama2-70b", "aquila-33b"
TINY = ["--preset", "tiny", "--gpus", "2"]
STAGES = ["--set", "pp=2"]
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")


def golden(case):
    """The losses of a case's steps."""
    with open(os.path.join(GOLDEN, case.replace("-", "_") + "_losses.json"), encoding="utf-8") as file:
        return json.load(file)


def values(record):
    """The metrics of a record."""
    return {metric["name"]: metric["value"] for metric in record["metrics"]}


# To its end


@pytest.mark.old_torch
def test_four_ranks_train_one_model(megatron, tmp_path):
    """Two parts of every layer, two stages. The loss is that of the last stage; rank 0 counts."""
    arguments = ["--preset", "tiny", "--gpus", "4", "--set", "tp=2", "--set", "pp=2", "--steps", "5"]
    run = run_case(tmp_path, *arguments, "--precision", "fp32", case=TRAINS)
    record = run.ok(TRAINS)
    assert not any(word in run.stderr for word in ("deprecated", "cache")), "advice that no user can follow"
    conditions, work = record["conditions"], record["work"]
    assert (conditions["layout"], conditions["data"], conditions["precision"]) == ("dp1 tp2 pp2", "shipped", "fp32")
    assert (conditions["batch_size"], conditions["gradient_accumulation_steps"]) == (2, 4)
    assert (record["window"]["steps"], work["steps"]) == (5, 10)
    assert (work["samples_executed"], work["tokens_executed"]) == (10 * 8, 10 * 8 * 64)
    assert len(record["ranks"]) == 4
    training = record["quality"]["training"]
    assert (training["updates"], training["skipped_steps"]) == (10, 0)
    assert training["predicted_bubble"] == pytest.approx(1 / 5)
    found = values(record)
    assert found["tokens_per_second_per_device"] == pytest.approx(found["p_train"] / 4)
    assert {"p_core_host", "p_train", "mem_peak"} <= set(found)
    losses = [loss for _, loss in record["quality"]["loss_curve"]]
    assert losses == pytest.approx(golden(TRAINS)["losses"][:10], abs=5e-5)


@pytest.mark.long
def test_two_replicas_learn_the_shipped_stories(megatron, tmp_path):
    faster = ["--precision", "fp32", "--set", "micro_batch_size=8"]
    record = run_case(tmp_path, *TINY, *faster, case=TRAINS).ok(TRAINS)
    assert {"learned", "ranks_in_step"} <= {check["name"] for check in record["quality"]["checks"]}
    assert record["conditions"]["layout"] == "dp2 tp1 pp1"
    assert record["conditions"]["gradient_accumulation_steps"] == 1
    assert (record["work"]["steps"], record["work"]["samples_executed"]) == (960 // 16, 960)
    assert record["quality"]["training"]["learning_rate"] == pytest.approx(4e-4, rel=1e-3)
    assert {"p_whole", "e2e_time", "loss"} <= set(values(record))


@pytest.mark.old_torch
def test_two_ranks_score_the_shipped_set_with_one_model(megatron, tmp_path):
    record = run_case(tmp_path, *TINY, "--precision", "fp32", case=INFERS).ok(INFERS)
    assert [check["name"] for check in record["quality"]["checks"]].count("evaluated") == 1
    conditions, metrics, work = record["conditions"], values(record), record["work"]
    assert (conditions["layout"], conditions["data"], conditions["weights"]) == ("dp1 tp2 pp1", "shipped", "shipped")
    assert (conditions["precision"], conditions["stop_rule"]) == ("fp32", "the whole set once")
    speeds = {"p_infer_core", "p_infer_core_host", "p_infer_core_useful", "p_infer_whole"}
    assert set(metrics) - {"mfu_measured"} == {*speeds, "e2e_time", "loss", "mem_peak"}
    assert metrics["p_infer_core_useful"] < metrics["p_infer_core"]
    assert metrics["loss"] == pytest.approx(golden(INFERS)["losses"][-1], abs=5e-5)
    # One rank of two counts.
    assert (work["steps"], work["samples_executed"], work["tokens_executed"]) == (64, 64, 64 * 128)
    assert work["tokens_useful"] == record["quality"]["data"]["tokens"] - 64
    assert len(record["ranks"]) == 2
    assert "megatron-core" in record["software"]["packages"]


def test_a_window_in_bf16_of_two_replicas(megatron, tmp_path):
    arguments = [*TINY, "--set", "tp=1", "--data", "synthetic", "--steps", "10", "--set", "vocabulary_padding=zeros"]
    record = run_case(tmp_path, *arguments, case=INFERS).ok(INFERS)
    assert (record["window"]["steps"], record["work"]["steps"]) == (10, 15)
    assert record["work"]["samples_executed"] == 30
    assert not {"p_infer_whole", "e2e_time", "loss"} & set(values(record))
    conditions = record["conditions"]
    assert (conditions["layout"], conditions["precision"]) == ("dp2 tp1 pp1", "bf16")
    assert (conditions["data"], conditions["weights"]) == ("synthetic", "random")
    assert conditions["vocabulary_padding"] == "zeros"


# Failures of one part


@pytest.fixture
def endless(megatron, tmp_path):
    """`endless(case, *arguments)`: a run of two ranks without an end, in its measured steps."""

    def begin(case, *arguments):
        split = STAGES if case == TRAINS else []
        run = CaseRun(tmp_path, ["--gpus", "2", *split, *ENDLESS, *arguments], isolated=False, case=case)
        run.wait_for_steps(2, steps=20)
        return run

    return begin


def assert_kept(record):
    """What was measured until the run ended; of a pass that is not complete, nothing over all of it."""
    assert record["work"]["steps"] >= 20
    section = record["config"].get("train") or record["config"]["infer"]
    assert record["window"]["steps"] == record["work"]["steps"] - section["warmup_steps"]
    assert not {"p_whole", "p_infer_whole", "e2e_time"} & set(values(record))
    assert all(value > 0 for name, value in values(record).items() if name.startswith("p_"))


def test_a_killed_part_is_named(endless):
    run = endless(TRAINS)
    os.kill(run.pids()[1], signal.SIGKILL)
    record = run.wait().failed(4, "train", "rank 1 (tp 0, pp 1, dp 0)", "SIGKILL")
    assert record["ranks"][1]["exit"] == "SIGKILL"
    assert_kept(record)


def test_sigterm_ends_a_pass(endless):
    run = endless(INFERS)
    run.process.send_signal(signal.SIGTERM)
    assert_kept(run.wait().failed(7, "infer", "SIGTERM"))


@pytest.mark.old_torch
def test_a_loss_that_is_not_finite_ends_it(megatron, tmp_path):
    """The last stage has it; the first one waits for it in vain and is not blamed."""
    rates = ["--set", "learning_rate=1e38", "--set", "schedule_samples=100000", "--precision", "fp32"]
    ended = run_case(tmp_path, *TINY, *STAGES, "--steps", "100", *rates, case=TRAINS)
    ended.failed(12, None, "the loss of step")
