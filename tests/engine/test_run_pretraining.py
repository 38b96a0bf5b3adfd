"""Llama2-70B, whose model is split over layers' parts and stages, trained for real: to its end, refused, failing."""

import json
import os
import shutil
import signal
import sys
import time

import jsonschema
import pytest

from flagbench_cases.cases.llama2_70b import data, indexed
from flagbench_cases.shared.config import load_case
from running import ENDLESS, CaseRun, alive, assert_agrees, need_megatron, run_case, wait_until

pytestmark = pytest.mark.image

COMMAND = [sys.executable, "-m", "flagbench_cases", "llama2-70b"]
STAGES = ["--gpus", "2", "--set", "pp=2"]
FIRST, LAST = (0, "rank 0 (tp 0, pp 0, dp 0)"), (1, "rank 1 (tp 0, pp 1, dp 0)")
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")


@pytest.fixture(scope="module")
def megatron():
    """Megatron-Core, or a skipped test."""
    need_megatron()


def check_ok(ended, schema):
    record = ended.record
    jsonschema.Draft202012Validator(schema).validate(record)
    assert (ended.code, record["case"], record["status"]["state"]) == (0, "llama2-70b", "ok"), ended.stderr
    checks = {check["name"]: check["ok"] for check in record["quality"]["checks"]}
    assert {"precision", "loss_finite", "parameters_finite", "rates_in_order", "steps"} <= set(checks)
    assert all(checks.values()), record["quality"]["checks"]
    groups = load_case("llama2-70b")["condition_groups"].values()
    assert sorted(record["conditions"]) == sorted(name for names in groups for name in names)
    return record


def values(record):
    """The metrics of a record."""
    return {metric["name"]: metric["value"] for metric in record["metrics"]}


def losses(record):
    """The losses of a record's curve, which has every step of a short run."""
    return [loss for _, loss in record["quality"]["loss_curve"]]


# To its end


def test_four_ranks_train_one_model(megatron, tmp_path, record_schema):
    """Two parts of every layer, two stages. The loss is that of the last stage; rank 0 counts."""
    arguments = ["--preset", "tiny", "--gpus", "4", "--set", "tp=2", "--set", "pp=2", "--steps", "5"]
    record = check_ok(run_case(tmp_path, *arguments, "--precision", "fp32", command=COMMAND), record_schema)
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
    with open(os.path.join(GOLDEN, "llama2_70b_losses.json"), encoding="utf-8") as file:
        wanted = json.load(file)["losses"]
    assert losses(record) == pytest.approx(wanted[:10], abs=5e-5)
    assert_agrees(record)


@pytest.mark.long
def test_two_replicas_learn_the_shipped_stories(megatron, tmp_path, record_schema):
    faster = ["--precision", "fp32", "--set", "micro_batch_size=8"]
    ended = run_case(tmp_path, "--preset", "tiny", "--gpus", "2", *faster, command=COMMAND)
    record = check_ok(ended, record_schema)
    checks = {check["name"]: check["ok"] for check in record["quality"]["checks"]}
    assert {"learned", "ranks_in_step"} <= set(checks)
    assert record["conditions"]["layout"] == "dp2 tp1 pp1"
    assert record["conditions"]["gradient_accumulation_steps"] == 1
    assert (record["work"]["steps"], record["work"]["samples_executed"]) == (960 // 16, 960)
    assert record["quality"]["training"]["learning_rate"] == pytest.approx(4e-4, rel=1e-3)
    assert {"p_whole", "e2e_time", "loss"} <= set(values(record))


# Refused before a rank is started


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--gpus", "3", "--set", "pp=3"], ["pp 3", "model.layers", "4"]),
        (["--gpus", "3", "--set", "tp=3"], ["tp 3", "model.heads", "8"]),
        (["--gpus", "8", "--set", "tp=8"], ["tp 8", "model.kv_heads", "4"]),
        (["--gpus", "2", "--set", "tp=2", "--set", "pp=2"], ["2 ranks", "tp 2 x pp 2"]),
        (["--set", "pp=0"], ["pp", "0"]),
        (["--set", "recompute=some"], ["recompute", "some"]),
        (["--precision", "fp16"], ["FP16", "CPU"]),
        (["--division", "tuned"], ["tuned"]),
    ],
)
def test_usage(tmp_path, record_schema, arguments, words):
    ended = run_case(tmp_path, "--preset", "tiny", *arguments, command=COMMAND)
    jsonschema.Draft202012Validator(record_schema).validate(ended.record)
    status = ended.status
    assert (ended.code, status["exit_code"], status["phase"]) == (2, 2, "usage")
    assert all(word in status["reason"] for word in words), status["reason"]
    assert status["remedy"]
    assert ended.record["ranks"] == []


