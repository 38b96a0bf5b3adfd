"""Aquila-33B, whose model is split over ranks, run for real: to its end, refused, and failing."""

import json
import os
import signal
import sys
import time

import jsonschema
import pytest

from flagbench_cases.shared.config import load_case, preset_of
from running import ENDLESS, CaseRun, alive, assert_agrees, need_megatron, run_case, wait_until

pytestmark = pytest.mark.image

COMMAND = [sys.executable, "-m", "flagbench_cases", "aquila-33b"]
TINY = ["--preset", "tiny", "--gpus", "2"]
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")


@pytest.fixture(scope="module")
def megatron():
    """Megatron-Core, or a skipped test."""
    need_megatron()


def values(record):
    """The metrics of a record."""
    return {metric["name"]: metric["value"] for metric in record["metrics"]}


def check_ok(ended, schema):
    record = ended.record
    jsonschema.Draft202012Validator(schema).validate(record)
    assert (ended.code, record["case"], record["status"]["state"]) == (0, "aquila-33b", "ok"), ended.stderr
    checks = {check["name"]: check["ok"] for check in record["quality"]["checks"]}
    assert {"precision", "parameters_finite", "rates_in_order", "steps"} <= set(checks)
    assert all(checks.values()), record["quality"]["checks"]
    groups = load_case("aquila-33b")["condition_groups"].values()
    # The seed is in every record; no published number depends on it.
    assert sorted(record["conditions"]) == sorted(["seed", *(name for names in groups for name in names)])
    assert_agrees(record)
    return record


# To its end


def test_two_ranks_score_the_shipped_set_with_one_model(megatron, tmp_path, record_schema):
    ended = run_case(tmp_path, *TINY, "--precision", "fp32", command=COMMAND)
    record = check_ok(ended, record_schema)
    assert [check["name"] for check in record["quality"]["checks"]].count("evaluated") == 1
    conditions = record["conditions"]
    assert (conditions["layout"], conditions["data"], conditions["weights"]) == ("dp1 tp2 pp1", "shipped", "shipped")
    assert (conditions["precision"], conditions["stop_rule"]) == ("fp32", "the whole set once")
    metrics, work = values(record), record["work"]
    assert set(metrics) - {"mfu_measured"} == {
        "p_infer_core",
        "p_infer_core_host",
        "p_infer_core_useful",
        "p_infer_whole",
        "e2e_time",
        "loss",
        "mem_peak",
    }
    assert metrics["p_infer_core"] * (1 + 1 / record["window"]["steps"]) >= metrics["p_infer_whole"] > 0
    assert metrics["p_infer_core_useful"] < metrics["p_infer_core"]
    with open(os.path.join(GOLDEN, "aquila_33b_losses.json"), encoding="utf-8") as file:
        assert metrics["loss"] == pytest.approx(json.load(file)["mean"], abs=5e-5)
    # One rank of two counts.
    assert (work["steps"], work["samples_executed"], work["tokens_executed"]) == (64, 64, 64 * 128)
    assert work["tokens_useful"] == record["quality"]["data"]["tokens"] - 64
    assert len(record["ranks"]) == 2
    assert "megatron-core" in record["software"]["packages"]


def test_a_window_in_bf16_of_two_replicas(megatron, tmp_path, record_schema):
    arguments = [*TINY, "--set", "tp=1", "--data", "synthetic", "--steps", "10", "--set", "vocabulary_padding=zeros"]
    record = check_ok(run_case(tmp_path, *arguments, command=COMMAND), record_schema)
    assert (record["window"]["steps"], record["work"]["steps"]) == (10, 15)
    assert record["work"]["samples_executed"] == 30
    assert {"p_infer_core", "p_infer_core_host", "p_infer_core_useful", "mem_peak"} <= set(values(record))
    assert not {"p_infer_whole", "e2e_time", "loss"} & set(values(record))
    conditions = record["conditions"]
    assert (conditions["layout"], conditions["precision"]) == ("dp2 tp1 pp1", "bf16")
    assert (conditions["data"], conditions["weights"]) == ("synthetic", "random")
    assert conditions["vocabulary_padding"] == "zeros"


# Refused before a rank is started


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--gpus", "3"], ["tp 3", "model.heads", "16"]),
        (["--gpus", "2", "--set", "tp=4"], ["2 ranks", "tp 4"]),
        (["--gpus", "3", "--set", "tp=2"], ["3 ranks", "tp 2"]),
        (["--set", "tp=16"], ["tp", "16"]),
        (["--precision", "tf32"], ["aquila-33b", "tf32"]),
        (["--precision", "fp16"], ["FP16", "CPU"]),
        (["--set", "vocabulary_padding=ones"], ["vocabulary_padding", "ones"]),
        (["--resume", "/tmp"], ["aquila-33b", "resum"]),
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


