"""F1 of a choice, against values computed by hand."""

from __future__ import annotations

import pytest

from flagbench_cases.cases.glm.overlap import best_f1, normalised_words, token_f1

pytestmark = pytest.mark.image


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. Senate", ["us", "senate"]),
        ("an  Apple a day", ["apple", "day"]),
        ("theatre", ["theatre"]),
        ("Smith's", ["smiths"]),
        ("the", []),
    ],
)
def test_words_are_normalised_as_squad_does(text: str, words: list[str]) -> None:
    assert normalised_words(text) == words


@pytest.mark.parametrize(
    ("choice", "answer", "expected"),
    [
        (["new", "york"], ["new", "york"], 1.0),
        (["new", "york"], ["york"], 2 * 0.5 * 1.0 / 1.5),
        (["york"], ["new", "york", "city"], 2 * 1.0 * (1 / 3) / (4 / 3)),
        (["a", "a", "b"], ["a", "b", "b"], 2 / 3),  # repeats count as often as both have them
        (["x"], ["y"], 0.0),
        ([], ["y"], 0.0),
        ([], [], 0.0),
    ],
)
def test_f1_by_hand(choice: list[str], answer: list[str], expected: float) -> None:
    assert token_f1(choice, answer) == pytest.approx(expected)
    assert token_f1(answer, choice) == pytest.approx(expected)


def test_the_best_right_answer_counts() -> None:
    assert best_f1([5, 6], [[7], [6], [5, 6, 7]]) == pytest.approx(0.8)
    assert best_f1([5], []) == 0.0
