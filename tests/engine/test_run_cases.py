"""The cases beside distilbert, each run to its end on its shipped set: it learns, and its record says so."""

import importlib.util

import pytest

from running import need, run_case

pytestmark = pytest.mark.image


@pytest.mark.old_torch
def test_deepspeed_trains_in_its_place(tmp_path):
    """As far as this Python's DeepSpeed and gloo go: stage 2 on two ranks from torch 2 on, else stage 0."""
    need(importlib.util.find_spec("deepspeed") is not None, "DeepSpeed")
    import torch

    stage = 2 if hasattr(torch, "compile") else 0
    settings = ["--set", "engine=deepspeed", "--set", "zero_stage=%d" % stage]
    ended = run_case(tmp_path, "--preset", "tiny", "--gpus", "2", "--steps", "10", *settings, case="llama2-7b-lora")
    record = ended.ok("llama2-7b-lora")  # the only line on stdout, whatever DeepSpeed prints
    assert record["conditions"]["engine"] == "deepspeed-zero%d" % stage
    training = record["quality"]["training"]
    assert training["ds_config"]["zero_optimization"]["stage"] == stage
    assert training["ds_config"]["train_batch_size"] == 8
    assert training["updates"] == record["work"]["steps"] == 15


@pytest.mark.long
@pytest.mark.parametrize("case", ["glm", "llama2-7b-lora"])
def test_two_ranks_train_the_shipped_set_to_the_end(tmp_path, case):
    record = run_case(tmp_path, "--preset", "tiny", "--gpus", "2", case=case).ok(case)
    assert record["conditions"]["data"] == "shipped"
    assert {"learned", "above_chance"} <= {check["name"] for check in record["quality"]["checks"]}
    assert len(record["ranks"]) == 2
