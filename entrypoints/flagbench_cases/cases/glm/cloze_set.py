"""ReCoRD as a multi-token cloze task: the model's input, padded as by the publisher's loader.

An example is a question with several choices. A choice is one sequence of tokens in two parts: part A, `[CLS] passage
query-with-[MASK] [PAD]`, and `<|startofpiece|> answer`. The targets of the second part are `answer <|endofpiece|>`.

Each token has two positions. In part A they are its column, and 0. In the second part they are the column of [MASK],
and a count from 1. All arrays are 0 from the end of the second part up to the length T.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from flagbench_cases.cases.glm.special_tokens import SpecialTokens


class Example(NamedTuple):
    """One example: C choices of T tokens, as numpy arrays, which loader workers transfer efficiently."""

    tokens: np.ndarray  # int64 [C, T]
    positions: np.ndarray  # int64 [C, 2, T]: position, block position
    sep: np.ndarray  # int64 [C]: length of part A, which every token may attend to
    targets: np.ndarray  # int64 [C, T]
    target_mask: np.ndarray  # int64 [C, T]: 1 where a target counts
    answers: np.ndarray  # bool [C]: whether a choice is right; in training it is choice 0
    index: int  # type: ignore[assignment] # in its set


class ClozeSet(torch.utils.data.Dataset):
    """n examples of at most T tokens a choice.

    Attributes: `choices` [n], the number of choices of each example; `lengths` [sum of choices], the tokens of each
    choice without padding (`sep` + `target_mask.sum()`); `starts` [n + 1], where an example's choices begin in
    `lengths`.
    """

    def __init__(self, examples: Any, length: int, special: SpecialTokens) -> None:
        """`examples`: RaggedExamples or SyntheticExamples; `length`: T; `special`: the ids of the special tokens."""
        self.examples = examples
        self.length = length
        self.special = special
        self.choices = examples.choices
        self.lengths = examples.lengths
        self.starts = examples.starts
        self._numbers = np.arange(length + 1)

    def __len__(self) -> int:
        return len(self.choices)

    def __getitem__(self, index: int) -> Example:
        contexts, masks, answers, right = self.examples.example(index)
        count = len(answers)
        length = self.length
        numbers = self._numbers
        tokens = np.zeros((count, length), dtype=np.int64)
        positions = np.zeros((count, 2, length), dtype=np.int64)
        targets = np.zeros((count, length), dtype=np.int64)
        target_mask = np.zeros((count, length), dtype=np.int64)
        if self.special.pad:
            tokens.fill(self.special.pad)
        sep = np.array([len(context) for context in contexts], dtype=np.int64)
        for row, (begin, answer) in enumerate(zip(sep.tolist(), answers)):
            last = begin + len(answer)
            tokens[row, :begin] = contexts[row]
            tokens[row, begin] = self.special.sop
            tokens[row, begin + 1 : last + 1] = answer
            positions[row, 0, :begin] = numbers[:begin]
            positions[row, 0, begin : last + 1] = masks[row]
            positions[row, 1, begin : last + 1] = numbers[1 : last + 2 - begin]
            targets[row, begin:last] = answer
            targets[row, last] = self.special.eop
            target_mask[row, begin : last + 1] = 1
        return Example(tokens, positions, sep, targets, target_mask, right, index)

    def f1(self, index: int, choice: int) -> float:
        """Return F1 of one choice, compared with the right answers of its example; overlap.py has the definition."""
        return self.examples.f1(index, choice)

    def digest(self) -> str:
        """Return the sha256 of the examples."""
        return self.examples.digest()
