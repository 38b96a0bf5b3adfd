"""The workload: the loader, evaluation, the published loss, work, resuming from a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flagbench_cases.cases.llama2_7b_lora.data import BlockSet, MmluSet
from flagbench_cases.cases.llama2_7b_lora.evaluate import mmlu_accuracy, validation_loss
from flagbench_cases.cases.llama2_7b_lora.workload import LlamaLoraWorkload
from flagbench_core.flops import batch_of, llama_lora
from unit.cases.llama2_7b_lora.lora_bench import LENGTH, train, workload
from workloads import on_ranks

pytestmark = pytest.mark.image

DROPOUT = {"model": {"lora": {"r": 4, "alpha": 16, "dropout": 0.3}}}


# Order of data, and the schedule


def test_the_loader_draws_nothing_from_the_generator(tmp_path: Path) -> None:
    work = workload(tmp_path)
    before = torch.get_rng_state()
    list(work.batches(0))
    assert torch.equal(before, torch.get_rng_state())


# Evaluation


def test_validation_takes_each_block_once_with_dropout_off(tmp_path: Path) -> None:
    work = workload(tmp_path, **DROPOUT)
    blocks = work.sets.validation
    with torch.no_grad():
        work.module.eval()
        alone = [
            float(work.module(input_ids=blocks[i][None], labels=blocks[i][None]).loss) for i in range(len(blocks))
        ]
    for batch_size in (1, 2, 8):
        loss = validation_loss(work.module, blocks, batch_size, work.device, (0, 1), lambda done, of: None)
        assert loss == pytest.approx(sum(alone) / len(alone), abs=1e-5)
    assert work.module.training


def questions(lengths: list[int], answers: list[int], answer_tokens: list[int]) -> MmluSet:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.random.RandomState(0).randint(3, 96, size=int(offsets[-1])).astype(np.int32)
    zeros = np.zeros(len(lengths), np.int16)
    return MmluSet(tokens, offsets, np.array(answers, np.int8), zeros, zeros, ["physics"], answer_tokens)


def test_an_answer_is_the_most_likely_token(tmp_path: Path) -> None:
    work = workload(tmp_path)
    prompts = questions([3, 9, 5, 7], [0, 1, 2, 3], [3, 4, 5, 6])
    with torch.no_grad():
        guesses = [int(work.module(input_ids=prompts[i].tokens[None]).logits[0, -1].argmax()) for i in range(4)]
    assert len(set(guesses)) > 1
    progress: list[tuple[int, int]] = []

    def accuracy(answer_tokens: list[int]) -> float:
        asked = questions([3, 9, 5, 7], [0, 1, 2, 3], answer_tokens)
        return mmlu_accuracy(work.module, asked, work.device, (0, 1), False, lambda *at: progress.append(at))

    assert accuracy(guesses) == 1.0
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]
    # A likelier token than all four letters is a wrong answer, even if the right letter is the likeliest of them.
    never = [token for token in range(96) if token not in guesses]
    assert accuracy([guesses[0], *never[:3]]) == pytest.approx(sum(g == guesses[0] for g in guesses[:1]) / 4)
    assert accuracy(never[:4]) == 0.0


def test_an_evaluation_is_the_same_on_one_rank_and_on_three(tmp_path: Path) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        work = workload(folder, rank, world, data={"train_blocks": 18})
        return tuple(work.evaluate(last=True))

    alone = body(tmp_path, 0, 1)
    for result in on_ranks(3, tmp_path / "ranks", body):
        assert result[:4] == alone[:4]
        assert result[4][0]["name"] == "val_loss"
        assert result[4][0]["value"] == pytest.approx(alone[4][0]["value"], abs=1e-6)


def test_questions_are_asked_after_the_last_epoch_only(tmp_path: Path) -> None:
    work = workload(tmp_path)
    train(work, 3)
    evaluation = work.evaluate(last=False)
    assert evaluation[:4] == (None, None, 5, None)
    assert [extra["name"] for extra in evaluation.extra] == ["loss_as_published", "val_loss"]


def test_the_published_accuracy_is_taken_with_dropout_on(tmp_path: Path) -> None:
    work = workload(tmp_path, data={"mmlu_items": 3}, **DROPOUT)
    modes = []
    work.module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    work.sets = work.sets._replace(validation=BlockSet(np.zeros((0, LENGTH), np.int32)))
    first = work.evaluate(last=True)
    assert modes == [False] * 3 + [True] * 3
    assert first.counted == 3
    assert work.evaluate(last=True).accuracy == first.accuracy
    assert work.module.training


# The published loss


def test_the_published_loss_is_the_mean_of_epoch_means(tmp_path: Path) -> None:
    work = workload(tmp_path, data={"train_blocks": 6})
    losses = train(work, 5)
    means = [sum(losses[:3]) / 3, sum(losses[3:]) / 2]
    found = {extra["name"]: extra["value"] for extra in work.evaluate(last=False).extra}
    assert found["loss_as_published"] == pytest.approx(sum(means) / 2)
    assert work.training_facts()["epoch_mean_losses"] == pytest.approx(means)


# What the record is told


def test_work_of_a_batch(tmp_path: Path) -> None:
    for recompute in (False, True):
        work = workload(tmp_path, train={"recompute": recompute})
        done = work.work(next(iter(work.batches(0))))
        assert done[:4] == (2, 2, 2 * LENGTH, 2 * LENGTH)
        assert (
            done.flops_executed == done.flops_useful == llama_lora(work.config["model"], batch_of(2, LENGTH)).executed
        )
        assert (done.flops_recomputed > 0) == recompute


def test_a_run_names_the_exam_it_answered(tmp_path: Path) -> None:
    def digests(**data: Any) -> tuple[Any, Any]:
        facts = workload(tmp_path, data=data).training_facts()
        return facts["validation_sha256"], facts["mmlu_sha256"]

    validation, exam = digests()
    assert len({validation, exam}) == 2
    assert digests(validation_blocks=4)[0] != validation
    assert digests(mmlu_items=6)[1] != exam
    assert digests(mmlu_items=0) == (validation, None)


# Going on from a checkpoint


def saved(work: LlamaLoraWorkload) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What a checkpoint would hold, through the forms it is stored in."""
    from safetensors.torch import load, save

    tensors, facts = work.state()
    return load(save({name: t.contiguous() for name, t in tensors.items()})), json.loads(json.dumps(facts))


