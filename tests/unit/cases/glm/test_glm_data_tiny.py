"""The shipped tiny set: reproducible, in ReCoRD's form, out of reach of memory, and read like the real one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.cases.glm import data as dataset
from flagbench_cases.cases.glm.tiny import generate
from flagbench_cases.shared.errors import UsageError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

FOLDER = Path(generate.__file__).parent
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
            assert (answer in generate.PERSONS) == (query["query"] in generate.PERSON_QUERIES)


def pairs(lines: list[dict[str, Any]]) -> set[frozenset[str]]:
    """Who and what meets in a passage: its two persons, its two places."""
    found = set()
    for line in lines:
        persons = frozenset(spans(line)) & set(generate.PERSONS)
        found |= {persons, frozenset(spans(line)) - persons}
    return found


def test_no_pair_of_val_meets_in_train(shipped: Any) -> None:
    train, val = pairs(shipped["train"]), pairs(shipped["val"])
    assert train.isdisjoint(val)
    assert len(val) > 10


def test_no_name_is_a_better_guess_than_another(shipped: Any) -> None:
    """Whoever is asked about is as often the other one: the kind alone is right in half of the cases."""
    right = Counter(q["answers"][0]["text"] for line in shipped["val"] for q in line["qas"])
    seen = Counter(name for line in shipped["val"] for name in spans(line))
    # The best guess by memory: of each pair the name that is right more often in train.
    known = Counter(q["answers"][0]["text"] for line in shipped["train"] for q in line["qas"])
    hits = 0
    for line in shipped["val"]:
        for query in line["qas"]:
            kind = generate.PERSONS if query["query"] in generate.PERSON_QUERIES else generate.PLACES
            hits += max((n for n in spans(line) if n in kind), key=lambda n: known[n]) == query["answers"][0]["text"]
    assert 0.35 < hits / 200 < 0.62
    assert set(right) <= set(seen)


def test_a_model_that_is_too_small_is_refused() -> None:
    with refuses(UsageError, 88, 87):
        dataset.load(DATA, {"vocab_size": 87}, None, seed=1)
