"""Raw ReCoRD rebuilt by the publisher's rules, against rows written by hand; damaged files are refused by line."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cloze_files import (
    LENGTH,
    LINES,
    WORDS,
    from_text,
    ids,
    line,
    vocabulary_lines,
    write_jsonl,
    write_vocabulary,
)
from flagbench_cases.cases.glm.data import ClozeSet
from flagbench_cases.cases.glm.prepare import published_vocabulary
from flagbench_cases.cases.glm.ragged import RaggedExamples
from flagbench_cases.cases.glm.special_tokens import SpecialTokens
from flagbench_cases.shared.errors import DataError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

PASSAGE = '[CLS] anna met ben - in " old town " . - ben left'


def texts(examples: RaggedExamples, index: int) -> list[str]:
    """The answers of an example in words."""
    known = vocabulary_lines()
    return [" ".join(known[token] for token in answer) for answer in examples.example(index).answers]


def test_evaluation_rows_by_hand(tmp_path: Path) -> None:
    examples = from_text(write_jsonl(tmp_path, LINES[:1]) / "val.jsonl", False)
    assert len(examples) == 2
    first, second = examples.example(0), examples.example(1)
    assert [context.tolist() for context in first.contexts] == [ids(PASSAGE + " then [MASK] ' s dog ran . [PAD]")] * 3
    assert first.masks == [15, 15, 15]
    assert [answer.tolist() for answer in first.answers] == [ids("anna"), ids("ben"), ids("old town")]
    assert first.right.tolist() == [False, True, False]
    assert second.contexts[0].tolist() == ids(PASSAGE + " [MASK] met ben . [PAD]")
    assert second.right.tolist() == [True, True, False]
    assert [examples.f1(1, choice) for choice in range(3)] == [1.0, 1.0, 0.0]


def test_training_has_an_example_for_every_right_answer(tmp_path: Path) -> None:
    examples = from_text(write_jsonl(tmp_path, LINES[:1]) / "train.jsonl", True)
    assert len(examples) == 3
    # Two choices before three; the other right answer of a query is no wrong choice.
    assert [texts(examples, index) for index in range(3)] == [
        ["anna", "old town"],
        ["ben", "old town"],
        ["ben", "anna", "old town"],
    ]
    for index, size in enumerate((2, 2, 3)):
        assert examples.example(index).right.tolist() == [True, False, False][:size]


def test_nine_wrong_entities_are_drawn_with_the_publishers_seed(tmp_path: Path) -> None:
    names = list(WORDS[20:36])
    many = line(" ".join(names), names, ("who is @placeholder", names[:2]))
    examples = from_text(write_jsonl(tmp_path, [many]) / "train.jsonl", True)
    shuffler = Random(42)
    for index, answer in enumerate(names[:2]):
        wrong = names[2:]
        shuffler.shuffle(wrong)
        assert texts(examples, index) == [answer, *wrong[:9]]
    evaluated = from_text(tmp_path / "val.jsonl", False)
    assert texts(evaluated, 0) == names


def test_a_long_passage_is_cut_at_its_end_for_each_choice(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, LINES[2:]) / "val.jsonl"
    examples = from_text(path, False, length=32)
    example = examples.example(0)
    assert examples.lengths.tolist() == [32] * 4
    query = ids("[UNK] is [MASK] who ran . [PAD]")
    passage = ids("one two three four five six seven eight nine ten " * 3)
    # Beside answer, query and passage a row has [CLS] and <|startofpiece|>.
    for context, answer in zip(example.contexts, example.answers):
        room = 32 - 2 - len(query) - len(answer)
        assert context.tolist() == ids("[CLS]") + passage[:room] + query
    assert [len(answer) for answer in example.answers] == [1, 4, 1, 1]  # in the order of the file


def test_lower_case_accents_and_word_pieces_are_berts(tmp_path: Path) -> None:
    some = line("ANNÁ met RUNS", ["ANNÁ", "RUNS"], ("dogs @placeholder", ["RUNS"]))
    context = from_text(write_jsonl(tmp_path, [some]) / "val.jsonl", False).example(0).contexts[0]
    assert context.tolist() == ids("[CLS] anna met [UNK] dog ##s [MASK] [PAD]")


def test_an_entity_without_tokens_is_scored_by_its_end(tmp_path: Path) -> None:
    some = line("Anna met \u200b.", ["Anna", "\u200b"], ("who is @placeholder", ["Anna"]))
    cloze = ClozeSet(from_text(write_jsonl(tmp_path, [some]) / "val.jsonl", False), LENGTH, SpecialTokens())
    example = cloze[0]
    assert example.target_mask.sum(axis=1).tolist() == [2, 1]
    assert example.targets[1, example.sep[1]] == SpecialTokens().eop


def broken(**changes: Any) -> str:
    """A good line, then one whose passage, query or answers are changed."""
    bad = line("Anna met Ben.", ["Anna", "Ben"], ("who is @placeholder", ["Ben"]))
    bad["qas"][0].update({key: value for key, value in changes.items() if key in ("query", "answers")})
    bad["passage"].update({key: value for key, value in changes.items() if key in ("text", "entities")})
    return json.dumps(LINES[0]) + "\n" + json.dumps(bad) + "\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (json.dumps(LINES[0]) + "\n" + json.dumps(LINES[1])[:-9], "val.jsonl:2"),
        ("", "val.jsonl"),
        ("[1]\n", "val.jsonl:1: text"),
    ],
)
def test_what_holds_no_examples_is_refused(tmp_path: Path, text: str, named: str) -> None:
    write_jsonl(tmp_path, val=text)
    with refuses(DataError, named):
        from_text(tmp_path / "val.jsonl", False)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"query": "who is it"}, "@placeholder"),
        ({"query": "@placeholder and @placeholder"}, "@placeholder"),
        ({"query": 7}, "query"),
        ({"query": "one " * 60 + "@placeholder"}, LENGTH),
        ({"text": "Anna met \ud83d Ben."}, "text"),
        ({"answers": []}, "answers"),
        ({"answers": ["Ben"]}, "answers"),
        ({"entities": []}, "entities"),
        ({"entities": [{"start": 13, "end": 14}]}, "entity"),
        ({"entities": [{"start": 3, "end": 2}]}, "entity"),
    ],
)
def test_what_is_damaged_is_refused_by_its_line(tmp_path: Path, changes: dict[str, Any], named: Any) -> None:
    write_jsonl(tmp_path, val=broken(**changes))
    with refuses(DataError, "val.jsonl:2", named):
        from_text(tmp_path / "val.jsonl", False)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda lines: lines[:-1], ("30521", "30522")),
        (lambda lines: [*lines[:-1], lines[-2]], ("[unused30520]", "30521", "30522")),
        (lambda lines: [line.replace("[MASK]", "mask") for line in lines], ("[MASK]",)),
        (lambda lines: [*lines[1:], lines[0]], ("special tokens",)),
    ],
)
def test_another_vocabulary_is_refused(tmp_path: Path, change: Any, named: Any) -> None:
    path = write_vocabulary(tmp_path, change(vocabulary_lines()))
    with refuses(DataError, path, *named):
        published_vocabulary(path)
