"""Loads the sentences that are scored: token ids of LAMBADA, prepared from JSONL, of the set shipped here, or random.

A sentence is [CLS], the tokens of the text's first `sequence_length` characters, </s>; at most sequence_length + 1
tokens. As in the publisher's loader, it is padded with token 0 to sequence_length + 1, and padding is not scored.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, NamedTuple

import numpy as np
import torch

from flagbench_cases.cases.aquila_33b.tokens import Tokeniser
from flagbench_cases.prepare import json_lines, prepared_folder
from flagbench_cases.prepare.prepared_folder import PreparedFolder
from flagbench_cases.prepare.synthetic import lognormal
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import Report, report_nothing

FORMAT = "aquila-sentences/v1"
"""The name and version of the format of prepared folders: tokens.npy and offsets.npy, see SentenceSet."""
CASE = "aquila-33b"
TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
"""The folder of the set shipped here."""
LAMBADA = {"sentences": 5153, "tokens": 430166}
"""The number of sentences in LAMBADA's test set, and of their tokens with the published tokeniser."""
MEAN_LENGTH = 83.5
"""The mean number of tokens of a random sentence: that of LAMBADA's."""
SIGMA_LENGTH = 0.138
"""The standard deviation of its logarithm: that of LAMBADA's."""
SHORTEST = 61
"""The least number of tokens of a random sentence: that of LAMBADA's."""
PAD = 0
"""The id of padding."""


class SentenceSet(torch.utils.data.Dataset):
    """n sentences: tokens int32 [total], offsets int64 [n + 1]; items are padded to `length` + 1."""

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray, length: int) -> None:
        self.tokens = tokens
        self.offsets = offsets
        self.length = length

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens, int64 [length + 1], and int64 [length]: 1 where the next token is scored."""
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
        """Return the sha256 of all tokens."""
        hasher = hashlib.sha256()
        for array in (self.tokens, self.offsets):
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


class Loaded(NamedTuple):
    """A set of sentences."""

    sentences: SentenceSet
    condition: str
    """The `data` condition of a run with it, which is compared with that of a published result."""


def load(data: dict[str, Any], model: dict[str, Any], folder: str | None, seed: int) -> Loaded:
    """Load the set selected by the resolved `data` section. `folder` was written by `flagbench prepare`."""
    length = data["sequence_length"]
    source = data["source"]
    if source == "synthetic":
        return Loaded(synthetic(data["examples"], length, model["vocab_size"], seed), "synthetic")
    if source == "shipped":
        tokeniser = Tokeniser(TINY, model["vocab_size"])
        return Loaded(tokenise(os.path.join(TINY, "sentences.jsonl"), tokeniser, length), "shipped")
    prepared = prepared_folder.open_folder(folder or "", CASE, "data", (FORMAT,))
    condition = "lambada" if is_lambada(prepared.facts) else "files"
    return Loaded(read(prepared, length, model["vocab_size"]), condition)


def synthetic(count: int, length: int, vocabulary_size: int, seed: int) -> SentenceSet:
    """Return sentences of random tokens, with lengths like LAMBADA's."""
    generator = np.random.RandomState(seed)
    lengths = lognormal(generator, count, MEAN_LENGTH, SIGMA_LENGTH, min(SHORTEST, length), length + 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = generator.randint(PAD + 1, vocabulary_size, size=int(offsets[-1])).astype(np.int32)
    return SentenceSet(tokens, offsets, length)


def tokenise(path: str, tokeniser: Tokeniser, length: int, report: Report = report_nothing) -> SentenceSet:
    """Tokenise a JSONL file. As in the publisher's reader, lines without `text` are skipped. Raises DataError.

    `length`: the sequence length, which limits the characters of a text, and then its tokens.
    """
    sentences = []
    for done, total, text in json_lines.texts(path, required=False):
        ids = [tokeniser.cls] + tokeniser.encode(text[:length]) + [tokeniser.eos]
        sentences.append(np.array(ids[: length + 1], dtype=np.int32))
        report("tokenise the texts", done, total)
    if not sentences:
        raise DataError(f"{path} has no line with a text", "set --data to LAMBADA's JSONL")
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in sentences])]).astype(np.int64)
    return SentenceSet(np.concatenate(sentences), offsets, length)


def write(sentences: SentenceSet, writer: Writer) -> None:
    """Write a set through a Writer."""
    np.save(writer.path("tokens.npy"), sentences.tokens)
    np.save(writer.path("offsets.npy"), sentences.offsets)
    writer.format(FORMAT)
    writer.fact(sequence_length=sentences.length, sentences=len(sentences), tokens=int(sentences.offsets[-1]))


def read(prepared: PreparedFolder, length: int, vocabulary_size: int) -> SentenceSet:
    """Read a prepared folder. Raises DataError if it does not fit the preset."""
    prepared_length = prepared.facts.get("sequence_length")
    if prepared_length != length:
        raise DataError(
            f"{prepared.folder} was prepared for {prepared_length} tokens, but this preset has {length}",
            "use --preset reference, or prepare the data again",
        )
    # In memory: slices of memory-mapped arrays take several times as long.
    tokens = np.array(prepared.array("tokens.npy"))
    offsets = np.array(prepared.array("offsets.npy"))
    highest = int(tokens.max())
    if highest >= vocabulary_size:
        raise DataError(
            f"{prepared.folder} has the token {highest}, but the model has {vocabulary_size} tokens",
            "prepare the data for this model",
        )
    return SentenceSet(tokens, offsets, length)


def is_lambada(facts: dict[str, Any]) -> bool:
    """Return whether a prepared folder has as many sentences and tokens as LAMBADA's test set."""
    return all(facts.get(name) == count for name, count in LAMBADA.items())
