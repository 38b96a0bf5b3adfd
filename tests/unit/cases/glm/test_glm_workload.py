"""GLM on 1 and 2 ranks: batches, dropout, losses that are not finite, fp16, work."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.cases.glm import data as dataset
from unit.cases.glm.small_glm import LENGTH, workload
from workloads import on_ranks, train

pytestmark = pytest.mark.image


# Order of data


def test_last_batch_of_an_epoch_is_a_partial_one(tmp_path: Path) -> None:
    sizes = [len(batch.index) for batch in workload(tmp_path, train={"batch_size": 8}).batches(0)]
    assert sizes == [8, 8, 4]


# Steps


def test_ranks_draw_the_same_dropout_and_stay_in_step(tmp_path: Path) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        work = workload(folder, rank, world, model={"dropout": 0.3, "recompute": True})
        before, draw = copy.deepcopy(work.module.state_dict()), torch.rand(4)
        train(work, 4)
        return before, draw, work.module.state_dict()

    (begun, draw, one), (begun_too, other_draw, two) = on_ranks(2, tmp_path, body)
    assert torch.equal(draw, other_draw)
    for name in one:
        assert torch.equal(begun[name], begun_too[name]), name
        assert torch.equal(one[name], two[name]), name
    assert not torch.equal(begun["word_embeddings.weight"], one["word_embeddings.weight"])


def test_loss_that_is_no_number_skips_the_backward_pass(tmp_path: Path) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        work = workload(folder, rank, world)
        before = copy.deepcopy(work.module.state_dict())
        batch = next(iter(work.batches(0)))
        lost = batch._replace(choice_mask=batch.choice_mask * math.nan) if rank == 0 else batch
        loss = work.step(lost)
        untouched = all(torch.equal(before[name], tensor) for name, tensor in work.module.state_dict().items())
        return (
            math.isnan(loss),
            untouched,
            work.training_facts()["losses_not_finite"],
            math.isfinite(work.step(batch)),
        )

    assert on_ranks(2, tmp_path, body) == [(True, True, 1, True)] * 2


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="a processor has had no fp16 products before torch 2")
def test_fp16_scales_its_loss_down_from_2_32_before_it_updates(tmp_path: Path) -> None:
    half, full = (workload(tmp_path, precision=precision) for precision in ("fp16", "fp32"))
    assert {p.dtype for p in half.module.parameters()} == {torch.float16}
    batch = next(iter(full.batches(0)))
    expected = full.step(batch)
    before = copy.deepcopy(half.module.state_dict())
    losses = []
    while half.training_facts()["updates"] < 2:
        losses.append(half.step(batch))
        assert len(losses) < 40
    facts = half.training_facts()
    assert losses[0] == pytest.approx(expected, rel=0.02)
    assert facts["skipped_steps"] == len(losses) - 2 > 5
    assert facts["loss_scale"] == 2.0 ** (32 - (facts["skipped_steps"] - 1))
    # Nothing had changed yet: the first update has the learning rate zero.
    assert losses[-2:] == [losses[0]] * 2
    assert half.step(batch) != losses[0]
    assert not torch.equal(half.module.state_dict()["word_embeddings.weight"], before["word_embeddings.weight"])


# What the record is told


def test_work_of_a_ragged_batch(tmp_path: Path) -> None:
    work = workload(tmp_path, train={"batch_size": 8})
    items = [work.sets.train[i] for i in (0, 1, 2)]  # 3, 4 and 2 choices: 3 choices are padding
    batch = dataset.collate(items)
    done = work.work(batch)

    def layers(tokens: int) -> int:
        return 2 * 2 * (12 * tokens * 16 * 16 + 2 * tokens * tokens * 16)

    def logits(tokens: int) -> int:
        return 2 * tokens * 16 * 40

    true = [(int(s + m.sum()), int(m.sum())) for item in items for s, m in zip(item.sep, item.target_mask)]
    assert len(true) == 9
    assert (done.samples, done.published_samples) == (3, 8)
    assert (done.tokens, done.tokens_useful) == (12 * LENGTH, sum(length for length, _ in true))
    assert done.flops_executed == 3 * 12 * (layers(LENGTH) + logits(LENGTH))
    assert done.flops_useful == 3 * sum(layers(length) + logits(targets) for length, targets in true)
    assert done.flops_recomputed == 12 * layers(LENGTH)
    assert workload(tmp_path, model={"recompute": False}).work(batch).flops_recomputed == 0.0
