"""The sentences that Aquila scores: tokens, padding, the scored positions, and the folder a run reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flagbench_cases.cases.aquila_33b import sentences
from flagbench_cases.cases.aquila_33b.tokens import Tokeniser
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.shared.errors import DataError
from unit.cases.aquila_33b.aquila_vocabulary import CLS, EOS, PIECES, SIZE, write
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

TEXTS = ["hello the", "abc", "", "the abc 12"]
LENGTH = 16


@pytest.fixture
def tokeniser(tmp_path: Path) -> Tokeniser:
    return Tokeniser(str(write(tmp_path / "tokenizer")), SIZE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "texts.jsonl"


def lines(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


def ids(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def test_tokens_padding_and_scored_positions(path: Path, tokeniser: Tokeniser) -> None:
    made = sentences.tokenise(lines(path, TEXTS), tokeniser, LENGTH)
    assert made.lengths.tolist() == [4, 4, 2, 8]
    assert made.tokens[: made.offsets[1]].tolist() == [CLS, *ids("hello", "Ġthe"), EOS]
    assert (made.tokens.dtype, made.offsets.dtype) == (np.int32, np.int64)
    tokens, scored = made[1]
    assert tokens.tolist() == [CLS, *ids("ab", "c"), EOS] + [0] * 13
    assert scored.tolist() == [1, 1, 1] + [0] * 13
    assert (str(tokens.dtype), str(scored.dtype), len(made)) == ("torch.int64", "torch.int64", 4)


@pytest.mark.parametrize(
    ("characters", "length", "last"), [(14, 16, EOS), (15, 17, EOS), (16, 17, None), (99, 17, None)]
)
def test_a_long_text_is_cut(path: Path, tokeniser: Tokeniser, characters: int, length: int, last: Any) -> None:
    """To sequence_length characters, then to sequence_length + 1 tokens, which may drop the end of the sentence."""
    made = sentences.tokenise(lines(path, ["x" * characters]), tokeniser, LENGTH)
    tokens, scored = made[0]
    assert made.lengths.tolist() == [length]
    assert tokens.tolist()[length - 1] == (ids("x")[0] if last is None else last)
    assert int(scored.sum()) == length - 1


def test_random_sentences_have_lambadas_lengths() -> None:
    made = sentences.synthetic(5000, 4096, 100008, seed=1)
    assert abs(made.lengths.mean() - sentences.MEAN_LENGTH) < 0.5
    assert sentences.SHORTEST <= made.lengths.min() <= made.lengths.max() < 200
    assert sentences.PAD < made.tokens.min() <= made.tokens.max() < 100008


def prepare(out: Path, made: sentences.SentenceSet) -> Path:
    with prepared_folder.writing(str(out), sentences.CASE, "data") as writer:
        sentences.write(made, writer)
    return out / "data"


def load(folder: Path, length: int = LENGTH, size: int = SIZE) -> sentences.Loaded:
    """A run's sentences of a prepared folder."""
    return sentences.load({"source": "files", "sequence_length": length}, {"vocab_size": size}, str(folder), 0)


def test_a_prepared_folder(tmp_path: Path, path: Path, tokeniser: Tokeniser) -> None:
    made = sentences.tokenise(lines(path, TEXTS), tokeniser, LENGTH)
    folder = prepare(tmp_path / "out", made)
    found = load(folder)
    assert (found.sentences.digest(), found.sentences.length, found.condition) == (made.digest(), LENGTH, "files")
    facts = prepared_folder.open_folder(str(folder), sentences.CASE, "data", (sentences.FORMAT,)).facts
    assert facts == {"sequence_length": LENGTH, "sentences": 4, "tokens": 18}
    with refuses(DataError, folder, LENGTH, 32):
        load(folder, length=32)
    with refuses(DataError, folder, EOS):
        load(folder, size=EOS)


def test_lambadas_counts_make_the_published_condition(tmp_path: Path) -> None:
    count, tokens = sentences.LAMBADA["sentences"], sentences.LAMBADA["tokens"]
    offsets = np.concatenate([np.arange(count) * 83, [tokens]]).astype(np.int64)
    made = sentences.SentenceSet(np.ones(tokens, dtype=np.int32), offsets, 4096)
    assert load(prepare(tmp_path / "out", made), length=4096).condition == "lambada"
