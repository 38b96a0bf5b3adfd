"""The cases beside distilbert, each run to its end on its shipped set: it learns, and its record says so."""

import importlib.util
import json
import os
import sys

import jsonschema
import pytest

from running import ENTRYPOINTS, assert_agrees, need, run_case

pytestmark = pytest.mark.image


def names_of_groups(case):
    """The conditions that the case's manifest groups."""
    path = os.path.join(ENTRYPOINTS, "flagbench_cases", "cases", case.replace("-", "_"), "case.json")
    with open(path, encoding="utf-8") as file:
        groups = json.load(file)["condition_groups"]
    return sorted(name for names in groups.values() for name in names)


def test_deepspeed_trains_in_its_place(tmp_path, record_schema):
    """As far as this Python's DeepSpeed and gloo go: stage 2 on two ranks from torch 2 on, else stage 0."""
    need(importlib.util.find_spec("deepspeed") is not None, "DeepSpeed")
    import torch

    stage = 2 if hasattr(torch, "compile") else 0
    command = [sys.executable, "-m", "flagbench_cases", "llama2-7b-lora"]
    settings = ["--set", "engine=deepspeed", "--set", "zero_stage=%d" % stage]
    ended = run_case(tmp_path, "--preset", "tiny", "--gpus", "2", "--steps", "10", *settings, command=command)
    record = ended.record  # the only line on stdout, whatever DeepSpeed prints
    jsonschema.Draft202012Validator(record_schema).validate(record)
    assert ended.code == 0, ended.stderr
    assert record["conditions"]["engine"] == "deepspeed-zero%d" % stage
    assert_agrees(record)
    training = record["quality"]["training"]
    assert training["ds_config"]["zero_optimization"]["stage"] == stage
    assert training["ds_config"]["train_batch_size"] == 8
    assert training["updates"] == record["work"]["steps"] == 15


@pytest.mark.long
@pytest.mark.parametrize("case", ["glm", "llama2-7b-lora"])
def test_two_ranks_train_the_shipped_set_to_the_end(tmp_path, record_schema, case):
    command = [sys.executable, "-m", "flagbench_cases", case]
    ended = run_case(tmp_path, "--preset", "tiny", "--gpus", "2", command=command)
    record = ended.record
    jsonschema.Draft202012Validator(record_schema).validate(record)
    assert (ended.code, record["case"], record["status"]["state"]) == (0, case, "ok"), ended.stderr
    assert record["conditions"]["data"] == "shipped"
    checks = {check["name"]: check["ok"] for check in record["quality"]["checks"]}
    assert {"learned", "above_chance"} <= set(checks)
    assert all(checks.values()), record["quality"]["checks"]
    assert sorted(record["conditions"]) == names_of_groups(case)
    assert len(record["ranks"]) == 2
    assert_agrees(record)
