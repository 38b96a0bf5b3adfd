"""Loss scale, masters, clipping, decay and schedule, by hand; fp32 stands for fp16 where a processor has no math."""

from __future__ import annotations

import copy
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

PUBLISHED = {"scale": 2.0**32, "window": 1000, "hysteresis": 2, "minimum": 1}
FLAT = Schedule(1e-2, 100, 0.0, 1.0)


def small_scaler() -> LossScaler:
    return LossScaler(scale=64, window=4, hysteresis=2, minimum=1)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3))


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 5, generator=generator) for _ in range(count)]


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return ((model(inputs) - 1.0) ** 2).mean() * 4  # large enough to be clipped


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


# Schedule


def test_schedule_of_the_published_run() -> None:
    schedule = Schedule(1e-5, 4338, 0.1, 0.1)
    assert schedule.rate(0) == 0.0
    assert schedule.rate(1) == pytest.approx(1e-5 / 433.8, rel=1e-12)
    assert schedule.rate(433) == pytest.approx(1e-5 * 433 / 433.8, rel=1e-12)
    assert schedule.rate(434) == pytest.approx(1e-5 * (1 - 0.9 * 0.2 / 3904.2), rel=1e-12)
    assert schedule.rate(1500) == pytest.approx(1e-5 * (1 - 0.9 * 1066.2 / 3904.2), rel=1e-12)
    assert schedule.rate(4338) == schedule.rate(9999) == pytest.approx(1e-6, rel=1e-12)
    assert schedule.describe() == "linear warm-up 433.8 steps, then linear to 0.1 over 3904.2 steps"


# Updates


def updated(module: nn.Module, steps: list[torch.Tensor]) -> tuple[list[nn.Parameter], float]:
    """The parameters after torch's AdamW has followed clipping to a norm of 1; the least norm before."""
    # The gain of the layer norm decays too.
    decays = [p for name, p in module.named_parameters() if not name.endswith("bias")]
    exempt = [p for name, p in module.named_parameters() if name.endswith("bias")]
    groups = [{"params": decays, "weight_decay": 0.3}, {"params": exempt, "weight_decay": 0.0}]
    optimizer, norms = torch.optim.AdamW(groups, lr=1e-2), []
    for inputs in steps:
        optimizer.zero_grad()
        loss_of(module, inputs).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)))
        optimizer.step()
    return list(module.parameters()), min(norms)


def optimizer_of(kind: str, model: nn.Module) -> Optimizer:
    """Of either kind, over fp32 parameters."""
    if kind == "plain":
        return Optimizer(model, FLAT, 0.3, 1.0)
    return MasterOptimizer(model, FLAT, 0.3, 1.0, small_scaler())


@pytest.mark.parametrize("kind", ["plain", "masters"])
def test_updates_are_those_of_a_plain_loop(kind: str) -> None:
    model, steps = net(), batches(6)
    optimizer = optimizer_of(kind, model)
    for inputs in steps:
        optimizer.backward(loss_of(model, inputs))
        assert optimizer.update()
    expected, least_norm = updated(net(), steps)
    assert least_norm > 1.0  # all were clipped
    for (name, ours), theirs in zip(model.named_parameters(), expected):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), name


def test_gradients_under_the_limit_are_left_alone() -> None:
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 4.0])
    assert clip(parameters, 6.0) == 5.0
    assert parameters[0].grad.tolist() == [3.0, 0.0, 0.0]
    assert clip(parameters, 1.0) == 5.0
    assert parameters[1].grad.tolist() == pytest.approx([0.0, 0.8], abs=1e-6)


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


def test_skipped_steps_do_not_advance_the_schedule() -> None:
    schedule = Schedule(1e-2, 10, 0.5, 0.1)
    model = net()
    optimizer, rates = MasterOptimizer(model, schedule, 0.0, 1.0, LossScaler(64, 1000, 1, 1)), []
    for value in (1.0, math.inf, 1.0, math.inf, math.inf, 1.0):
        rates.append(optimizer.adamw.param_groups[0]["lr"])
        give(model, value)
        optimizer.update()
    assert rates == [schedule.rate(update) for update in (0, 1, 1, 2, 2, 2)]


def test_loss_is_scaled_and_gradients_are_not() -> None:
    model = net()
    optimizer = MasterOptimizer(model, FLAT, 0.0, 1e9, small_scaler())
    plain = copy.deepcopy(model)
    inputs = batches(1)[0]
    loss_of(plain, inputs).backward()
    optimizer.backward(loss_of(model, inputs))
    for parameter, expected in zip(model.parameters(), plain.parameters()):
        assert torch.equal(parameter.grad, 64 * expected.grad)
    optimizer._gather()
    masters = {id(parameter): master for parameter, master in optimizer.pairs}
    for parameter, expected in zip(model.parameters(), plain.parameters()):
        assert torch.equal(masters[id(parameter)].grad, expected.grad)


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
