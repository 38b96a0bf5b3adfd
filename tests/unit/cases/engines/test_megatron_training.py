"""Training by Megatron-Core: the same losses at every layout, and the updates of a plain AdamW."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from flagbench_cases.engines.megatron import parts
from flagbench_cases.engines.megatron.shape import shape_of
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import SpoolReader
from halves import needs_half
from unit.cases.engines.megatron_bench import SMALL, context_of, transformers_model, weights_of
from workloads import on_ranks

pytestmark = [pytest.mark.image, pytest.mark.usefixtures("megatron")]

SECTION = {**SMALL, "vocab_size": 96, "norm_init": 1.0}
"""Needs no padding of the vocabulary on one or two ranks: rows of padding are part of the softmax."""
STEPS, MICRO, ACCUMULATED, LENGTH = 6, 2, 4, 24
SETTINGS = {
    "learning_rate": 1e-2,
    "min_learning_rate": 1e-3,
    "warmup_share": 0.26,
    "schedule_samples": 96,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "clip": 0.5,
    "distributed_optimizer": True,
    "loss_scale": 2.0**16,
}
"""The schedule has an end, at step 12, its warm-up ends within a sample, and the clipping is active in every step."""
WHOLE = MICRO * ACCUMULATED
TOKENS = torch.randint(0, 96, (STEPS * WHOLE, LENGTH + 1), generator=torch.Generator().manual_seed(3))
SELECTIVE = {"recompute_granularity": "selective"}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
PLAIN = {"distributed_optimizer": False}
RUNS: dict[str, tuple[Layout, dict[str, Any], dict[str, Any]]] = {
    "one rank": (Layout(), {}, {}),
    "one rank, plain": (Layout(), PLAIN, {}),
    "selective": (Layout(), {}, SELECTIVE),
    "full": (Layout(), {}, FULL),
    "tp2, sequences, full": (Layout(1, 2, 1), PLAIN, {"sequence_parallel": True, **FULL}),
    "pp2, plain, selective": (Layout(1, 1, 2), PLAIN, SELECTIVE),
    "dp2": (Layout(2, 1, 1), {}, {}),
    "dp2, plain": (Layout(2, 1, 1), PLAIN, {}),
    "dp2 tp2, sequences": (Layout(2, 2, 1), {}, {"sequence_parallel": True}),
}
"""A layout, its hyper-parameters, and settings of Megatron-Core's configuration."""


def batches_of(step: int, layout: Layout, replica: int) -> list[torch.Tensor]:
    """A replica's micro-batches of a step; the replicas share the same samples."""
    mine = TOKENS[step * WHOLE : (step + 1) * WHOLE].chunk(layout.dp)[replica]
    return list(mine.split(MICRO))


def trained(
    folder: Path,
    rank: int,
    layout: Layout,
    settings: dict[str, Any],
    of_core: dict[str, Any],
    dtype: torch.dtype = torch.float32,
    steps: int = STEPS,
    before: Callable[[Any, int], None] = lambda trainer, step: None,
) -> dict[str, Any]:
    """A rank's losses and rates, and its parameters at the end."""
    import warnings

    warnings.simplefilter("ignore")
    from megatron.core import parallel_state

    from flagbench_cases.engines.megatron import open_engine, training

    parallel_state.destroy_model_parallel()  # of an earlier run of this rank
    context = context_of(folder, rank, layout, {"seed": 1})
    engine = open_engine()
    engine.start(context)
    module = engine.build(context, shape_of(SECTION), dtype, **of_core)
    at = layout.coordinates(rank)
    mine, weights = parts.parts_of(shape_of(SECTION), layout, at), weights_of(SECTION)
    parts.fill(module, mine, lambda names: iter([(name, weights[name]) for name in names]))
    trainer = training.Trainer(context, module, dtype, training.Hyperparameters(**{**SETTINGS, **settings}))
    losses, rates, skipped, beats = [], [], [], []
    for step in range(steps):
        before(trainer, step)
        beats.append(SpoolReader(str(folder), rank).progress().beat)
        rates.append(trainer.learning_rate)
        losses.append(trainer.step(batches_of(step, layout, at.dp)))
        skipped.append(trainer.skipped_last)
    weights = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    facts = trainer.facts()
    return {"losses": losses, "rates": rates, "weights": weights, "skipped": skipped, "facts": facts, "beats": beats}


