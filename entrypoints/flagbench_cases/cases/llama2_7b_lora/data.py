"""The data sets of the case: token blocks for training, and MMLU prompts for evaluation.

A run uses token ids only: tokenised by `prepare` (format llama-blocks/v1), tokenised at the start from the tiny set
shipped here, or random (synthetic).
"""

import hashlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

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


def batch_of(blocks: Sequence[torch.Tensor]) -> Dict[str, torch.Tensor]:
    """The publisher's batch of blocks: tokens, a mask of ones and labels, each a separate int64 [B, L]."""
    tokens = torch.stack(list(blocks))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


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


class Sets(NamedTuple):
    """The sets, and the values of a claim's `data` and `mmlu` conditions for them.

    mmlu is None if the run asks no questions; mmlu_condition then is "none".
    """

    train: BlockSet
    validation: BlockSet
    mmlu: Optional[MmluSet]
    condition: str
    mmlu_condition: str
    facts: Dict[str, Any]


def load(data: Dict[str, Any], model: Dict[str, Any], folder: Optional[str], seed: int) -> Sets:
    """Load the sets selected by the resolved `data` section. `folder` was written by `flagbench prepare`.

    Uses source, sequence_length, shots and, for synthetic data, train_blocks, validation_blocks and mmlu_items (0: no
    questions) of `data`, and vocab_size of `model`.
    """
    if data["source"] == "synthetic":
        return _synthetic(data, model, seed)
    if data["source"] == "shipped":
        from flagbench_cases.cases.llama2_7b_lora.tiny import tokenised

        made = tokenised(data["sequence_length"], data["shots"], model["vocab_size"])
        return _sets("the tiny set", made, data, model, ("shipped", "shipped"))
    from flagbench_cases.cases.llama2_7b_lora import blocks
    from flagbench_cases.prepare import prepared_folder

    place = prepared_folder.open_folder(folder or "", "llama2-7b-lora", "data", (blocks.FORMAT,))
    return _sets(place.folder, blocks.read(place), data, model, None)


def _sets(
    where: str, made: Any, data: Dict[str, Any], model: Dict[str, Any], conditions: Optional[Tuple[str, str]]
) -> Sets:
    from flagbench_cases.cases.llama2_7b_lora import blocks

    blocks.check(where, made, data["sequence_length"], model["vocab_size"])
    arrays, facts = made
    questions = MmluSet(
        *(arrays["mmlu_" + name] for name in ("tokens", "offsets", "answers", "subject_ids", "shots")),
        facts["mmlu"]["subjects"],
        facts["vocabulary"]["answer_tokens"],
    )
    train, validation = BlockSet(arrays["train_blocks"]), BlockSet(arrays["validation_blocks"])
    return Sets(train, validation, questions, *(conditions or blocks.conditions(facts)), facts)


def _synthetic(data: Dict[str, Any], model: Dict[str, Any], seed: int) -> Sets:
    from flagbench_cases.cases.llama2_7b_lora import synthetic

    train = synthetic.blocks(data, model, data["train_blocks"], seed)
    validation = synthetic.blocks(data, model, data["validation_blocks"], seed + 1)
    facts: Dict[str, Any] = {
        "sequence_length": data["sequence_length"],
        "train": {"blocks": len(train)},
        "validation": {"blocks": len(validation)},
    }
    if not data["mmlu_items"]:
        return Sets(train, validation, None, "synthetic", "none", facts)
    questions = synthetic.questions(data, model, seed + 2)
    facts["mmlu"] = {
        "questions": len(questions),
        "mean_shots": float(questions.shots.mean()),
        "mean_length": float(questions.lengths.mean()),
    }
    return Sets(train, validation, questions, "synthetic", "synthetic", facts)
