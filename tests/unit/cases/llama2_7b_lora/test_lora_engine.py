"""The step: plain torch as published, fp16 with its scaler, DeepSpeed beside it, and what each refuses."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.cases.llama2_7b_lora import engine, engine_deepspeed
from flagbench_cases.cases.llama2_7b_lora import workload as workloads
from flagbench_cases.cases.llama2_7b_lora.workload import LlamaLoraWorkload
from flagbench_cases.engines import deepspeed
from flagbench_cases.shared.errors import UsageError
from running import need
from unit.cases.llama2_7b_lora.lora_bench import configured, train, workload
from unit.cases.refusal import refuses
from workloads import on_ranks

pytestmark = pytest.mark.image

CPU = torch.device("cpu")
MODERN = int(torch.__version__.split(".")[0]) >= 2


def tokens(work: LlamaLoraWorkload) -> dict[str, torch.Tensor]:
    return next(iter(work.batches(0)))


# The published step


def test_the_device_is_synchronised_where_the_publisher_does(tmp_path: Path, monkeypatch: Any) -> None:
    work, calls = workload(tmp_path), []
    monkeypatch.setattr(work.context.device, "synchronize", lambda: calls.append(work.engine.facts()["updates"]))
    work.step(tokens(work))
    assert calls == [0, 1]  # after the forward pass, and after the update


def test_ranks_stay_in_step_without_sending_frozen_weights(tmp_path: Path) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        work = workload(folder, rank, world)
        train(work, 3)
        ignored = set(work.module._ddp_params_and_buffers_to_ignore)
        trained = {name for name, p in work.module.named_parameters() if p.requires_grad}
        return [p.detach().clone() for p in work.parameters.values()], ignored & trained, len(ignored)

    one, other = on_ranks(2, tmp_path / "ranks", body)
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0]))
    assert one[1] == set()
    assert one[2] == 21, "every frozen weight"


def test_bf16_updates_fp32_adapters_by_fp32_moments(tmp_path: Path) -> None:
    """A second moment in bf16 would not decay: 0.999 of it is rounded to itself."""
    work = workload(tmp_path, precision="bf16")
    train(work, 1)
    moments = [state["exp_avg_sq"] for state in work.engine.optimizer.state.values()]
    assert {tensor.dtype for tensor in (*moments, *work.parameters.values())} == {torch.float32}
    facts = work.training_facts()
    assert (facts["weights_type"], facts["adapters_type"]) == ("bfloat16", "float32")


# fp16: half adapters, a loss scaler, the fused AdamW


@pytest.mark.skipif(not MODERN, reason="torch 1.12 has neither fp16 on a processor nor the fused AdamW")
def test_fp16_trains_half_adapters_under_a_scaler(tmp_path: Path) -> None:
    work = workload(tmp_path, precision="fp16")
    assert {p.dtype for p in work.parameters.values()} == {torch.float16}
    assert work.engine.optimizer.defaults["fused"] is True
    losses = train(work, 6)
    assert losses == pytest.approx(train(workload(tmp_path), 6), rel=0.01)
    facts = work.training_facts()
    assert (facts["updates"], facts["skipped_steps"], facts["loss_scale"]) == (6, 0, 65536.0)
    assert (facts["weights_type"], facts["adapters_type"]) == ("float16", "float16")
    assert work.describe()["conditions"]["optimizer"].endswith("weight_decay=0), fused")


@pytest.mark.skipif(not MODERN, reason="torch 1.12 has neither fp16 on a processor nor the fused AdamW")
def test_an_overflow_skips_the_update_and_halves_the_scale(tmp_path: Path) -> None:
    work = workload(tmp_path, precision="fp16")
    work.engine.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    assert work.scaler_skipped() is False
    before = [p.detach().clone() for p in work.parameters.values()]
    loss = work.step(tokens(work))
    assert math.isfinite(loss)
    assert all(torch.equal(a, b) for a, b in zip(before, work.parameters.values()))
    facts = work.training_facts()
    assert (facts["updates"], facts["skipped_steps"], facts["loss_scale"]) == (0, 1, 2.0**39)
    assert work.scaler_skipped() is True, "although the loss is finite"
    assert work.scaler_skipped() is False, "of the last step"


def test_fp16_without_the_fused_adamw(monkeypatch: Any) -> None:
    monkeypatch.setattr(engine, "has_fused_adamw", lambda: False)
    with refuses(UsageError, "fp16", "AdamW"):
        engine.refuse(configured(precision="fp16"), CPU, 1)
    engine.refuse(configured(precision="bf16"), CPU, 1)


# DeepSpeed


def asked(stage: int, **changes: Any) -> dict[str, Any]:
    return configured(engine={"name": "deepspeed", "zero_stage": stage}, **changes)


@pytest.mark.parametrize(
    ("changes", "named"), [({"stage": 3}, "stage 3"), ({"stage": 1, "precision": "fp16"}, "fp16")]
)
def test_what_deepspeed_cannot_do_is_refused(changes: dict[str, Any], named: str) -> None:
    with refuses(UsageError, named):
        engine.refuse(asked(**changes), CPU, 1)


@pytest.mark.parametrize(
    ("stage", "precision", "world", "named"),
    [(1, "fp32", 2, "stage 1"), (0, "bf16", 2, "bf16"), (0, "bf16", 1, "bf16")],
)
def test_what_gloo_of_torch_1_cannot_do_is_refused(
    monkeypatch: Any, stage: int, precision: str, world: int, named: str
) -> None:
    monkeypatch.setattr(torch, "__version__", "1.12.1")
    with refuses(UsageError, named):
        engine.refuse(asked(stage, precision=precision), CPU, world)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_its_configuration_comes_from_the_manifest(precision: str) -> None:
    made = engine_deepspeed.ds_config(asked(2, precision=precision), 4)
    assert json.loads(json.dumps(made)) == made
    assert (made["train_batch_size"], made["train_micro_batch_size_per_gpu"]) == (8, 2)
    assert made["gradient_clipping"] == 0.0
    assert made["zero_optimization"]["stage"] == 2
    assert ("bf16" in made, "fp16" in made) == (precision == "bf16", precision == "fp16")


STAGES = (0, 1, 2)
# What gloo of torch 1 lacks for two ranks is refused, see above.
WORLDS = {stage: 2 if MODERN or stage == 0 else 1 for stage in STAGES}
PRECISIONS = ("fp32", "bf16", "fp16") if MODERN else ("fp32",)


def trained(folder: Path, rank: int, world: int, **changes: Any) -> Any:
    """The losses, facts, adapters and optimizer's name of 14 steps."""
    work = workload(folder, rank, world, **changes)
    losses, adapters = train(work, 14), [p.detach().clone() for p in work.parameters.values()]
    return losses, work.training_facts(), adapters, work.engine.condition


