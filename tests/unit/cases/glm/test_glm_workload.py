"""The faithful division on 1 and 2 ranks: order of data, updates, loss over ranks, work, description."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.cases.glm import data as dataset
from flagbench_cases.cases.glm.model import cloze_loss
from flagbench_cases.cases.glm.workload import DROPOUTS, GlmWorkload
from unit.cases.glm.small_glm import EVALUATION, LENGTH, PRESETS, TRAIN, examples, workload
from workloads import on_ranks, train

pytestmark = pytest.mark.image


def orders(work: GlmWorkload, epochs: int) -> list[list[int]]:
    """The examples of each epoch, in order."""
    return [[i for batch in work.batches(epoch) for i in batch.index.tolist()] for epoch in range(epochs)]


# Order of data


def test_every_epoch_is_reshuffled_and_no_seed_changes_its_order(tmp_path: Path) -> None:
    work = workload(tmp_path)
    assert work.steps_per_epoch() == 5
    first, second = orders(work, 2)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert orders(workload(tmp_path, seed=7), 2) == [first, second]


def test_last_batch_of_an_epoch_is_a_partial_one(tmp_path: Path) -> None:
    sizes = [len(batch.index) for batch in workload(tmp_path, train={"batch_size": 8}).batches(0)]
    assert sizes == [8, 8, 4]


def test_two_ranks_share_each_epoch(tmp_path: Path) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        work = workload(folder, rank, world)
        return work.steps_per_epoch(), orders(work, 2)

    (steps, one), (_, two) = on_ranks(2, tmp_path, body)
    assert steps == 3
    for epoch in range(2):
        assert sorted(one[epoch] + two[epoch]) == list(range(20))
    assert one[0] != one[1]


# Steps


def plain_losses(module: torch.nn.Module, batches: list[dataset.Batch], peak: float, total: int) -> list[float]:
    """A loop in a few lines: torch's AdamW and clipping, and the published schedule."""
    decays, exempt = [], []
    for name, parameter in module.named_parameters():
        (exempt if "bias" in name else decays).append(parameter)
    groups = [{"params": decays, "weight_decay": 0.1}, {"params": exempt, "weight_decay": 0.0}]
    optimizer, losses = torch.optim.AdamW(groups, lr=1.0), []
    for update, batch in enumerate(batches):
        warmup = 0.1 * total
        rate = update / warmup if update <= warmup else 1 - 0.9 * (update - warmup) / (total - warmup)
        for group in optimizer.param_groups:
            group["lr"] = peak * rate
        loss = cloze_loss(module(*batch[:5]), batch.choice_mask, batch.labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    work = workload(tmp_path)
    module = copy.deepcopy(work.module)
    losses, batches = train(work, 7)
    assert losses == pytest.approx(plain_losses(module, batches, 1e-2, 20), abs=1e-5)
    assert len({round(loss, 4) for loss in losses}) == 7
    assert work.training_facts() == {
        "adamw": "torch",
        "updates": 7,
        "skipped_steps": 0,
        "loss_scale": None,
        "layer_norm": "torch",
        "losses_not_finite": 0,
    }


def joined(batches: tuple[dataset.Batch, dataset.Batch]) -> dataset.Batch:
    """Two batches as one, by way of their examples."""
    made = examples(TRAIN, 0)
    return dataset.collate([made[i] for batch in batches for i in batch.index.tolist()])


def test_two_ranks_do_a_plain_loop_on_both_their_batches(tmp_path: Path) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        return train(workload(folder, rank, world, train={"batch_size": 5}), 4)

    (one, batches_one), (two, batches_two) = on_ranks(2, tmp_path, body)
    assert one == two  # the loss is reduced over the ranks
    both = [joined(pair) for pair in zip(batches_one, batches_two)]
    expected = plain_losses(workload(tmp_path).module, both, 1e-2, 20)
    assert one == pytest.approx(expected, abs=1e-5)


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


def test_description_tells_what_a_claim_is_compared_by(tmp_path: Path) -> None:
    described = workload(tmp_path).describe()
    assert described["conditions"] == {
        "model": "glm-test",
        "sequence_length": LENGTH,
        "batch_size": 4,
        "choices": "4 at most, mean 3.0",
        "recompute": True,
        "optimizer": "AdamW(betas=0.9/0.999, eps=1e-08, weight_decay=0.1), clip 1.0",
        "dropout": "0/0/0",
        "workers": 0,
        "evaluation_cadence": "every epoch, first before training",
        "eval_batch_size": 2,
        "learning_rate": 1e-2,
        "schedule": "linear warm-up 2 steps, then linear to 0.1 over 18 steps",
        "data": "shipped",
        "weights": "random",
    }
    assert described["data"]["train_examples"] == 20
    assert described["data"]["eval_examples"] == 7
    assert described["data"]["mean_choices"] == 3.0
    assert described["data"]["f1_over"] == "wordpieces"
    assert described["chance"] == pytest.approx(sum(1 / count for count in EVALUATION) / 7)


def test_conditions_of_the_reference_preset(tmp_path: Path) -> None:
    reference = PRESETS["reference"]
    published = {"learning_rate": 1e-5, "decay_steps": 4338, "evaluate_every_samples": 19200}
    assert {name: reference["train"][name] for name in published} == published
    work = workload(tmp_path, train=published, model=dict.fromkeys(DROPOUTS, 0.1))
    conditions = work.describe()["conditions"]
    assert conditions["schedule"] == "linear warm-up 433.8 steps, then linear to 0.1 over 3904.2 steps"
    assert conditions["evaluation_cadence"] == "every 19200 samples, first before training"
    assert conditions["dropout"] == "0.1/0.1/0.1"
