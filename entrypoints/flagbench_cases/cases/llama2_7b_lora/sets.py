"""Token blocks for training and MMLU prompts for evaluation, as torch data sets."""

import hashlib
from typing import List, NamedTuple, Sequence

import numpy as np
import torch


class BlockSet(torch.utils.data.Dataset):
    """n blocks of L tokens, int32 [n, L]; labels are the same tokens. Nothing is padded."""

    def __init__(self, blocks: np.ndarray) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> torch.Tensor:
        """int64 [L]."""
        return torch.from_numpy(self.blocks[index].astype(np.int64))

    def digest(self) -> str:
        """sha256 of the blocks."""
        return hashlib.sha256(np.ascontiguousarray(self.blocks)).hexdigest()


class MmluItem(NamedTuple):
    """One question: prompt int64 [n], right choice 0..3, subject, and the number of shots that fit."""

    tokens: torch.Tensor
    answer: int
    subject: str
    shots: int


class MmluSet(torch.utils.data.Dataset):
    """MMLU prompts of at most L tokens, ragged; `answer_tokens` int64 [4] are the ids of the choices A to D."""

    def __init__(
        self,
        tokens: np.ndarray,
        offsets: np.ndarray,
        answers: np.ndarray,
        subject_ids: np.ndarray,
        shots: np.ndarray,
        subjects: Sequence[str],
        answer_tokens: Sequence[int],
    ) -> None:
        self.tokens = tokens
        self.offsets = offsets
        self.answers = answers
        self.subject_ids = subject_ids
        self.shots = shots
        self.subjects: List[str] = list(subjects)
        self.answer_tokens = torch.tensor(list(answer_tokens), dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> MmluItem:
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        tokens = torch.from_numpy(self.tokens[start:end].astype(np.int64))
        subject = self.subjects[int(self.subject_ids[index])]
        return MmluItem(tokens, int(self.answers[index]), subject, int(self.shots[index]))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each prompt, int64 [n]."""
        return np.diff(self.offsets)

    def digest(self) -> str:
        """sha256 of prompts, offsets and answers."""
        hasher = hashlib.sha256()
        for array in (self.tokens, self.offsets, self.answers):
            hasher.update(np.ascontiguousarray(array))
        return hasher.hexdigest()
