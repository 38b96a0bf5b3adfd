"""Random data for runs without a data set. A seed gives the same data in all versions of numpy."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

FIRST_ID = 3
"""The lowest id of random tokens, after the special tokens of Llama."""


def lognormal(
    generator: np.random.RandomState, count: int, mean: float, sigma: float, low: int, high: int
) -> np.ndarray:
    """Draw `count` int64 integers from `low` to `high`, lognormal, whose mean before clipping is `mean`."""
    # The mean of a lognormal variable is exp(mu + sigma ** 2 / 2).
    mu = math.log(mean) - sigma**2 / 2
    drawn = generator.lognormal(mu, sigma, size=count)
    return np.clip(np.rint(drawn), low, high).astype(np.int64)


class RandomBlocks(torch.utils.data.Dataset):
    """`count` blocks of `length` uniformly distributed ids, generated on access; deterministic for a seed."""

    def __init__(self, count: int, length: int, vocabulary_size: int, seed: int, first: int = FIRST_ID) -> None:
        self.count = count
        self.length = length
        self.vocabulary_size = vocabulary_size
        self.seed = seed
        self.first = first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return the ids of a block, int64 [length]."""
        if not 0 <= index < self.count:  # ends an iteration over the set
            raise IndexError(index)
        generator = np.random.RandomState([self.seed, index])
        drawn = generator.randint(self.first, self.vocabulary_size, size=self.length, dtype=np.int64)
        return torch.from_numpy(drawn)

    def digest(self) -> str:
        """Return the sha256 of the parameters of the set."""
        words = f"random blocks {self.count} {self.length} {self.vocabulary_size} {self.seed}"
        return hashlib.sha256(words.encode("ascii")).hexdigest()
