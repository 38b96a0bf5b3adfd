"""The shipped tiny set: reproducible, balanced, split by template, readable, and out of reach of word counts."""

from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np
import pytest
from tokenizers import BertWordPieceTokenizer

from flagbench_cases.cases.distilbert.tiny import generate, grammar

pytestmark = pytest.mark.image

FOLDER = Path(generate.__file__).parent
SPLITS = ("train", "dev")

Rows = List[Tuple[str, int]]


def read(split: str) -> Rows:
    header, *lines = (FOLDER / ("%s.tsv" % split)).read_text(encoding="utf-8").splitlines()
    assert header == "sentence\tlabel"
    pairs = (line.split("\t") for line in lines)
    return [(sentence, int(label)) for sentence, label in pairs]


@pytest.fixture(scope="module")
def shipped() -> Dict[str, Rows]:
    return {split: read(split) for split in SPLITS}


def test_sizes_and_balance_of_labels(shipped: Dict[str, Rows]) -> None:
    assert {split: len(rows) for split, rows in shipped.items()} == {"train": 6000, "dev": 800}
    for rows in shipped.values():
        assert {label for _, label in rows} == {0, 1}
        assert 0.48 <= sum(label for _, label in rows) / len(rows) <= 0.52


def test_lengths_are_those_of_sst2(shipped: Dict[str, Rows]) -> None:
    for rows in shipped.values():
        lengths = [len(sentence.split(" ")) for sentence, _ in rows]
        assert 10 <= np.mean(lengths) <= 16
        assert 30 <= max(lengths) <= 40


def test_no_sentence_occurs_twice(shipped: Dict[str, Rows]) -> None:
    sentences = [sentence for rows in shipped.values() for sentence, _ in rows]
    assert len(set(sentences)) == len(sentences)


def delexicalised(sentence: str) -> str:
    """The sentence with each word of a list replaced by the list's slot: its pattern, read from the file alone."""
    slots = {word: slot for slot, words in grammar.NEUTRAL.items() for word in words}
    slots.update((word, slot) for slot, pair in grammar.POLAR.items() for words in pair for word in words)
    return " ".join(slots.get(word, word) for word in sentence.split(" "))


def test_the_splits_share_no_pattern(shipped: Dict[str, Rows]) -> None:
    train, dev = ({delexicalised(sentence) for sentence, _ in shipped[split]} for split in SPLITS)
    assert train.isdisjoint(dev)


def test_one_word_is_one_known_token(shipped: Dict[str, Rows]) -> None:
    tokenizer = BertWordPieceTokenizer(str(FOLDER / "vocab.txt"), lowercase=True)
    sentences = [sentence for rows in shipped.values() for sentence, _ in rows]
    for sentence, encoding in zip(sentences, tokenizer.encode_batch(sentences)):
        assert encoding.tokens == ["[CLS]", *sentence.split(" "), "[SEP]"]


def word_counts(rows: Rows, columns: Dict[str, int]) -> Tuple[np.ndarray, np.ndarray]:
    """Counts [n, words + 1], the last column a constant, and labels [n]."""
    counts = np.zeros((len(rows), len(columns) + 1))
    counts[:, -1] = 1.0
    for row, (sentence, _) in enumerate(rows):
        for word in sentence.split(" "):
            counts[row, columns[word]] += 1.0
    return counts, np.array([label for _, label in rows], dtype=float)


def logistic_regression(x: np.ndarray, y: np.ndarray, l2: float, steps: int = 6) -> np.ndarray:
    """The weights that minimise log loss + l2 / 2 * |w|^2, by Newton's method."""
    w = np.zeros(x.shape[1])
    for _ in range(steps):
        p = 1.0 / (1.0 + np.exp(-x @ w))
        gradient = x.T @ (p - y) + l2 * w
        hessian = (x * (p * (1.0 - p))[:, None]).T @ x + l2 * np.eye(x.shape[1])
        w -= np.linalg.solve(hessian, gradient)
    assert np.linalg.norm(gradient) < 1e-3  # it did converge, so that a low score is the data's doing
    return w


def test_a_bag_of_words_cannot_solve_it(shipped: Dict[str, Rows]) -> None:
    words = sorted({word for rows in shipped.values() for sentence, _ in rows for word in sentence.split(" ")})
    columns = {word: column for column, word in enumerate(words)}
    x, y = word_counts(shipped["train"], columns)
    x_dev, y_dev = word_counts(shipped["dev"], columns)
    # The best strength is chosen on dev itself: an upper bound on what word counts can do.
    best = max(np.mean((x_dev @ logistic_regression(x, y, l2) > 0) == y_dev) for l2 in (0.1, 1.0, 10.0, 100.0))
    assert 0.60 <= best <= 0.85
