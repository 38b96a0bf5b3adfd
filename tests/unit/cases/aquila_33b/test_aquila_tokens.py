"""Aquila's tokeniser: its ids, and what is no vocabulary."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.cases.aquila_33b.tokens import FILES, Tokeniser
from flagbench_cases.shared.errors import DataError, UsageError
from unit.cases.aquila_33b.aquila_vocabulary import CLS, EOS, PIECES, SIZE, SPECIAL, write
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "tokenizer")


def ids(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def refused(folder: Path, *named: Any) -> None:
    with refuses(DataError, *named):
        Tokeniser(str(folder), SIZE)


# ids


def test_special_tokens_follow_the_vocabulary(folder: Path) -> None:
    made = Tokeniser(str(folder), SIZE)
    assert (made.cls, made.eos, made.size) == (CLS, EOS, SIZE)
    assert [Path(path).name for path in made.paths] == list(FILES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("hello the", ids("hello", "Ġthe")),
        ("abc", ids("ab", "c")),
        ("the's", ids("the", "'s")),
        ("1212", ids("12", "12")),
        ("中", ids("ä\u00b8Ń")),
        ("a[CLS]b", [*ids("a"), CLS, *ids("b")]),
        ("[CLS", ids("[", "C", "L", "S")),
        ("<|endoftext|>", ids("<", "|", "e", "n", "d", "o", "f", "t", "e", "x", "t", "|", ">")),
    ],
)
def test_the_ids_of_a_text(folder: Path, text: str, expected: list[int]) -> None:
    assert Tokeniser(str(folder), SIZE).encode(text) == expected


def test_merges_without_a_last_line_break(tmp_path: Path) -> None:
    """What follows the last line break does not count: here the merge of `b c`."""
    folder = write(tmp_path)
    (folder / "merges.txt").write_bytes((folder / "merges.txt").read_bytes()[:-1])
    assert Tokeniser(str(folder), SIZE).encode("xbc") == ids("x", "b", "c")


# files


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\xff\xfe junk")
    refused(folder, folder / name)
    (folder / name).unlink()
    refused(folder, folder / name)


@pytest.mark.parametrize("content", ["[" * 100000, "[]", '{"a": 0, "b": 2}', '{"a": true, "b": 0}', '{"a": "0"}'])
def test_a_vocabulary_that_is_none(folder: Path, content: str) -> None:
    (folder / "vocab.json").write_text(content, encoding="utf-8")
    refused(folder, folder / "vocab.json")


def edit(folder: Path, change: Callable[[dict[str, int]], Any]) -> None:
    """Change the pieces, which stay numbered without gaps."""
    pieces = {piece: n for n, piece in enumerate(PIECES)}
    change(pieces)
    numbered = {piece: n for n, piece in enumerate(sorted(pieces, key=lambda piece: pieces[piece]))}
    (folder / "vocab.json").write_text(json.dumps(numbered), encoding="utf-8")


def test_a_vocabulary_of_another_size(folder: Path) -> None:
    with refuses(DataError, folder, SIZE, 100008):
        Tokeniser(str(folder), 100008)
    edit(folder, lambda pieces: pieces.pop("bc"))
    refused(folder, SIZE - 1, SIZE)


@pytest.mark.parametrize("line", ["a", "a b c"])
def test_a_line_of_merges_that_is_no_pair(folder: Path, line: str) -> None:
    with open(folder / "merges.txt", "a", encoding="utf-8") as file:
        file.write(line + "\n")
    refused(folder, folder / "merges.txt", repr(line))


@pytest.mark.parametrize("name", ["[CLS]", "</s>"])
def test_special_tokens_without_the_ones_that_are_used(folder: Path, name: str) -> None:
    others = [special if special != name else "[OTHER]" for special in SPECIAL]
    (folder / "special_tokens.txt").write_text("\n".join(others) + "\n", encoding="utf-8")
    refused(folder, folder / "special_tokens.txt", name)


def test_without_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with refuses(UsageError, "tokenizers"):
        Tokeniser(str(folder), SIZE)
