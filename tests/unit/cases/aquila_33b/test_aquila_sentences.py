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


# tokens


def test_a_sentence_is_its_tokens_between_two_others(path: Path, tokeniser: Tokeniser) -> None:
    counts: list[int] = []
    made = sentences.tokenise(lines(path, TEXTS), tokeniser, LENGTH, counts.append)
    assert made.lengths.tolist() == [4, 4, 2, 8]
    assert made.tokens[: made.offsets[1]].tolist() == [CLS, *ids("hello", "Ġthe"), EOS]
    assert (made.tokens.dtype, made.offsets.dtype, counts) == (np.int32, np.int64, [1, 2, 3, 4])


def test_padding_and_the_scored_positions(path: Path, tokeniser: Tokeniser) -> None:
    made = sentences.tokenise(lines(path, TEXTS), tokeniser, LENGTH)
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


def test_lines_without_a_text_are_skipped(path: Path) -> None:
    path.write_text('{"text": "a"}\n\n  \n{"other": 1}\n[]\n3\n"text"\nnull\n{"text": null}\n{"text": "b"}')
    assert list(sentences.texts(str(path))) == ["a", "b"]


# hostile files


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a"',
        b"[" * 100000,
        b'{"text": 3}',
        b'{"text": "\\ud800"}',
        b'{"text": "a\tb"}',
    ],
)
def test_a_bad_line_is_refused_with_its_number(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"text": "a"}\n' + line + b"\n")
    with refuses(DataError, path, "line 2"):
        list(sentences.texts(str(path)))


# random sentences


def test_random_sentences_have_lambadas_lengths() -> None:
    made = sentences.synthetic(5000, 4096, 100008, seed=1)
    assert abs(made.lengths.mean() - sentences.MEAN) < 0.5
    assert made.lengths.min() >= sentences.SHORTEST
    assert made.lengths.max() < 200
    assert (made.tokens.min() > sentences.PAD, made.tokens.max() < 100008) == (True, True)


# the prepared folder


def prepare(out: Path, made: sentences.SentenceSet) -> Path:
    with prepared_folder.writing(str(out), sentences.CASE, "data") as writer:
        sentences.write(made, writer)
    return out / "data"


def load(folder: Path, length: int = LENGTH, size: int = SIZE) -> sentences.Loaded:
    """A run's sentences of a prepared folder."""
    return sentences.load({"source": "files", "sequence_length": length}, {"vocab_size": size}, str(folder), 0)


def test_a_prepared_folder_gives_the_same_sentences(tmp_path: Path, path: Path, tokeniser: Tokeniser) -> None:
    made = sentences.tokenise(lines(path, TEXTS), tokeniser, LENGTH)
    folder = prepare(tmp_path / "out", made)
    found = load(folder)
    assert (found.sentences.digest(), found.sentences.length, found.condition) == (made.digest(), LENGTH, "files")
    facts = prepared_folder.open_folder(str(folder), sentences.CASE, "data", (sentences.FORMAT,)).facts
    assert facts == {"sequence_length": LENGTH, "sentences": 4, "tokens": 18}


def test_lambadas_counts_make_the_published_condition(tmp_path: Path) -> None:
    count, tokens = sentences.LAMBADA["sentences"], sentences.LAMBADA["tokens"]
    offsets = np.concatenate([np.arange(count) * 83, [tokens]]).astype(np.int64)
    made = sentences.SentenceSet(np.ones(tokens, dtype=np.int32), offsets, 4096)
    assert load(prepare(tmp_path / "out", made), length=4096).condition == "lambada"


@pytest.fixture
def folder(tmp_path: Path, path: Path, tokeniser: Tokeniser) -> Path:
    return prepare(tmp_path / "out", sentences.tokenise(lines(path, TEXTS), tokeniser, LENGTH))


def test_another_length_and_a_smaller_model(folder: Path) -> None:
    with refuses(DataError, folder, LENGTH, 32):
        load(folder, length=32)
    with refuses(DataError, folder):
        load(folder, size=EOS)


TOKENS, OFFSETS = [CLS, 5, EOS, CLS, EOS], [0, 3, 5]


def rewrite(folder: Path, name: str, content: Any) -> None:
    """Replace an array, with the size and the checksum that the index has for it."""
    if isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        np.save(str(folder / name), content)
    index = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
    summed = prepared_folder.sum_of(str(folder / name))
    index["files"][name] = {"bytes": (folder / name).stat().st_size, "sha256": summed}
    (folder / "prepared.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize(
    ("tokens", "offsets"),
    [
        (np.array(TOKENS, np.int64), OFFSETS),
        (np.array([CLS, 5, SIZE, CLS, EOS], np.int32), OFFSETS),
        (np.array([CLS, -1, EOS, CLS, EOS], np.int32), OFFSETS),
        (TOKENS, np.array(OFFSETS, np.int32)),
        (TOKENS, [1, 3, 5]),
        (TOKENS, [0, 3, 4]),
        (TOKENS, [0, 5, 3, 5]),
        (TOKENS, [0]),
        ([], [0]),
        ([CLS] * (LENGTH + 2), [0, LENGTH + 2]),
    ],
)
def test_arrays_that_do_not_fit(folder: Path, tokens: Any, offsets: Any) -> None:
    rewrite(folder, "tokens.npy", tokens if isinstance(tokens, np.ndarray) else np.array(tokens, np.int32))
    rewrite(folder, "offsets.npy", offsets if isinstance(offsets, np.ndarray) else np.array(offsets, np.int64))
    with refuses(DataError, folder):
        load(folder)


@pytest.mark.parametrize("content", [b"\x93NUMPY junk", np.array([{"a": 1}], dtype=object)])
def test_a_damaged_array(folder: Path, content: Any) -> None:
    rewrite(folder, "tokens.npy", content)
    with refuses(DataError, folder / "tokens.npy"):
        load(folder)