@pytest.fixture(scope="module")
def run(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """`run(NAME)`: what each rank found; all runs on as many ranks are in the same processes."""
    folder = tmp_path_factory.mktemp("runs")

    def all_of(folder: Path, rank: int, world: int) -> dict[str, Any]:
        names = [name for name, (layout, _, _) in RUNS.items() if layout.world == world]
        return {name: trained(folder, rank, *RUNS[name]) for name in names}

    @functools.lru_cache(maxsize=None)
    def on(world: int) -> list[dict[str, Any]]:
        return on_ranks(world, folder / str(world), all_of)

    return lambda name: [found[name] for found in on(RUNS[name][0].world)]


def mean_losses(ranks: list[dict[str, Any]], layout: Layout) -> list[float]:
    """The loss of each step over all replicas, from the ranks of the last stage; the others have none."""
    for rank, found in enumerate(ranks):
        last = layout.coordinates(rank).pp == layout.pp - 1
        assert all((loss is not None) == last for loss in found["losses"])
    chosen = [found["losses"] for rank, found in enumerate(ranks) if layout.has_loss(rank)]
    assert len(chosen) == layout.dp
    return [sum(losses) / layout.dp for losses in zip(*chosen)]


def expected_rate(step: int) -> float:
    """Linear to the maximum over 24.96 of 96 samples, then cosine to the minimum; before the step, from 0."""
    done, warmup = step * WHOLE, 0.26 * 96
    if done <= warmup:
        return 1e-2 * done / warmup
    return 1e-3 + 9e-3 * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (96 - warmup)))


