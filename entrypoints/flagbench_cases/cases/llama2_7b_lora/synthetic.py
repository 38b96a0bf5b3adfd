"""Random token blocks and prompts of the published shapes: they take the time of real ones and teach nothing."""

import hashlib
from typing import Any, Dict

import numpy as np
import torch

from flagbench_cases.cases.llama2_7b_lora.data import BlockSet, MmluSet
from flagbench_cases.cases.llama2_7b_lora.tokens import BOS, CHOICES, EOS

# Tokens of a prompt's heading, and of a question with its choices: lognormal of this mean and spread. No counts of
# MMLU's were published with Llama's tokeniser; these are of the right size, and a prompt is filled up with solved
# examples until the next would not fit, as the real ones are.
HEADING = 16
MEAN_QUESTION, SIGMA_QUESTION, SHORTEST_QUESTION = 90.0, 0.6, 24


class SyntheticBlocks(BlockSet):
    """`count` blocks [L] of ids drawn evenly from the vocabulary, each when it is asked for; one seed, one set."""

    def __init__(self, count: int, length: int, vocabulary_size: int, seed: int) -> None:
        super().__init__(np.empty((0, length), dtype=np.int32))
        self.count = count
        self.length = length
        self.vocabulary_size = vocabulary_size
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        """int64 [L]."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        generator = np.random.RandomState([self.seed, index])
        drawn = generator.randint(EOS + 1, self.vocabulary_size, size=self.length, dtype=np.int64)
        return torch.from_numpy(drawn)

    def digest(self) -> str:
        """sha256 of what decides the blocks."""
        words = "random blocks %d %d %d %d" % (self.count, self.length, self.vocabulary_size, self.seed)
        return hashlib.sha256(words.encode("ascii")).hexdigest()


def blocks(data: Dict[str, Any], model: Dict[str, Any], count: int, seed: int) -> SyntheticBlocks:
    """A set of `count` blocks of the preset's length and vocabulary."""
    return SyntheticBlocks(count, data["sequence_length"], model["vocab_size"], seed)


def questions(data: Dict[str, Any], model: Dict[str, Any], seed: int) -> MmluSet:
    """`mmlu_items` prompts with the lengths that 5-shot prompts cut to the sequence length have."""
    count, limit, most = data["mmlu_items"], data["sequence_length"], data["shots"]
    generator = np.random.RandomState(seed)
    heading = min(HEADING, limit // 8)
    # One question and its solved examples are of one subject, so of one length.
    mu = np.log(MEAN_QUESTION) - SIGMA_QUESTION**2 / 2
    drawn = np.rint(generator.lognormal(mu, SIGMA_QUESTION, size=count)).astype(np.int64)
    size = np.clip(drawn, min(SHORTEST_QUESTION, limit // 4), limit - heading)
    shots = np.minimum(most, (limit - heading) // size - 1)
    lengths = heading + (shots + 1) * size
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = generator.randint(EOS + 1, model["vocab_size"], size=int(offsets[-1])).astype(np.int32)
    tokens[offsets[:-1]] = BOS
    answers = generator.randint(0, len(CHOICES), size=count).astype(np.int8)
    letters = EOS + 1 + np.arange(len(CHOICES))
    return MmluSet(tokens, offsets, answers, np.zeros(count, np.int16), shots, ["synthetic"], letters.tolist())
