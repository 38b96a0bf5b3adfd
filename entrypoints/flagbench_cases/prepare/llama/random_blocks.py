"""Blocks of random tokens for runs without a data set."""

import hashlib

import numpy as np
import torch

from flagbench_cases.prepare.llama.vocabulary import EOS


class RandomBlocks(torch.utils.data.Dataset):
    """`count` blocks of `length` uniformly distributed ids, generated on access; deterministic for a seed."""

    def __init__(self, count: int, length: int, vocabulary_size: int, seed: int) -> None:
        self.count = count
        self.length = length
        self.vocabulary_size = vocabulary_size
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        """int64 [length]."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        generator = np.random.RandomState([self.seed, index])
        drawn = generator.randint(EOS + 1, self.vocabulary_size, size=self.length, dtype=np.int64)
        return torch.from_numpy(drawn)

    def digest(self) -> str:
        """sha256 of the parameters of the set."""
        words = "random blocks %d %d %d %d" % (self.count, self.length, self.vocabulary_size, self.seed)
        return hashlib.sha256(words.encode("ascii")).hexdigest()
