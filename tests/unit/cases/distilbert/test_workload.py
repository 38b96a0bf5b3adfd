"""DistilBERT on 1 to 3 ranks: buffers, dropout, accumulation, evaluation, work."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from flagbench_cases.cases.distilbert.workload import DistilBertWorkload, build
from flagbench_cases.shared.manifests import load_case
from flagbench_core.config import merge
from workloads import on_ranks, set_up, train

pytestmark = pytest.mark.image

PRESETS = load_case("distilbert")["presets"]
# Weights wider than the published spread: in a model this narrow their signal would drown in rounding.
MODEL = {
    "initializer_range": 0.2,
    "layers": 2,
    "dim": 16,
    "heads": 2,
    "hidden_dim": 24,
    "vocab_size": 200,
    "positions": 16,
}
SMALL = {
    "model": {**MODEL, "dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.0},
    "data": {"source": "synthetic", "sequence_length": 16, "workers": 0, "train_examples": 40, "eval_examples": 7},
    "train": {"batch_size": 4, "max_epochs": 2, "learning_rate": 1e-2},
    "eval": {"batch_size": 2},
    "precision": "fp32",
    "weights": "random",
    "seed": 0,
}
LEARNING_RATE = 1e-2
# The published schedule moves on every micro-batch, also before the first update; torch finds that unusual.
UNUSUAL_ORDER = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")


def workload(folder: Path, rank: int = 0, world: int = 1, **changed: dict[str, Any]) -> DistilBertWorkload:
    """A workload that is set up on a small synthetic set; `changed` replaces keys of sections."""
    return set_up(build, merge(merge(PRESETS["reference"], SMALL), changed), folder, rank, world)


# Optimizer and schedule


def test_position_ids_come_from_rank_0_before_each_forward_pass(tmp_path: Path) -> None:
    """A buffer of the publisher's model, which DistributedDataParallel broadcasts in training and in evaluation."""

    def body(folder: Path, rank: int, world: int) -> Any:
        work, seen = workload(folder, rank, world), []
        ids = work.module.distilbert.embeddings.position_ids
        for forward in (lambda: work.step(next(iter(work.batches(0)))), lambda: work.evaluate(last=True)):
            ids.mul_(1 - rank)
            forward()
            seen.append(ids.flatten().tolist())
        return seen

    assert on_ranks(2, tmp_path, body) == [[list(range(MODEL["positions"]))] * 2] * 2


def test_ranks_draw_the_same_dropout_and_stay_in_step(tmp_path: Path) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        work = workload(folder, rank, world, model={"dropout": 0.3})
        before = copy.deepcopy(work.module.state_dict())
        draw = torch.rand(4)
        train(work, 4)
        return before, draw, work.module.state_dict()

    (begun, draw, one), (begun_too, other_draw, two) = on_ranks(2, tmp_path, body)
    assert torch.equal(draw, other_draw)
    for name in one:
        assert torch.equal(begun[name], begun_too[name]), name
        assert torch.equal(one[name], two[name]), name
    assert not torch.equal(begun["classifier.weight"], one["classifier.weight"])


@UNUSUAL_ORDER
@pytest.mark.parametrize("accumulate", [1, 3])
def test_learning_rate_falls_a_micro_batch_at_a_time_to_zero(tmp_path: Path, accumulate: int) -> None:
    work = workload(tmp_path, train={"gradient_accumulation_steps": accumulate})
    rates = []
    for epoch in range(2):
        for batch in work.batches(epoch):
            rates.append([group["lr"] for group in work.optimizer.param_groups])
            work.step(batch)
    expected = [LEARNING_RATE * (1 - step / 20) for step in range(20)]
    assert [rate for rate, _ in rates] == [rate for _, rate in rates] == pytest.approx(expected)
    assert [group["lr"] for group in work.optimizer.param_groups] == [0.0, 0.0]


def gradients_at_updates(work: DistilBertWorkload) -> list[dict[str, torch.Tensor]]:
    """A list that fills with the gradients of every update."""
    taken: list[dict[str, torch.Tensor]] = []
    update = work.optimizer.step

    @functools.wraps(update)
    def step(*arguments: Any) -> Any:
        taken.append({name: p.grad.clone() for name, p in work.module.named_parameters()})
        return update(*arguments)

    work.optimizer.step = step
    return taken


@UNUSUAL_ORDER
@pytest.mark.parametrize("k", [2, 4])
def test_accumulation_over_k_is_a_batch_k_times_as_large(tmp_path: Path, k: int) -> None:
    whole = workload(tmp_path)
    parts = workload(tmp_path, train={"gradient_accumulation_steps": k})
    for work in (whole, parts):
        work.module.double()
    expected, taken = gradients_at_updates(whole), gradients_at_updates(parts)
    examples = [whole.sets.train[index] for index in range(8)]
    loss = whole.step(default_collate(examples))
    losses = [parts.step(default_collate(examples[i : i + 8 // k])) for i in range(0, 8, 8 // k)]
    assert sum(losses) / k == pytest.approx(loss, abs=1e-12)
    assert (len(expected), len(taken)) == (1, 1)
    for name, gradient in expected[0].items():
        # Softmax does not see a key's bias; its gradient is rounding, and the weight's beside it the scale.
        scale = float(expected[0][name.replace("k_lin.bias", "k_lin.weight")].abs().max())
        assert float((taken[0][name] - gradient).abs().max()) <= 1e-10 * scale, name


# Evaluation


def always_class_zero(work: DistilBertWorkload) -> None:
    with torch.no_grad():
        work.module.classifier.weight.zero_()
        work.module.classifier.bias.copy_(torch.tensor([1.0, 0.0]))
    work.sets.evaluation.labels[:] = [0, 1, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("world", "published"),
    [(1, 4 / 7), (2, 5 / 7), (3, 5 / 7)],  # the publisher repeats example 0 at two ranks, 0 and 1 at three
)
def test_evaluation_counts_each_example_once_and_as_published(tmp_path: Path, world: int, published: float) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        work = workload(folder, rank, world)
        always_class_zero(work)
        result = work.evaluate(last=False)
        assert work.network.training
        return tuple(result)[:4]

    results = on_ranks(world, tmp_path / "ranks", body) if world > 1 else [body(tmp_path, 0, 1)]
    for result in results:
        assert result == (pytest.approx(4 / 7), pytest.approx(published), 7, pytest.approx(published))


# What the record is told


def test_work_of_a_ragged_and_partial_batch(tmp_path: Path) -> None:
    work = workload(tmp_path)
    lengths = [3, 16, 7]
    mask = (torch.arange(16) < torch.tensor(lengths)[:, None]).long()
    done = work.work([mask * 5, mask, torch.zeros(3)])

    def training_flops(tokens: int) -> int:
        d, hidden, classes = MODEL["dim"], MODEL["hidden_dim"], 2
        layer = 4 * tokens * d * d + 2 * tokens * tokens * d + 2 * tokens * d * hidden
        return 3 * 2 * (MODEL["layers"] * layer + d * d + d * classes)

    assert (done.samples, done.published_samples) == (3, 4)
    assert (done.tokens, done.tokens_useful) == (48, 26)
    assert done.flops_executed == 3 * training_flops(16)
    assert done.flops_useful == sum(training_flops(tokens) for tokens in lengths)