@pytest.fixture(scope="module")
def expected() -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Losses, norms of the gradients before clipping, and weights at the end: transformers' Llama and torch's AdamW,
    which does not decay the norms, in a plain loop."""
    pytest.importorskip("transformers")
    model = transformers_model(SECTION, weights_of(SECTION)).train()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    norms = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    assert len(norms) == 2 * 4 + 1
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-8)
    losses, sizes = [], []
    for step in range(STEPS):
        tokens = TOKENS[step * WHOLE : (step + 1) * WHOLE]
        logits = model(tokens[:, :-1]).logits
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        sizes.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        for group in optimizer.param_groups:
            group["lr"] = expected_rate(step)
        optimizer.step()
        losses.append(loss.item())
    return losses, sizes, {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", RUNS)
def test_losses_and_weights_are_those_of_a_plain_loop(run: Any, expected: Any, name: str) -> None:
    """Six steps of AdamW with the schedule, with and without the distributed optimizer, and whatever is recomputed;
    the norms are not decayed."""
    layout, (losses, norms, weights) = RUNS[name][0], expected
    assert min(norms) > 1.5 * SETTINGS["clip"]
    assert losses[0] - losses[-1] > 0.1  # what 1e-5 is compared with
    means = mean_losses(run(name), layout)
    assert means == pytest.approx(losses, abs=1e-5)
    assert means[0] == pytest.approx(losses[0], abs=2e-6)
    for rank, found in enumerate(run(name)):
        mine = parts.parts_of(shape_of(SECTION), layout, layout.coordinates(rank))
        for parameter, pieces in mine.items():
            wanted = torch.cat([piece.slice_of(weights[piece.name]) for piece in pieces])
            error = (found["weights"][parameter] - wanted).abs().max()
            assert error < 1e-5, (parameter, float(error))


def test_the_rate_rises_and_falls_by_samples_of_all_replicas(run: Any) -> None:
    for name in ("one rank", "dp2", "pp2, plain, selective"):
        for found in run(name):
            assert found["rates"] == pytest.approx([expected_rate(step) for step in range(STEPS)], rel=1e-6)
            assert found["facts"]["learning_rate"] == pytest.approx(expected_rate(STEPS), rel=1e-6)
            assert (found["facts"]["updates"], found["facts"]["skipped_steps"]) == (STEPS, 0)


def test_a_rank_beats_in_every_micro_batch(run: Any) -> None:
    """Every stage, so that a step of a thousand micro-batches is not taken for a hang."""
    for name in ("one rank", "pp2, plain, selective"):
        for found in run(name):
            beats = found["beats"]
            assert beats == [beats[0] + ACCUMULATED * step for step in range(STEPS)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_gradients_added_in_their_product(tmp_path: Path, run: Any, dtype: torch.dtype) -> None:
    """By torch's function in place of Apex's, which Megatron-Core calls; in half precision it has it on devices only,
    so that the product is converted here."""

    def body(folder: Path, rank: int, world: int) -> Any:
        from megatron.core.tensor_parallel import layers

        from flagbench_cases.engines.megatron import common

        def addmm(total: Any, one: Any, other: Any, out_dtype: Any, out: Any) -> None:
            assert (out_dtype, one.dtype) == (torch.float32, torch.bfloat16)
            out.add_(one.to(out_dtype) @ other.to(out_dtype))

        calls, by_torch = [], common._ByTorch.wgrad_gemm_accum_fp32
        common._ByTorch.wgrad_gemm_accum_fp32 = lambda *given: calls.append(1) or by_torch(*given)
        if dtype is torch.bfloat16:
            common.torch = cpu_shims.Overlay(torch, addmm=addmm)
        layers.fused_weight_gradient_mlp_cuda, layers._grad_accum_fusion_available = common._ByTorch, True
        return trained(folder, rank, Layout(), {}, {"gradient_accumulation_fusion": True}, dtype), len(calls)

    from flagbench_cases.engines.megatron import cpu_shims

    ((found, calls),) = on_ranks(1, tmp_path, body)
    matrices = 4 * SECTION["layers"] + 1
    assert calls == STEPS * ACCUMULATED * matrices
    error = {"abs": 1e-5} if dtype is torch.float32 else {"rel": 0.02}
    assert found["losses"] == pytest.approx(mean_losses(run("one rank"), Layout()), **error)


# Half precision


def in_bf16(folder: Path, rank: int, world: int) -> dict[str, Any]:
    return trained(folder, rank, Layout(), {}, {}, torch.bfloat16)


def test_bf16_is_close(tmp_path: Path, run: Any) -> None:
    wanted = mean_losses(run("one rank"), Layout())
    (found,) = on_ranks(1, tmp_path, in_bf16)
    assert found["losses"] == pytest.approx(wanted, rel=0.02)
    assert found["losses"] != pytest.approx(wanted, abs=1e-5)
    assert {tensor.dtype for tensor in found["weights"].values()} == {torch.bfloat16}


@needs_half
@pytest.mark.parametrize("distributed", [True, False])
def test_a_step_whose_gradients_overflow_is_skipped(tmp_path: Path, run: Any, distributed: bool) -> None:
    """In fp16 the loss is scaled; after an overflow neither the weights nor the schedule move, and it is counted."""

    def body(folder: Path, rank: int, world: int) -> Any:
        held = []

        def before(trainer: Any, step: int) -> None:
            optimizer = trainer.only_optimizer
            optimizer.grad_scaler._scale.fill_(2.0**100 if step == 2 else 2.0**10)
            held.append([parameter.detach().clone() for parameter in trainer.model.parameters()])

        settings = {"distributed_optimizer": distributed}
        found = trained(folder, rank, Layout(), settings, {}, torch.float16, 5, before)
        kept = [all(map(torch.equal, one, other)) for one, other in itertools.pairwise(held)]
        return found, kept

    ((found, kept),) = on_ranks(1, tmp_path, body)
    assert found["skipped"] == [False, False, True, False, False]
    assert kept == [True, False, True, False]  # the rate of the first step is 0
    assert (found["facts"]["updates"], found["facts"]["skipped_steps"]) == (4, 1)
    assert found["rates"] == pytest.approx([expected_rate(step) for step in (0, 1, 2, 2, 3)], rel=1e-6)
    wanted = mean_losses(run("one rank"), Layout())
    assert found["losses"][:3] == pytest.approx(wanted[:3], rel=5e-3)
    assert all(map(math.isfinite, found["losses"]))