def check_failed(ended, schema, code, phase):
    """The reason, from a valid record; no process is left."""
    record = ended.record
    jsonschema.Draft202012Validator(schema).validate(record)
    status = record["status"]
    assert (ended.code, status["exit_code"], status["phase"]) == (code, code, phase), (status, ended.stderr)
    assert status["remedy"]
    assert not any(alive(rank["pid"]) for rank in record["ranks"])
    return status["reason"]


def test_a_batch_that_does_not_divide(megatron, tmp_path, record_schema):
    ended = run_case(tmp_path, "--preset", "tiny", "--set", "micro_batch_size=3", command=COMMAND)
    assert "batch_size 8 is not a multiple of micro_batch_size 3" in check_failed(
        ended, record_schema, 2, ended.status["phase"]
    )


def test_a_corrupt_index(megatron, tmp_path, record_schema):
    """Its file is named; the checksums of a prepared folder are not needed to find it."""
    from flagbench_cases.prepare.writer import writing

    with writing(str(tmp_path / "out"), "llama2-70b", "data") as writer:
        for end in indexed.ENDS:
            shutil.copyfile(os.path.join(data.TINY, indexed.STEM + end), writer.path(indexed.STEM + end))
        with open(writer.path(indexed.STEM + ".idx"), "r+b") as file:
            file.seek(indexed.HEADER.size)
            file.write(b"\x01\x00\x00\x00")
        writer.format(indexed.FORMAT)
    arguments = ["--preset", "tiny", *STAGES, "--data", str(tmp_path / "out"), "--steps", "5"]
    reason = check_failed(run_case(tmp_path, *arguments, command=COMMAND), record_schema, 3, "data")
    assert indexed.STEM + ".idx does not fit" in reason


# Failures of one stage


@pytest.fixture
def endless(megatron, tmp_path):
    """`endless(*arguments)`: a run without an end, of two stages, in its measured steps."""

    def begin(*arguments):
        run = CaseRun(tmp_path, [*ENDLESS, *STAGES, *arguments], isolated=False, command=COMMAND)
        run.wait_for_steps(2, steps=10)
        return run

    return begin


@pytest.mark.parametrize("rank, name", [FIRST, LAST], ids=["first", "last"])
def test_a_killed_stage_is_named(endless, record_schema, rank, name):
    run = endless()
    os.kill(run.pids()[rank], signal.SIGKILL)
    killed = time.monotonic()
    ended = run.wait(60)
    assert time.monotonic() - killed < 10
    assert name + " was killed by SIGKILL" in check_failed(ended, record_schema, 4, "train")
    assert ended.record["ranks"][rank]["exit"] == "SIGKILL"
    assert ended.record["work"]["steps"] >= 10, "the steps until then are kept"


def test_a_stopped_stage_is_found_within_the_timeout(endless, record_schema):
    rank, name = LAST
    run = endless("--timeout", "5")
    pid = run.pids()[rank]
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    reason = check_failed(run.wait(60), record_schema, 6, "train")
    assert time.monotonic() - stopped < 5 + 6
    assert "no progress for 5 s" in reason
    assert "%s (process %d) is stopped" % (name, pid) in reason


def test_sigterm_ends_it_within_3_seconds(endless, record_schema):
    run = endless()
    pids = run.pids()
    run.process.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    wait_until(lambda: run.process.poll() is not None, 3)
    assert time.monotonic() - sent < 3
    ended = run.wait(5)
    assert "SIGTERM" in check_failed(ended, record_schema, 7, "train")
    assert ended.status["state"] == "interrupted"
    assert ended.record["work"]["steps"] >= 10, "the steps until then are kept"
    assert not any(alive(pid) for pid in pids)


def test_a_loss_that_is_not_finite_ends_it(megatron, tmp_path, record_schema):
    """The last stage has it; the first one waits for it in vain and is not blamed."""
    arguments = ["--preset", "tiny", *STAGES, "--steps", "100", "--precision", "fp32"]
    rates = ["--set", "learning_rate=1e38", "--set", "schedule_samples=100000"]
    ended = run_case(tmp_path, *arguments, *rates, command=COMMAND)
    reason = check_failed(ended, record_schema, 12, ended.status["phase"])
    assert "the loss of step" in reason
    assert "nan" in reason or "inf" in reason
