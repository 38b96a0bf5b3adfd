"""Small ReCoRD files in both published forms, written for the tests of GLM's data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from flagbench_cases.cases.glm import dataset_text
from flagbench_cases.cases.glm.data import ClozeSet
from flagbench_cases.cases.glm.prepare import VOCABULARY_LINES
from flagbench_cases.cases.glm.ragged import Builder, RaggedExamples
from flagbench_cases.cases.glm.special_tokens import SpecialTokens

LENGTH = 48
WORDS = ["anna", "ben", "clara", "rome", "oslo", "met", "left", "then", "dog", "ran", "in", "the", "a", "of", "old"]
WORDS += ["town", "saw", "who", "is", "and", "to", "one", "two", "three", "four", "five", "six", "seven", "eight"]
WORDS += ["nine", "ten", "-", "'", '"', "s", ".", ",", "##s", "##er"]
FIRST = 1000  # where the words begin in the vocabulary


def vocabulary_lines() -> list[str]:
    """A vocabulary in the published one's size, with its special tokens in their places."""
    lines = ["[unused%d]" % index for index in range(VOCABULARY_LINES)]
    for index, token in ((0, "[PAD]"), (100, "[UNK]"), (101, "[CLS]"), (102, "[SEP]"), (103, "[MASK]")):
        lines[index] = token
    lines[FIRST : FIRST + len(WORDS)] = WORDS
    return lines


def write_vocabulary(folder: Path, lines: list[str] | None = None) -> str:
    path = folder / "vocab.txt"
    path.write_text("\n".join(vocabulary_lines() if lines is None else lines) + "\n", encoding="utf-8")
    return str(path)


def vocabulary() -> dict[str, int]:
    return {token: index for index, token in enumerate(vocabulary_lines())}


def ids(text: str) -> list[int]:
    """The ids of words and special tokens set apart by spaces."""
    known = vocabulary()
    return [known[word] for word in text.split()]


def line(text: str, entities: list[str], *queries: tuple[str, list[str]]) -> dict[str, Any]:
    """One line of a JSONL file; an entity is marked at its first place in the text."""
    places = [(text.index(entity), len(entity)) for entity in entities]
    return {
        "idx": 0,
        "passage": {"text": text, "entities": [{"start": at, "end": at + size - 1} for at, size in places]},
        "qas": [
            {"idx": number, "query": query, "answers": [{"text": answer, "start": 0, "end": 1} for answer in answers]}
            for number, (query, answers) in enumerate(queries)
        ],
    }


LINES = (
    line(
        "Anna met Ben \u2013 in \u201cOld Town\u201d.\n@highlight\nBen left",
        ["Anna", "Ben", "Old Town"],
        ("Then @placeholder's dog ran.", ["Ben"]),
        ("@placeholder met Ben.", ["Anna", "Ben"]),
    ),
    line("Clara saw Rome and Oslo.", ["Clara", "Rome"], ("who saw Rome? @placeholder", ["Clara"])),
    line(
        "one two three four five six seven eight nine ten " * 3 + "Ben ran to the old town of Oslo.",
        ["Ben", "old town of Oslo", "one", "ten"],
        ("It is @placeholder who ran.", ["Ben"]),
    ),
)


def write_jsonl(folder: Path, lines: Any = LINES, **texts: str) -> Path:
    """`train.jsonl` and `val.jsonl` of the same lines; `train` and `val` replace the text of a file."""
    good = "".join(json.dumps(line) + "\n" for line in lines)
    for name in ("train", "val"):
        (folder / (name + ".jsonl")).write_text(texts.get(name, good), encoding="utf-8")
    return folder


def nothing(phase: str, done: int, total: int) -> None:
    """A report that nobody reads."""


def from_text(path: Path, training: bool, length: int = LENGTH) -> RaggedExamples:
    builder = Builder()
    dataset_text.build(str(path), training, vocabulary(), length, builder, nothing)
    return RaggedExamples(builder.arrays())


def csr(matrix: np.ndarray) -> dict[str, Any]:
    """The datasets and shape of h5sparse's CSR form of a matrix."""
    rows, columns = matrix.nonzero()
    pointers = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(matrix)))])
    return {
        "data": matrix[rows, columns],
        "indices": columns.astype(np.int32),
        "indptr": pointers.astype(np.int64),
        "shape": matrix.shape,
    }


def published_matrices(examples: RaggedExamples, length: int = LENGTH) -> dict[str, dict[str, Any]]:
    """The groups of a published HDF5 file that holds these examples."""
    shown = [ClozeSet(examples, length, SpecialTokens())[index] for index in range(len(examples))]
    starts = examples.starts
    right = [np.flatnonzero(example.answers) for example in shown]
    ends = np.cumsum([len(each) for each in right])
    dense = {
        "text": np.concatenate([example.tokens for example in shown]),
        "position": np.concatenate([example.positions for example in shown]).reshape(-1, length),
        "mask": np.concatenate([example.sep for example in shown])[:, None],
        "target": np.concatenate([example.targets for example in shown]),
        "logit_mask": np.concatenate([example.target_mask for example in shown]).astype(np.int64),
        "choice_start_end": np.stack([starts[:-1], starts[1:]], axis=1),
        "answer_start_end": np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1),
        "answer_idx": np.concatenate(right)[:, None],
    }
    return {name: csr(matrix) for name, matrix in dense.items()}


def write_hdf5(path: Path, matrices: dict[str, dict[str, Any]]) -> Path:
    """A file in the published layout."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(str(path), "w") as file:
        for name, parts in matrices.items():
            group = file.create_group(name)
            group.attrs["h5sparse_format"] = parts.get("format", "csr")
            group.attrs["h5sparse_shape"] = parts["shape"]
            for part in ("data", "indices", "indptr"):
                if part in parts:
                    group.create_dataset(part, data=parts[part])
    return path
