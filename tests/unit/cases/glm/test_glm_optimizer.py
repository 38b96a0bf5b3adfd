"""Loss scale, masters, clipping and overflows by hand; fp32 stands for fp16 where a processor has no math."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flagbench_cases.cases.glm import optimizer as module_under_test
from flagbench_cases.cases.glm.optimizer import (
    LossScaler,
    MasterOptimizer,
    Optimizer,
    Schedule,
    adamw,
    any_overflow,
    clip,
)
from workloads import on_ranks

pytestmark = pytest.mark.image

FLAT = Schedule(1e-2, 100, 0.0, 1.0)


def small_scaler() -> LossScaler:
    return LossScaler(scale=64, window=4, hysteresis=2, minimum=1)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3))


# Loss scale


@pytest.mark.parametrize(
    ("steps", "scales"),  # o: an overflow
    [
        ("ooo....oo....o", [64, 32, 16, 16, 16, 16, 32, 32, 16, 16, 16, 16, 32, 32]),
        (".........", [64, 64, 64, 128, 128, 128, 128, 256, 256]),
        ("oooooooooo", [64, 32, 16, 8, 4, 2, 1, 1, 1, 1]),
    ],
    ids=["overflows", "none in two windows", "down to the minimum"],
)
def test_scale_follows_overflows_as_published(steps: str, scales: list[int]) -> None:
    scaler, seen = small_scaler(), []
    for step in steps:
        scaler.update(step == "o")
        seen.append(scaler.scale)
    assert seen == scales


# Updates


def optimizer_of(kind: str, model: nn.Module) -> Optimizer:
    """Of either kind, over fp32 parameters."""
    if kind == "plain":
        return Optimizer(model, FLAT, 0.3, 1.0)
    return MasterOptimizer(model, FLAT, 0.3, 1.0, small_scaler())


def test_the_norm_goes_through_fp32_as_published() -> None:
    parameters = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([1.0]), torch.tensor([2.0**-15])
    assert clip(parameters, 6.0) == 1.0  # of 1 + 2**-30 fp32 keeps 1


def test_gradients_are_zeroed_and_kept() -> None:
    optimizer = optimizer_of("masters", net())
    parameter = optimizer.parameters[0]
    kept = parameter.grad = torch.ones_like(parameter)
    optimizer.update()
    assert parameter.grad is kept
    assert not kept.any()


def halves(scaler: LossScaler) -> tuple[nn.Module, MasterOptimizer]:
    model = net().half()
    return model, MasterOptimizer(model, FLAT, 0.0, 1.0, scaler)


def give(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def test_masters_begin_at_what_fp16_holds_and_go_on_in_fp32() -> None:
    model, optimizer = halves(small_scaler())
    pairs = optimizer.pairs
    assert {id(p) for p, _ in pairs} == {id(p) for p in model.parameters()}
    assert all(torch.equal(p.float(), master) and master.dtype == torch.float32 for p, master in pairs)
    for group in optimizer.adamw.param_groups:
        group["lr"] = 1e-5  # less than fp16 can add to a gain of one
    gain = next(p for p in model.parameters() if p.dim() == 1 and bool((p == 1).all()))
    master = next(master for p, master in pairs if p is gain)
    give(model, 1.0)
    optimizer.update()
    assert bool((gain == 1).all())
    assert bool((master < 1).all())
    assert all(p.dtype == torch.float16 and torch.equal(p, master.half()) for p, master in pairs)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_step_that_overflows_changes_nothing_but_the_scale(bad: float) -> None:
    model, optimizer = halves(LossScaler(64, 1000, 1, 1))
    give(model, 1.0)
    assert optimizer.update()
    before = [master.clone() for _, master in optimizer.pairs]
    moments = [state["exp_avg"].clone() for state in optimizer.adamw.state.values()]
    give(model, 1.0)
    list(model.parameters())[2].grad[1] = bad
    assert not optimizer.update()
    assert all(torch.equal(old, master) for old, (_, master) in zip(before, optimizer.pairs))
    assert all(torch.equal(old, s["exp_avg"]) for old, s in zip(moments, optimizer.adamw.state.values()))
    assert not any(p.grad.any() for p in model.parameters())
    assert optimizer.facts() == {"adamw": "torch", "updates": 1, "skipped_steps": 1, "loss_scale": 32.0}


def test_sums_are_read_up_to_the_first_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    look = module_under_test.has_overflowed
    monkeypatch.setattr(module_under_test, "has_overflowed", lambda t: looked_at.append(t) or look(t))
    good, bad = torch.ones(3), torch.tensor([1.0, math.inf])
    assert not any_overflow([good, good, good], torch.device("cpu"))
    assert len(looked_at) == 3
    assert any_overflow([good, bad, good], torch.device("cpu"))
    assert len(looked_at) == 5


def test_sum_of_finite_halves_is_no_overflow() -> None:
    assert not any_overflow([torch.full((10000,), 60000.0, dtype=torch.float16)], torch.device("cpu"))


def test_overflow_of_one_rank_skips_the_step_of_all(tmp_path: Path) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        model = net()
        optimizer = MasterOptimizer(model, FLAT, 0.0, 1.0, LossScaler(64, 1000, 1, 1))
        give(model, math.inf if rank == 1 else 1.0)
        updated = [optimizer.update()]
        give(model, 1.0)
        updated.append(optimizer.update())
        return updated, optimizer.facts()

    facts = {"adamw": "torch", "updates": 1, "skipped_steps": 1, "loss_scale": 32.0}
    assert on_ranks(2, tmp_path, body) == [([False, True], facts)] * 2


class OnDevice:
    """A parameter that says it is on a device."""

    device = torch.device("cuda", 0)


def test_apex_is_taken_where_it_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    apex = types.ModuleType("apex.optimizers")
    apex.FusedAdam = lambda groups, **options: (groups, options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "apex", types.ModuleType("apex"))
    monkeypatch.setitem(sys.modules, "apex.optimizers", apex)
    groups: list[dict[str, Any]] = [{"params": [OnDevice()], "weight_decay": 0.1}]
    (given, options), whose = adamw(groups, 1e-5)
    assert (given, whose) == (groups, "apex")
    assert options == {"lr": 1e-5, "betas": (0.9, 0.999), "eps": 1e-8, "adam_w_mode": True}
    # On a processor it has no kernels.
    assert adamw([{"params": [nn.Parameter(torch.zeros(1))]}], 1e-5)[1] == "torch"
