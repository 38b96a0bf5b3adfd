"""The shipped tiny set: reproducible, in ReCoRD's form, out of reach of memory, and read like the real one."""

from __future__ import annotations

import json
from typing import Any

import pytest

import make_tiny_glm
from flagbench_cases.cases.glm import data as dataset
from flagbench_cases.shared.errors import UsageError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

FOLDER = make_tiny_glm.SHIPPED
SIZES = {"train": 520, "val": 100}
DATA = {"source": "shipped", "sequence_length": 56}


@pytest.fixture(scope="module")
def shipped() -> dict[str, list[dict[str, Any]]]:
    return {s: [json.loads(row) for row in (FOLDER / (s + ".jsonl")).read_text().splitlines()] for s in SIZES}


@pytest.fixture(scope="module")
def sets() -> dataset.Sets:
    return dataset.load(DATA, {"vocab_size": 96}, None, seed=1)


def spans(line: dict[str, Any]) -> list[str]:
    """The entities of a passage."""
    text = line["passage"]["text"]
    return [text[entity["start"] : entity["end"] + 1] for entity in line["passage"]["entities"]]


def test_sizes(shipped: Any, sets: dataset.Sets) -> None:
    assert {split: len(lines) for split, lines in shipped.items()} == SIZES
    assert sum((FOLDER / name).stat().st_size for name in ("train.jsonl", "val.jsonl", "vocab.txt")) < 300000
    assert (len(sets.train), len(sets.evaluation)) == (1040, 200)
    assert (sets.condition, sets.choices_condition) == ("shipped", "4 at most, mean 4.0")
    assert sets.train.lengths.max() <= 50


def test_the_answer_is_what_the_passage_keeps_to(shipped: Any) -> None:
    for line in (*shipped["train"], *shipped["val"]):
        counts = {name: line["passage"]["text"].count(name) for name in spans(line)}
        assert sorted(counts.values()) == [1, 1, 4, 4]
        for query in line["qas"]:
            answer = query["answers"][0]["text"]
            assert counts[answer] == 4
            assert (answer in make_tiny_glm.PERSONS) == (query["query"] in make_tiny_glm.PERSON_QUERIES)


def test_a_model_that_is_too_small_is_refused() -> None:
    with refuses(UsageError, 88, 87):
        dataset.load(DATA, {"vocab_size": 87}, None, seed=1)
