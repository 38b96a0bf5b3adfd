"""The storage format of cloze examples: memory-mapped arrays without padding.

An example is a question with several choices. A choice is a context (part A: [CLS], the passage, the query with one
[MASK], and a final [PAD]) and an answer. Most choices of an example share their context, which is stored once.

The arrays of a set in `glm-cloze/v1`, one .npy file each (`train-contexts.npy` etc.). n is the number of examples, m
the number of stored contexts, and `choices` the number of choices of all examples. Array i of `contexts`, for
example, is contexts[context_starts[i] : context_starts[i + 1]].

    contexts        int32 [sum of context lengths]
    context_starts  int64 [m + 1]
    masks           int32 [m]            position of [MASK] in each context
    answers         int32 [sum of answer lengths], without <|startofpiece|> and <|endofpiece|>
    answer_starts   int64 [choices + 1]
    rows            int32 [choices]      the number of each choice's context; see CONTEXT_OF_CHOICE
    example_starts  int64 [n + 1]        the first choice of each example
    right           uint8 [choices]      1 where the choice is a right answer
    f1              float32 [choices]    overlap of the choice with the best right answer (see overlap.py)
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from flagbench_cases.prepare.prepared_folder import PreparedFolder

FORMAT = "glm-cloze/v1"
"""The name and version of the format, which a prepared folder states."""
CONTEXT_OF_CHOICE = "rows"
"""The name of the array with the context of each choice. It is in the file names and in the digest of v1."""
DTYPES = {
    "contexts": np.int32,
    "context_starts": np.int64,
    "masks": np.int32,
    "answers": np.int32,
    "answer_starts": np.int64,
    CONTEXT_OF_CHOICE: np.int32,
    "example_starts": np.int64,
    "right": np.uint8,
    "f1": np.float32,
}
"""The arrays of the format, in the order in which their digest is computed."""
_TYPE_CODES = {"int32": "i", "int64": "q", "uint8": "B", "float32": "f"}
"""The type codes of Python's array module for numpy's types."""


class Cloze(NamedTuple):
    """One example with C choices, without padding."""

    contexts: list[np.ndarray]  # C x int32 [length of part A]; choices that share a context share the array
    masks: list[int]  # C x the position of [MASK] in the context
    answers: list[np.ndarray]  # C x int32 [length of the answer]
    right: np.ndarray  # bool [C]: whether a choice is a right answer


def choice_lengths(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return the tokens of each choice without padding: context, <|startofpiece|> and answer, int64 [choices]."""
    context_lengths = np.diff(arrays["context_starts"])
    answer_lengths = np.diff(arrays["answer_starts"])
    start_of_piece = 1
    return context_lengths[arrays[CONTEXT_OF_CHOICE]] + start_of_piece + answer_lengths


class RaggedExamples:
    """n examples in the arrays of the format.

    Attributes: `starts` [n + 1], the first choice of each example, and the end of the last; `choices` [n], the number
    of choices of each example; `lengths` [sum of choices], the tokens of each choice.
    """

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.starts = arrays["example_starts"]
        self.choices = np.diff(self.starts)
        self.lengths = choice_lengths(arrays)

    def __len__(self) -> int:
        return len(self.choices)

    def example(self, index: int) -> Cloze:
        """Return example `index`."""
        arrays = self.arrays
        first = int(self.starts[index])
        end = int(self.starts[index + 1])
        context_of_choice = arrays[CONTEXT_OF_CHOICE][first:end].tolist()
        contexts: dict[int, np.ndarray] = {}
        masks: dict[int, int] = {}
        for number in set(context_of_choice):  # each context once: most choices share theirs
            context_start, context_end = arrays["context_starts"][number : number + 2].tolist()
            contexts[number] = arrays["contexts"][context_start:context_end]
            masks[number] = int(arrays["masks"][number])
        answer_starts = arrays["answer_starts"][first : end + 1].tolist()
        answers = []
        for answer_start, answer_end in zip(answer_starts, answer_starts[1:]):
            answers.append(arrays["answers"][answer_start:answer_end])
        return Cloze(
            contexts=[contexts[number] for number in context_of_choice],
            masks=[masks[number] for number in context_of_choice],
            answers=answers,
            right=arrays["right"][first:end].astype(bool),
        )

    def f1(self, index: int, choice: int) -> float:
        """Return the overlap stored for one choice of one example."""
        return float(self.arrays["f1"][int(self.starts[index]) + choice])

    def digest(self) -> str:
        """Return the sha256 of the arrays."""
        hasher = hashlib.sha256()
        for name in DTYPES:
            hasher.update(name.encode("ascii"))
            hasher.update(np.ascontiguousarray(self.arrays[name]).data)
        return hasher.hexdigest()


class Builder:
    """Builds the arrays from single examples."""

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {}
        for name, dtype in DTYPES.items():
            self._columns[name] = array(_TYPE_CODES[np.dtype(dtype).name])
        for name in ("context_starts", "answer_starts", "example_starts"):
            self._columns[name].append(0)

    def add(
        self,
        contexts: Sequence[Sequence[int]],
        masks: Sequence[int],
        answers: Sequence[Sequence[int]],
        right: Sequence[bool],
        f1: Sequence[float],
    ) -> None:
        """Add an example. Each argument has an element for each of its choices; the callers ensure equal lengths.

        A context equal to that of the previous choice is stored once.
        """
        columns = self._columns
        stored_context = None
        for context, mask, answer in zip(contexts, masks, answers):
            if stored_context is None or context != stored_context:
                columns["contexts"].extend(context)
                columns["context_starts"].append(len(columns["contexts"]))
                columns["masks"].append(mask)
                stored_context = context
            columns[CONTEXT_OF_CHOICE].append(len(columns["masks"]) - 1)
            columns["answers"].extend(answer)
            columns["answer_starts"].append(len(columns["answers"]))
        columns["right"].extend([int(value) for value in right])
        columns["f1"].extend(f1)
        columns["example_starts"].append(len(columns[CONTEXT_OF_CHOICE]))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays. Call it once, after the last `add`: they share the builder's memory."""
        return {name: np.frombuffer(column, dtype=DTYPES[name]) for name, column in self._columns.items()}


def file_name(split: str, name: str) -> str:
    """Return the name of the file with one array of a split, `train` or `eval`."""
    return f"{split}-{name}.npy"


def save(split: str, arrays: dict[str, np.ndarray], path: Callable[[str], str]) -> None:
    """Write the arrays of a split; `path` returns the path for a file name."""
    for name in DTYPES:
        np.save(path(file_name(split, name)), arrays[name], allow_pickle=False)


def open_split(split: str, prepared: PreparedFolder) -> RaggedExamples:
    """Open the arrays of a split of a prepared folder, memory-mapped. Raises DataError."""
    arrays = {}
    for name in DTYPES:
        # np.asarray gives the same memory as a plain array: slicing a memmap object is five times slower.
        arrays[name] = np.asarray(prepared.array(file_name(split, name)))
    return RaggedExamples(arrays)