@pytest.mark.parametrize("at", [5, 12], ids=["within an epoch", "between two epochs"])
def test_a_restored_run_gives_the_same_losses_bit_for_bit(tmp_path: Path, at: int) -> None:
    whole = workload(tmp_path, **DROPOUT)
    train(whole, at)
    (tensors, facts), generator = saved(whole), torch.get_rng_state()
    expected = train(whole, 16, at)
    other = workload(tmp_path, **DROPOUT)
    other.restore(tensors, facts)
    torch.set_rng_state(generator)
    assert train(other, 16, at) == expected
    assert other.training_facts() == whole.training_facts()
    for name, parameter in whole.parameters.items():
        assert torch.equal(parameter, other.parameters[name])


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="fp16 on a processor needs torch 2")
def test_a_restored_fp16_run_keeps_its_loss_scale(tmp_path: Path) -> None:
    whole = workload(tmp_path, precision="fp16")
    whole.engine.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    train(whole, 1)  # overflows: moments must be there to be saved
    while whole.engine.facts()["updates"] < 2:
        train(whole, 1)
    tensors, facts = saved(whole)
    expected = train(whole, 6, 3)
    other = workload(tmp_path, precision="fp16")
    other.restore(tensors, facts)
    assert train(other, 6, 3) == expected
    assert other.engine.facts() == whole.engine.facts()
