"""Evaluation on 1 to 3 ranks, each example once and as published; initial weights of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from flagbench_cases.cases.glm import data as dataset
from flagbench_cases.cases.glm.prepare import WEIGHTS_FORMAT
from flagbench_cases.cases.glm.workload import SEGMENT, GlmWorkload
from flagbench_cases.prepare.writer import writing
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.spool import SpoolReader
from unit.cases.glm.small_glm import EVALUATION, examples, workload
from unit.cases.refusal import refuses
from workloads import on_ranks

pytestmark = pytest.mark.image


def choose_the_largest_answer(work: GlmWorkload, wanted: list[int]) -> None:
    """A stand-in for the model: the score of a choice is its first target; example i gets choice wanted[i] so."""
    evaluation = work.sets.evaluation
    starts = evaluation.examples.arrays["answer_starts"]
    tokens = evaluation.examples.arrays["answers"] = evaluation.examples.arrays["answers"].copy()
    for index, choice in enumerate(wanted):
        first = int(evaluation.starts[index])
        for c in range(int(evaluation.choices[index])):
            tokens[starts[first + c]] = 30 if c == choice else 10
    work.module.forward = lambda tokens, positions, sep, targets, mask: targets.gather(2, sep.unsqueeze(2))[..., 0]


@pytest.mark.parametrize(
    ("world", "published"),
    [(1, 4 / 7), (2, 5 / 8), (3, 6 / 9)],  # example 0 is repeated at two ranks, 0 and 1 at three
)
def test_evaluation_counts_as_published(tmp_path: Path, world: int, published: float) -> None:
    def body(folder: Path, rank: int, world: int) -> Any:
        work = workload(folder, rank, world)
        choose_the_largest_answer(work, [0, 0, 3, 1, 0, 1, 0])
        result = work.evaluate(last=False)
        assert work.module.training
        progress = SpoolReader(str(folder), rank).progress()
        assert (progress.done, progress.total) == (len(work.eval_loader), len(work.eval_loader))
        return tuple(result)

    results = on_ranks(world, tmp_path / "ranks", body) if world > 1 else [body(tmp_path, 0, 1)]
    for accuracy, as_published, counted, deciding, (f1,) in results:
        assert accuracy == pytest.approx(4 / 7)
        assert as_published == deciding == pytest.approx(published)
        assert counted == 7
        assert (f1["name"], f1["unit"]) == ("f1", "fraction")
        assert f1["note"].endswith(", over wordpieces")
        assert f1["value"] == pytest.approx((4 + 3 * 0.25) / 7)


def test_candidates_are_scored_ten_at_a_time(tmp_path: Path) -> None:
    many = dataset.Sets(examples([2] * 4, 2), examples([23, 11], 3), "shipped", "2 at most, mean 2.0", "words")
    work, seen = workload(tmp_path, sets=many), []
    choose_the_largest_answer(work, [22, 4])
    score = work.module.forward

    def forward(tokens: Any, *rest: Any) -> Any:
        seen.append(tokens.shape[1])
        return score(tokens, *rest)

    work.module.forward = forward
    assert work._choose(next(iter(work.eval_loader))) == [22, 4]
    assert seen == [SEGMENT, SEGMENT, 3]


def test_padding_choices_are_never_chosen(tmp_path: Path) -> None:
    work = workload(tmp_path)
    work.module.forward = lambda tokens, *rest: torch.arange(tokens.shape[1]).expand(tokens.shape[:2]) - 1e6
    chosen = [choice for batch in work.eval_loader for choice in work._choose(batch)]
    assert chosen == [count - 1 for count in EVALUATION]


# Weights


def prepare(out: Path, state: dict[str, torch.Tensor]) -> str:
    """A prepared folder of weights with these tensors."""
    with writing(str(out), "glm", "weights") as writer:
        save_file(state, writer.path("model.safetensors"))
        writer.format(WEIGHTS_FORMAT)
    return str(out)


def test_run_begins_with_the_prepared_weights(tmp_path: Path) -> None:
    stored = {name: tensor.half() for name, tensor in workload(tmp_path, seed=5).module.state_dict().items()}
    work = workload(tmp_path, weights=prepare(tmp_path / "out", stored))
    for name, tensor in work.module.state_dict().items():
        assert torch.equal(tensor, stored[name].float()), name
    assert work.describe()["data"]["weights"].startswith("sha256:")
    assert workload(tmp_path).describe()["data"]["weights"] is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("word_embeddings.weight"),
        lambda state: state.update({"word_embeddings.weight": torch.zeros(41, 16)}),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, damage: Any) -> None:
    state = dict(workload(tmp_path).module.state_dict())
    damage(state)
    with refuses(DataError, "word_embeddings.weight"):
        workload(tmp_path, weights=prepare(tmp_path / "out", state))
