"""Aquila's tokeniser: byte-level BPE from vocab.json and merges.txt, and the special tokens of special_tokens.txt.

Special tokens follow the vocabulary: [CLS] and </s> of the published files are 100006 and 100007. In a text they are
single tokens. A piece that is not in the vocabulary is token 0.

As in the publisher's reader, the first line of merges.txt is a comment, and a last line without a line break is
ignored in merges.txt and special_tokens.txt.
"""

from __future__ import annotations

import json
import os
from typing import Any

from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_cases.shared.files import open_file

CLS = "[CLS]"
EOS = "</s>"
VOCABULARY = "vocab.json"
MERGES = "merges.txt"
SPECIAL = "special_tokens.txt"
FILES = (VOCABULARY, MERGES, SPECIAL)
REMEDY = "set --vocabulary to the published folder with vocab.json, merges.txt and special_tokens.txt"
MAX_LINE_LENGTH = 80
"""Most characters of a line that an error shows."""


class Tokeniser:
    """Encodes text as token ids. `cls` and `eos` are the ids of [CLS] and </s>."""

    def __init__(self, folder: str, vocab_size: int) -> None:
        """Read the three files of a folder.

        Raises DataError if they are damaged or not those of a model with `vocab_size` tokens.
        """
        self.folder = folder
        vocabulary = _read_vocabulary(os.path.join(folder, VOCABULARY))
        special_names = _read_lines(os.path.join(folder, SPECIAL))
        self.size = len(vocabulary) + len(special_names)
        if self.size != vocab_size:
            raise DataError(
                f"{folder} has {self.size} tokens, but the model has {vocab_size}", "use the model's files"
            )
        for name in (CLS, EOS):
            if name not in special_names:
                raise DataError(f"{os.path.join(folder, SPECIAL)} has no {name}", REMEDY)
        special_ids = {name: len(vocabulary) + index for index, name in enumerate(special_names)}
        self.cls = special_ids[CLS]
        self.eos = special_ids[EOS]
        self._bpe = _make_bpe(os.path.join(folder, MERGES), vocabulary, special_ids)

    @property
    def paths(self) -> list[str]:
        """The files that were read."""
        return [os.path.join(self.folder, name) for name in FILES]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without [CLS] and </s>."""
        return self._bpe.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]


def _make_bpe(path: str, vocabulary: dict[str, int], special: dict[str, int]) -> Any:
    """Make the tokenizers.Tokenizer. Raises DataError if its files do not fit together.

    `path`: merges.txt; `vocabulary` and `special`: the ids of pieces and of special tokens.
    """
    try:
        import tokenizers
        from tokenizers import models, pre_tokenizers
    except ImportError:
        raise UsageError(
            "tokenising text requires the package tokenizers, which is not installed",
            "prepare in the image of this case (--via docker), or pip install tokenizers",
        ) from None
    lines = _read_lines(path)[1:]
    merges: list[Any] = [tuple(line.split()) for line in lines]
    for line, pair in zip(lines, merges):
        if len(pair) != 2:
            raise DataError(f"{path}: {line[:MAX_LINE_LENGTH]!r} is not a pair of pieces", REMEDY)
    missing_bytes = set(pre_tokenizers.ByteLevel.alphabet()) - set(vocabulary)
    if missing_bytes:  # tokenizers would omit these bytes, but the publisher's reader makes them token 0
        raise DataError(f"the vocabulary has no piece for {len(missing_bytes)} of the 256 bytes", REMEDY)
    for first, second in merges:
        if first + second not in vocabulary:
            raise DataError(f"{path}: {first} {second} gives a piece that is not in the vocabulary", REMEDY)
    bpe = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bpe.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in special])
    for name, index in special.items():
        if bpe.token_to_id(name) != index:
            raise DataError(f"{name} is a piece of the vocabulary and a special token", REMEDY)
    return bpe


def _read_vocabulary(path: str) -> dict[str, int]:
    """Read the pieces with their ids. Raises DataError unless the ids are 0, 1 and so on."""
    try:
        vocabulary = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error})", REMEDY) from None
    if not _is_numbered(vocabulary):
        raise DataError(f"{path} does not number its pieces from 0 on", REMEDY)
    return vocabulary  # type: ignore[no-any-return]


def _is_numbered(vocabulary: Any) -> bool:
    """Return whether a JSON value is an object whose values are the integers from 0 on, in any order."""
    if not isinstance(vocabulary, dict):
        return False
    if any(type(value) is not int for value in vocabulary.values()):  # not isinstance, which accepts true and false
        return False
    return sorted(vocabulary.values()) == list(range(len(vocabulary)))


def _read_lines(path: str) -> list[str]:
    """Read the lines of a file that end with a line break. Raises DataError."""
    lines = _read(path).split("\n")[:-1]
    for number, line in enumerate(lines):
        if line.endswith("\r"):
            lines[number] = line[:-1]
    return lines


def _read(path: str) -> str:
    try:
        with open_file(path, encoding="utf-8", newline="\n") as file:
            return file.read()  # type: ignore[no-any-return]
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", REMEDY) from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8", REMEDY) from None