def test_weights_of_another_model(megatron, tmp_path, record_schema):
    """A folder prepared for a model with fewer layers."""
    weights = prepared_weights(tmp_path / "made", layers=1)
    ended = run_case(tmp_path, *TINY, "--weights", weights, command=COMMAND)
    jsonschema.Draft202012Validator(record_schema).validate(ended.record)
    assert (ended.code, ended.status["exit_code"], ended.status["phase"]) == (3, 3, "data"), ended.stderr
    assert all(word in ended.status["reason"] for word in ("num_hidden_layers", "1", "2")), ended.status
    assert not any(alive(rank["pid"]) for rank in ended.record["ranks"])


def prepared_weights(folder, nan=None, **changes):
    """Weights of the tiny model, some of its sizes changed or one of its tensors NaN, as `prepare` writes them."""
    from safetensors.torch import save_file

    from flagbench_cases.prepare.llama import convert
    from flagbench_cases.prepare.writer import writing
    from unit.cases.engines.megatron_bench import weights_of

    section = dict(preset_of(load_case("aquila-33b"), "tiny", "faithful")["model"], **changes)
    source, tensors = folder / "source", weights_of(section)
    source.mkdir(parents=True)
    if nan is not None:
        tensors[nan].fill_(float("nan"))
    save_file(tensors, str(source / "model.safetensors"))
    (source / "config.json").write_text(json.dumps(convert.config_of(section)), encoding="utf-8")
    with writing(str(folder), "aquila-33b", "weights") as writer:
        convert.convert(str(source), section, writer, lambda *_: None)
    return str(folder / "weights")


# Failures of one rank of a model


@pytest.fixture
def endless(megatron, tmp_path):
    """`endless(*arguments)`: a run without an end, its model split over both ranks, in its measured steps."""

    def begin(*arguments):
        run = CaseRun(tmp_path, [*ENDLESS, "--gpus", "2", *arguments], isolated=False, command=COMMAND)
        run.wait_for_steps(2, steps=20)
        return run

    return begin


def check_failed(ended, schema, code, phase="infer"):
    """The reason, from a valid record; no process is left."""
    record = ended.record
    jsonschema.Draft202012Validator(schema).validate(record)
    status = record["status"]
    assert (ended.code, status["exit_code"], status["phase"]) == (code, code, phase), (status, ended.stderr)
    assert status["remedy"]
    assert not any(alive(rank["pid"]) for rank in record["ranks"])
    return status["reason"]


def test_a_killed_rank_is_named_by_its_part_of_the_model(endless, record_schema):
    run = endless()
    os.kill(run.pids()[1], signal.SIGKILL)
    ended = run.wait(60)
    reason = check_failed(ended, record_schema, 4)
    assert "rank 1 (tp 1, pp 0, dp 0) was killed by SIGKILL" in reason
    assert ended.record["ranks"][1]["exit"] == "SIGKILL"
    assert_kept(ended.record)


def assert_kept(record):
    """What was measured until the run ended; of a pass that is not complete, nothing over all of it."""
    assert record["work"]["steps"] >= 20
    assert record["window"]["steps"] == record["work"]["steps"] - record["config"]["infer"]["warmup_steps"]
    found = {metric["name"]: metric["value"] for metric in record["metrics"]}
    assert found["p_infer_core"] > 0
    assert found["p_infer_core_host"] > 0
    assert not {"p_infer_whole", "e2e_time"} & set(found)


def test_a_stopped_rank_is_found_within_the_timeout(endless, record_schema):
    run = endless("--timeout", "5")
    pid = run.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    reason = check_failed(run.wait(60), record_schema, 6)
    assert time.monotonic() - stopped < 5 + 6
    assert "no progress for 5 s" in reason
    assert "rank 1 (tp 1, pp 0, dp 0) (process %d) is stopped" % pid in reason


def test_sigterm_ends_it_within_3_seconds(endless, record_schema):
    run = endless()
    pids = run.pids()
    run.process.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    wait_until(lambda: run.process.poll() is not None, 3)
    assert time.monotonic() - sent < 3
    ended = run.wait(5)
    assert "SIGTERM" in check_failed(ended, record_schema, 7)
    assert ended.status["state"] == "interrupted"
    assert_kept(ended.record)
    assert not any(alive(pid) for pid in pids)


def test_weights_that_are_nan_end_it(megatron, tmp_path, record_schema):
    weights = prepared_weights(tmp_path / "made", nan="model.layers.1.mlp.down_proj.weight")
    ended = run_case(tmp_path, *TINY, "--weights", weights, command=COMMAND)
    reason = check_failed(ended, record_schema, 12, ended.status["phase"])
    assert "the loss of step 0 is nan" in reason
