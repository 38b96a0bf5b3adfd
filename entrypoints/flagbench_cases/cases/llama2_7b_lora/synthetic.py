"""Random token blocks and prompts with the published shapes, which take as long as real ones."""

import hashlib
from typing import Any, Dict

import numpy as np
import torch

from flagbench_cases.cases.llama2_7b_lora.sets import BlockSet, MmluSet
from flagbench_cases.cases.llama2_7b_lora.tokens import BOS, CHOICES, EOS

# Tokens of a prompt's heading, and of a question with its choices: lognormal with this mean and sigma. Token counts
# of MMLU with Llama's tokeniser were not published; these are of the right order. Like real prompts, they are filled
# with solved examples as long as they fit.
HEADING = 16
MEAN_QUESTION, SIGMA_QUESTION, SHORTEST_QUESTION = 90.0, 0.6, 24


class SyntheticBlocks(BlockSet):
    """`count` blocks [L] of uniformly distributed ids, generated on access; deterministic for a seed."""

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
        """sha256 of the parameters of the set."""
        words = "random blocks %d %d %d %d" % (self.count, self.length, self.vocabulary_size, self.seed)
        return hashlib.sha256(words.encode("ascii")).hexdigest()


def blocks(data: Dict[str, Any], model: Dict[str, Any], count: int, seed: int) -> SyntheticBlocks:
    """A set of `count` blocks with the preset's length and vocabulary."""
    return SyntheticBlocks(count, data["sequence_length"], model["vocab_size"], seed)


def questions(data: Dict[str, Any], model: Dict[str, Any], seed: int) -> MmluSet:
    """`mmlu_items` prompts with the lengths of few-shot prompts shortened to the sequence length."""
    count, limit, most = data["mmlu_items"], data["sequence_length"], data["shots"]
    generator = np.random.RandomState(seed)
    heading = min(HEADING, limit // 8)
    # A question and its solved examples are from the same subject and assumed to have the same length.
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
