"""The sentences that are scored: token ids of LAMBADA, prepared from JSONL (format aquila-sentences/v1), or random.

A sentence is [CLS], the tokens of the text's first `sequence_length` characters, </s>; at most sequence_length + 1
tokens. As in the publisher's loader, it is padded with token 0 to sequence_length + 1, and padding is not scored.
"""

import hashlib
import json
import os
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import numpy as np
import torch

from flagbench_cases.cases.aquila_33b.tokens import Tokeniser
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

FORMAT = "aquila-sentences/v1"
CASE = "aquila-33b"
AGAIN = "prepare the data again"
TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
LAMBADA = {"sentences": 5153, "tokens": 430166}
"""Sentences of LAMBADA's test set, and their tokens by the published tokeniser."""
# Tokens of a random sentence: lognormal, with the mean, deviation and minimum of LAMBADA's.
MEAN, SIGMA, SHORTEST = 83.5, 0.138, 61
PAD = 0


class SentenceSet(torch.utils.data.Dataset):
    """n sentences: tokens int32 [total], offsets int64 [n + 1]; items are padded to `length` + 1."""

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray, length: int) -> None:
        self.tokens = tokens
        self.offsets = offsets
        self.length = length

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, torch.Tensor]:
        """Tokens int64 [length + 1], and int64 [length]: 1 where the next token is scored."""
        sentence = self.tokens[self.offsets[index] : self.offsets[index + 1]]
        tokens = np.full(self.length + 1, PAD, dtype=np.int64)
        tokens[: len(sentence)] = sentence
        scored = np.zeros(self.length, dtype=np.int64)
        scored[: len(sentence) - 1] = 1
        return torch.from_numpy(tokens), torch.from_numpy(scored)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence without padding, int64 [n]."""
        return np.diff(self.offsets)

    def digest(self) -> str:
        """sha256 of all tokens."""
        hasher = hashlib.sha256()
        for array in (self.tokens, self.offsets):
            hasher.update(np.ascontiguousarray(array))
        return hasher.hexdigest()


class Loaded(NamedTuple):
    """A set, and the value of a claim's `data` condition for it."""

    sentences: SentenceSet
    condition: str


def load(data: Dict[str, Any], model: Dict[str, Any], folder: Optional[str], seed: int) -> Loaded:
    """The set selected by the resolved `data` section. `folder` was written by `flagbench prepare`."""
    length, source = data["sequence_length"], data["source"]
    if source == "synthetic":
        return Loaded(synthetic(data["examples"], length, model["vocab_size"], seed), "synthetic")
    if source == "shipped":
        tokeniser = Tokeniser(TINY, model["vocab_size"])
        return Loaded(tokenise(os.path.join(TINY, "sentences.jsonl"), tokeniser, length), "shipped")
    place = prepared_folder.open_folder(folder or "", CASE, "data", (FORMAT,))
    return Loaded(read(place, length, model["vocab_size"]), "lambada" if is_lambada(place.facts) else "files")


def synthetic(count: int, length: int, vocabulary_size: int, seed: int) -> SentenceSet:
    """Random tokens, with lengths like LAMBADA's."""
    generator = np.random.RandomState(seed)
    drawn = np.rint(generator.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, size=count)).astype(np.int64)
    lengths = np.clip(drawn, min(SHORTEST, length), length + 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = generator.randint(PAD + 1, vocabulary_size, size=int(offsets[-1])).astype(np.int32)
    return SentenceSet(tokens, offsets, length)


def texts(path: str) -> Iterator[str]:
    """The texts of a JSONL file. As in the publisher's reader, lines without `text` are skipped. Raises DataError."""
    try:
        with open_file(path, encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                text = _text(path, number, line)
                if text is not None:
                    yield text
    except OSError as error:
        raise DataError("%s cannot be read (%s)" % (path, error.strerror), "set --data to LAMBADA's JSONL") from None
    except UnicodeDecodeError:
        raise DataError("%s is not UTF-8" % path, "download it again") from None


def _text(path: str, number: int, line: str) -> Optional[str]:
    if not line.strip():
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError("%s, line %d, is not JSON (%s)" % (path, number, error), "download it again") from None
    text = entry.get("text") if isinstance(entry, dict) else None
    if text is None:
        return None
    if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError("%s, line %d: `text` is not a text" % (path, number), "download it again")
    return text


def tokenise(
    path: str, tokeniser: Tokeniser, length: int, report: Callable[[int], None] = lambda _: None
) -> SentenceSet:
    """Tokenise a JSONL file. `report` receives the number of sentences so far. Raises DataError if there are none."""
    sentences = []
    for text in texts(path):
        ids = [tokeniser.cls] + tokeniser.encode(text[:length]) + [tokeniser.eos]
        sentences.append(np.array(ids[: length + 1], dtype=np.int32))
        report(len(sentences))
    if not sentences:
        raise DataError("%s has no line with a text" % path, "set --data to LAMBADA's JSONL")
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in sentences])]).astype(np.int64)
    return SentenceSet(np.concatenate(sentences), offsets, length)


def write(made: SentenceSet, writer: Any) -> None:
    """Write a set through a Writer."""
    np.save(writer.path("tokens.npy"), made.tokens)
    np.save(writer.path("offsets.npy"), made.offsets)
    writer.format(FORMAT)
    writer.fact(sequence_length=made.length, sentences=len(made), tokens=int(made.offsets[-1]))


def read(place: Any, length: int, vocabulary_size: int) -> SentenceSet:
    """Read a prepared folder. Raises DataError if it does not fit the preset."""
    prepared = place.facts.get("sequence_length")
    if prepared != length:
        raise DataError(
            "%s was prepared for %s tokens, but this preset has %d" % (place.folder, prepared, length),
            "use --preset reference, or prepare the data again",
        )
    arrays = {name: _array(place.path(name)) for name in ("tokens.npy", "offsets.npy")}
    tokens, offsets = arrays["tokens.npy"], arrays["offsets.npy"]
    if not _fit(tokens, offsets, length, vocabulary_size):
        raise DataError("%s: tokens.npy and offsets.npy do not fit together or the model" % place.folder, AGAIN)
    return SentenceSet(tokens, offsets, length)


def _fit(tokens: np.ndarray, offsets: np.ndarray, length: int, vocabulary_size: int) -> bool:
    """Whether the arrays are sentences of 2 to `length` + 1 tokens of the vocabulary."""
    if (tokens.dtype, offsets.dtype, tokens.ndim, offsets.ndim) != (np.int32, np.int64, 1, 1) or len(offsets) < 2:
        return False
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != len(tokens) or lengths.min() < 2 or lengths.max() > length + 1:
        return False
    return bool(tokens.min() >= 0 and tokens.max() < vocabulary_size)


def _array(path: str) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError("%s cannot be read (%s)" % (path, str(error).split("\n")[0]), AGAIN) from error


def is_lambada(facts: Dict[str, Any]) -> bool:
    """Whether a prepared folder has as many sentences and tokens as LAMBADA's test set."""
    return all(facts.get(name) == count for name, count in LAMBADA.items())
