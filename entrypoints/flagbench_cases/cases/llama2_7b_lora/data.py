"""Loads the data sets of the case: blocks of tokens for training, and MMLU prompts for evaluation.

A run uses token ids only: tokenised by `prepare` (format llama-blocks/v1), tokenised at the start from the tiny set
shipped here, or random (synthetic).
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, NamedTuple, Sequence

import numpy as np
import torch

from flagbench_cases.cases.llama2_7b_lora import blocks, mmlu, samsum
from flagbench_cases.cases.llama2_7b_lora.mmlu import CHOICES, MmluVocabulary
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama.vocabulary import BOS, EOS
from flagbench_cases.prepare.synthetic import RandomBlocks, lognormal
from flagbench_cases.shared.files import report_nothing

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
"""The folder of the set shipped here."""
HEADING = 16
"""Tokens of a random prompt's heading.

Token counts of MMLU with Llama's tokeniser were not published; these four numbers are of the right order.
"""
MEAN_QUESTION = 90.0
"""The mean number of tokens of a random question with its choices."""
SIGMA_QUESTION = 0.6
"""The standard deviation of its logarithm."""
SHORTEST_QUESTION = 24
"""The least number of tokens of a random question."""


class BlockSet(torch.utils.data.Dataset):
    """n blocks of L tokens, int32 [n, L]; labels are the same tokens. Nothing is padded."""

    def __init__(self, blocks: np.ndarray) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return the tokens of a block, int64 [L]."""
        return torch.from_numpy(self.blocks[index].astype(np.int64))

    def digest(self) -> str:
        """Return the sha256 of the blocks."""
        return hashlib.sha256(np.ascontiguousarray(self.blocks).data).hexdigest()


class MmluItem(NamedTuple):
    """One question."""

    tokens: torch.Tensor
    """The prompt, int64 [n]."""
    answer: int
    """The right choice, 0 to 3."""
    subject: str
    shots: int
    """The number of solved examples that fit before the question."""


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
        self.subjects: list[str] = list(subjects)
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
        """Return the sha256 of prompts, offsets and answers."""
        hasher = hashlib.sha256()
        for array in (self.tokens, self.offsets, self.answers):
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


def batch_of(samples: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the publisher's batch of blocks: tokens, a mask of ones and labels, each a separate int64 [B, L]."""
    tokens = torch.stack(list(samples))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


class Sets(NamedTuple):
    """The sets of a run."""

    train: BlockSet | RandomBlocks
    validation: BlockSet | RandomBlocks
    mmlu: MmluSet | None
    """None if the run asks no questions."""
    condition: str
    """The `data` condition, which is compared with that of a published result."""
    mmlu_condition: str
    """The `mmlu` condition; "none" without questions."""
    facts: dict[str, Any]
    """Facts about the sets for the record."""


def load(data: dict[str, Any], model: dict[str, Any], folder: str | None, seed: int) -> Sets:
    """Load the sets selected by the resolved `data` section. `folder` was written by `flagbench prepare`.

    Uses source, sequence_length, shots and, for synthetic data, train_blocks, validation_blocks and mmlu_items (0: no
    questions) of `data`, and vocab_size of `model`.
    """
    if data["source"] == "synthetic":
        return _synthetic(data, model, seed)
    if data["source"] == "shipped":
        vocabulary = MmluVocabulary(os.path.join(TINY, "tokenizer.model"), model["vocab_size"])
        tokenised = blocks.tokenise(
            samsum.find_folder(TINY),
            mmlu.find_folder(TINY),
            vocabulary,
            data["sequence_length"],
            data["shots"],
            report_nothing,
        )
        return _make_sets("the tiny set", tokenised, data, model, blocks.Conditions("shipped", "shipped"))
    prepared = prepared_folder.open_folder(folder or "", "llama2-7b-lora", "data", (blocks.FORMAT,))
    return _make_sets(prepared.folder, blocks.read(prepared), data, model, blocks.conditions(prepared.facts))


def _make_sets(
    where: str,
    tokenised: blocks.Tokenised,
    data: dict[str, Any],
    model: dict[str, Any],
    conditions: blocks.Conditions,
) -> Sets:
    """Make the sets of tokenised data. Raises DataError, which names `where`, if they do not fit the preset."""
    blocks.check(where, tokenised, data["sequence_length"], model["vocab_size"])
    arrays, facts = tokenised
    questions = MmluSet(
        **{name: arrays["mmlu_" + name] for name in ("tokens", "offsets", "answers", "subject_ids", "shots")},
        subjects=facts["mmlu"]["subjects"],
        answer_tokens=facts["vocabulary"]["answer_tokens"],
    )
    return Sets(
        train=BlockSet(arrays["train_blocks"]),
        validation=BlockSet(arrays["validation_blocks"]),
        mmlu=questions,
        condition=conditions.data,
        mmlu_condition=conditions.mmlu,
        facts=facts,
    )


def _synthetic(data: dict[str, Any], model: dict[str, Any], seed: int) -> Sets:
    """Return sets of random tokens."""
    length = data["sequence_length"]
    size = model["vocab_size"]
    train = RandomBlocks(data["train_blocks"], length, size, seed)
    validation = RandomBlocks(data["validation_blocks"], length, size, seed + 1)
    facts: dict[str, Any] = {
        "sequence_length": length,
        "train": {"blocks": len(train)},
        "validation": {"blocks": len(validation)},
    }
    if not data["mmlu_items"]:
        return Sets(train, validation, None, "synthetic", "none", facts)
    questions = random_questions(data, model, seed + 2)
    facts["mmlu"] = {
        "questions": len(questions),
        "mean_shots": float(questions.shots.mean()),
        "mean_length": float(questions.lengths.mean()),
    }
    return Sets(train, validation, questions, "synthetic", "synthetic", facts)


def random_questions(data: dict[str, Any], model: dict[str, Any], seed: int) -> MmluSet:
    """Return `mmlu_items` random prompts, with the lengths of few-shot prompts shortened to the sequence length.

    Like real prompts, they are filled with solved examples as long as they fit.
    """
    count = data["mmlu_items"]
    limit = data["sequence_length"]
    generator = np.random.RandomState(seed)
    heading = min(HEADING, limit // 8)
    # A question and its solved examples are from the same subject and assumed to have the same length.
    shortest = min(SHORTEST_QUESTION, limit // 4)
    size = lognormal(generator, count, MEAN_QUESTION, SIGMA_QUESTION, shortest, limit - heading)
    shots = np.minimum(data["shots"], (limit - heading) // size - 1)
    lengths = heading + (shots + 1) * size
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = generator.randint(EOS + 1, model["vocab_size"], size=int(offsets[-1])).astype(np.int32)
    tokens[offsets[:-1]] = BOS
    answers = generator.randint(0, len(CHOICES), size=count).astype(np.int8)
    letters = EOS + 1 + np.arange(len(CHOICES))
    return MmluSet(tokens, offsets, answers, np.zeros(count, np.int16), shots, ["synthetic"], letters.tolist())