def claim_fp16() -> None:
    """Have DeepSpeed and the case take fp16 on a processor, which few support and torch computes on any."""
    deepspeed.load(CPU).accelerator.get_accelerator().is_fp16_supported = lambda: True
    workloads.refuse = lambda *_: None


@pytest.fixture(scope="module")
def runs(tmp_path_factory: Any) -> Any:
    """Every stage on as many ranks as it can have, and the torch engine in fp32 on as many, with what went to stdout:
    results of each rank by the number of ranks."""
    need(importlib.util.find_spec("deepspeed") is not None, "DeepSpeed")

    def body(folder: Path, rank: int, world: int) -> Any:
        written = folder / f"stdout-{rank}"
        sys.stdout = written.open("w")
        os.dup2(sys.stdout.fileno(), 1)
        found = {"torch": trained(folder, rank, world)}
        claim_fp16()
        for stage in (s for s in STAGES if WORLDS[s] == world):
            for precision in PRECISIONS:
                changes = {"precision": precision, "engine": {"name": "deepspeed", "zero_stage": stage}}
                found[stage, precision] = trained(folder, rank, world, **changes)
        sys.stdout.flush()
        return found, written.read_text()

    return {world: on_ranks(world, tmp_path_factory.mktemp(f"on-{world}"), body) for world in set(WORLDS.values())}


@pytest.mark.parametrize("stage", STAGES)
def test_deepspeed_takes_the_steps_of_the_torch_engine(runs: Any, stage: int) -> None:
    for found, _ in runs[WORLDS[stage]]:
        (losses, facts, adapters, optimizer), (expected, _, others, its) = found[stage, "fp32"], found["torch"]
        assert optimizer == its
        assert losses == pytest.approx(expected, abs=5e-6)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(adapters, others))
        assert facts["engine"] == f"deepspeed-zero{stage}"
        assert (facts["updates"], facts["skipped_steps"], facts["loss_scale"]) == (14, 0, None)
        assert facts["ds_config"]["zero_optimization"]["stage"] == stage


@pytest.mark.skipif(not MODERN, reason="torch 1.12 has neither fp16 on a processor nor bf16 in gloo")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("precision", "word", "scale"), [("bf16", "bfloat16", None), ("fp16", "float16", 65536.0)])
def test_deepspeed_in_16_bits_updates_fp32_copies(
    runs: Any, stage: int, precision: str, word: str, scale: float | None
) -> None:
    for found, _ in runs[WORLDS[stage]]:
        losses, facts, _, optimizer = found[stage, precision]
        assert losses == pytest.approx(found["torch"][0], rel=1e-3)
        assert losses != found["torch"][0]
        assert optimizer.endswith("weight_decay=0), fp32 masters")
        assert (facts["updates"], facts["skipped_steps"], facts["loss_scale"]) == (14, 0, scale)
        assert (facts["weights_type"], facts["adapters_type"]) == (word, word)


def test_deepspeed_writes_nothing_to_stdout(runs: Any) -> None:
    assert [written for ranks in runs.values() for _, written in ranks] == [""] * sum(map(len, runs.values()))
