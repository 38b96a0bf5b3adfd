"""The workload: the loss of a sentence and of all, their order, and what is counted, at any layout."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.engines.megatron.shape import shape_of
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import Step
from flagbench_core.flops import batch_of, llama_forward
from unit.cases.aquila_33b.aquila_bench import by_transformers, configured, scored, some_sentences
from workloads import on_ranks

pytestmark = pytest.mark.image

ODD = 7
LAYOUTS = {"whole": Layout(), "tp2": Layout(1, 2, 1), "dp2": Layout(2, 1, 1), "dp2 tp2": Layout(2, 2, 1)}
PADDED = {"vocab_multiple": 100}
"""Pads the vocabulary of 448 to 500 rows; that of the preset is not padded on 1 to 8 ranks."""


@pytest.fixture(scope="module")
def passes(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """`passes(NAME)`: what each rank of a layout did in a whole pass over seven sentences."""
    folder = tmp_path_factory.mktemp("passes")

    @functools.lru_cache(maxsize=None)
    def run(name: str) -> list[dict[str, Any]]:
        layout = LAYOUTS[name]
        body = functools.partial(at_layout, layout, count=ODD)
        return on_ranks(layout.world, folder / name.replace(" ", "-"), body)

    return run


def at_layout(layout: Layout, folder: Path, rank: int, world: int, **options: Any) -> dict[str, Any]:
    return scored(folder, rank, layout, **options)


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """transformers' loss of each of the seven sentences."""
    pytest.importorskip("transformers")
    return by_transformers(some_sentences(ODD))


def loss_of(rank: dict[str, Any]) -> float:
    """The result of a pass."""
    (entry,) = rank["evaluation"]["extra"]
    assert (entry["name"], entry["unit"]) == ("loss", "nats")
    return float(entry["value"])


def steps_of(rank: dict[str, Any]) -> list[Step]:
    return [Step(*values) for values in rank["steps"]]


def total(field: str, steps: list[Step]) -> float:
    return sum(getattr(step, field) for step in steps)


def order(rank: dict[str, Any]) -> list[int]:
    """The numbers of the sentences that a rank scored."""
    made = some_sentences(ODD)
    numbers = {tuple(made[index][0].tolist()): index for index in range(ODD)}
    return [numbers[tuple(tokens[0].tolist())] for tokens, _ in rank["batches"]]


# The loss


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_loss_of_a_sentence_is_that_of_transformers(passes: Any, expected: list[float], name: str) -> None:
    """The mean over its own tokens: the first is not scored, </s> is; what pads the sentence changes nothing."""
    layout = LAYOUTS[name]
    assert max(expected) - min(expected) > 0.5
    for number, rank in enumerate(passes(name)):
        if layout.has_loss(number):
            wanted = [expected[sentence] for sentence in order(rank)]
            assert [step.loss for step in steps_of(rank)] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_result_is_the_mean_over_sentences_each_once(passes: Any, expected: list[float], name: str) -> None:
    """Two replicas take four of the seven each: the sampler repeats one, which is not counted twice."""
    for rank in passes(name):
        assert loss_of(rank) == pytest.approx(sum(expected) / ODD, abs=1e-5)
        assert rank["evaluation"]["counted"] == ODD
    if LAYOUTS[name].dp == 2:
        assert sorted(order(passes(name)[0]) + order(passes(name)[-1])) != sorted(range(ODD))


def test_sentences_come_in_the_publisher_s_order(passes: Any) -> None:
    """The sampler's: shuffled once, with its seed 0; replicas take turns, and the first sentence is repeated."""
    shuffled = torch.randperm(ODD, generator=torch.Generator().manual_seed(0)).tolist()
    assert order(passes("whole")[0]) == shuffled != list(range(ODD))
    one, other = (order(passes("dp2 tp2")[rank]) for rank in (0, 2))
    assert [sentence for pair in zip(one, other) for sentence in pair] == [*shuffled, shuffled[0]]
    assert [order(rank) for rank in passes("dp2 tp2")] == [one, one, other, other]


# What is counted


@pytest.mark.parametrize("name", LAYOUTS)
def test_work_is_counted_once_per_replica(passes: Any, name: str) -> None:
    layout, ranks = LAYOUTS[name], passes(name)
    share = -(-ODD // layout.dp)
    steps: list[Step] = []
    for rank in ranks:
        assert len(rank["steps"]) == share
        steps += steps_of(rank)
    lengths = some_sentences(ODD).lengths
    scored_tokens = []
    for replica in range(layout.dp):
        scored_tokens += [int(lengths[sentence]) - 1 for sentence in order(ranks[replica * layout.tp])]
    rows = shape_of(configured()["model"]).padded_vocabulary(layout.tp)
    model = {**configured()["model"], "vocab_size": rows}
    without_padding = sum(llama_forward(model, batch_of(1, length)).executed for length in scored_tokens)
    samples = share * layout.dp
    assert total("samples", steps) == total("published_samples", steps) == samples
    assert total("tokens", steps) == samples * 128
    assert total("tokens_useful", steps) == sum(scored_tokens)
    assert total("flops_executed", steps) == llama_forward(model, batch_of(samples, 128)).executed
    assert total("flops_useful", steps) == pytest.approx(without_padding)


# Rows that pad the vocabulary


def padded(folder: Path, rank: int, world: int) -> dict[str, float]:
    """The result on three sentences for both kinds of rows, with and without any."""
    found = {}
    for padding in ("last_row", "zeros"):
        for name, model in (("padded", PADDED), ("not padded", {})):
            place = folder / (padding + name)
            place.mkdir(exist_ok=True)
            options = {"model": model, "infer": {"vocabulary_padding": padding}}
            found[f"{padding}, {name}"] = loss_of(scored(place, rank, Layout(1, world, 1), count=3, **options))
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_rows_that_pad_the_vocabulary_are_in_the_softmax(megatron: None, tmp_path: Path, world: int) -> None:
    pytest.importorskip("transformers")
    made, rows = some_sentences(3), {1: 52, 2: 152}[world]
    plain = sum(by_transformers(made)) / 3
    for found in on_ranks(world, tmp_path, padded):
        assert found["zeros, not padded"] == found["last_row, not padded"] == pytest.approx(plain, abs=1e-5)
        for padding in ("zeros", "last_row"):
            wanted = sum(by_transformers(made, padding, rows)) / 3
            assert found[f"{padding}, padded"] == pytest.approx(wanted, abs=1e-5)
            assert wanted > plain + 1e-3
