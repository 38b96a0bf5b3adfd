"""Random examples with the sizes of ReCoRD, for runs without the data set.

Lengths of contexts and answers and numbers of choices are lognormal, clipped, with the manifest's means. They are
drawn for the whole set at once. The tokens of an example are drawn on access, from the seed and its index, so that a
run starts quickly and every rank has the same set.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from flagbench_cases.cases.glm.cloze_set import ClozeSet
from flagbench_cases.cases.glm.dataset_text import MAX_TRAINING_CHOICES
from flagbench_cases.cases.glm.ragged import Cloze, Special
from flagbench_cases.prepare.synthetic import lognormal

SPECIAL = Special(pad=0, cls=1, mask=2, sop=3, eop=4)
# Number of examples if the manifest does not set it.
DEFAULT = {"train": 2048, "eval": 256}
# The [MASK] is in the query, the end of a context.
QUERY_TOKENS = 24


class SyntheticExamples:
    """n examples of at most `length` tokens per choice, with token ids below `vocabulary_size`."""

    def __init__(
        self, shape: dict[str, Any], count: int, length: int, vocabulary_size: int, most_choices: int, seed: int
    ) -> None:
        draw = np.random.RandomState(seed % 2**32)
        longest = min(shape["max_answer"], length // 4)
        self.choices = lognormal(
            draw, count, shape["mean_choices"], shape["sigma_choices"], shape["min_choices"], most_choices
        )
        self.starts = np.concatenate([[0], np.cumsum(self.choices)])
        self._answers = lognormal(draw, int(self.starts[-1]), shape["mean_answer"], shape["sigma_answer"], 1, longest)
        low, high = min(shape["min_context"], length // 2), length - longest - 1
        self._contexts = lognormal(draw, count, shape["mean_context"], shape["sigma_context"], low, high)
        self.lengths = np.repeat(self._contexts, self.choices) + self._answers + 1
        # In training the right answer comes first; in evaluation its position must not reveal it.
        self._right = (draw.random_sample(count) * self.choices).astype(np.int64)
        self._seed = seed
        self._vocabulary_size = vocabulary_size

    def __len__(self) -> int:
        return len(self.choices)

    def first_is_right(self) -> SyntheticExamples:
        """Move the right choice to the front, as in a training set; returns self."""
        self._right[:] = 0
        return self

    def example(self, index: int) -> Cloze:
        """Example `index`; deterministic."""
        begin, end = int(self.starts[index]), int(self.starts[index + 1])
        size, answers = int(self._contexts[index]), self._answers[begin:end]
        cuts = np.concatenate([[size], size + np.cumsum(answers)]).tolist()
        # Philox's raw numbers are the same in all numpy versions, and it initialises ten times faster than
        # RandomState.
        raw = np.random.Philox(key=self._seed % 2**64 + (index << 64)).random_raw(cuts[-1])
        tokens = (len(SPECIAL) + raw % np.uint64(self._vocabulary_size - len(SPECIAL))).astype(np.int32)
        context = tokens[:size]
        mask = size - 2 - int(tokens[1]) % min(QUERY_TOKENS, size - 3)
        context[0], context[mask], context[-1] = SPECIAL.cls, SPECIAL.mask, SPECIAL.pad
        right = np.zeros(end - begin, dtype=bool)
        right[self._right[index]] = True
        parts = [tokens[part] for part in map(slice, cuts[:-1], cuts[1:])]
        return Cloze([context] * (end - begin), [mask] * (end - begin), parts, right)

    def f1(self, index: int, choice: int) -> float:
        """1 for the right choice, else 0."""
        return float(self._right[index] == choice)

    def digest(self) -> str:
        """sha256 of the sizes and the seed of the tokens."""
        hasher = hashlib.sha256((f"{self._seed} {self._vocabulary_size}").encode("ascii"))
        for array in (self.choices, self._answers, self._contexts, self._right):
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


def synthetic(data: dict[str, Any], model: dict[str, Any], split: str, seed: int) -> ClozeSet:
    """The `train` or `eval` set of a resolved `data` section."""
    shape, length = data["synthetic"], data["sequence_length"]
    training = split == "train"
    most = shape["max_choices"]
    if training:
        most = min(MAX_TRAINING_CHOICES, most)
    count = data[f"{split}_examples"] or DEFAULT[split]
    examples = SyntheticExamples(shape, count, length, model["vocab_size"], most, 2 * seed + (not training))
    if training:
        examples = examples.first_is_right()
    return ClozeSet(examples, length, SPECIAL)
