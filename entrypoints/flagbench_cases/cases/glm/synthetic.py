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
from flagbench_cases.cases.glm.ragged import Cloze
from flagbench_cases.cases.glm.special_tokens import SpecialTokens
from flagbench_cases.prepare.synthetic import lognormal

SPECIAL = SpecialTokens(pad=0, cls=1, mask=2, sop=3, eop=4)
"""The special tokens come first, so that they exist in any vocabulary; random tokens follow."""
DEFAULT_EXAMPLES = {"train": 2048, "eval": 256}
"""The number of examples if the manifest does not set it."""
QUERY_TOKENS = 24
"""The tokens of the query at the end of a context, of which one is [MASK]."""


class SyntheticExamples:
    """n examples of at most `length` tokens per choice, with token ids below `vocabulary_size`.

    Has the methods and attributes of RaggedExamples. All choices of an example have the same context.
    """

    def __init__(
        self,
        shape: dict[str, Any],
        count: int,
        length: int,
        vocabulary_size: int,
        most_choices: int,
        seed: int,
        first_is_right: bool,
    ) -> None:
        """Draw the sizes of `count` examples.

        `shape`: the manifest's `data.synthetic`. `first_is_right`: the right choice comes first, as in a training
        set; else its position is random.
        """
        draw = np.random.RandomState(seed % 2**32)
        longest_answer = min(shape["max_answer"], length // 4)
        self.choices = lognormal(
            draw, count, shape["mean_choices"], shape["sigma_choices"], shape["min_choices"], most_choices
        )
        self.starts = np.concatenate([[0], np.cumsum(self.choices)])
        self._answer_lengths = lognormal(
            draw, int(self.starts[-1]), shape["mean_answer"], shape["sigma_answer"], 1, longest_answer
        )
        shortest_context = min(shape["min_context"], length // 2)
        longest_context = length - longest_answer - 1
        self._context_lengths = lognormal(
            draw, count, shape["mean_context"], shape["sigma_context"], shortest_context, longest_context
        )
        self.lengths = np.repeat(self._context_lengths, self.choices) + self._answer_lengths + 1
        self._right = (draw.random_sample(count) * self.choices).astype(np.int64)
        if first_is_right:
            self._right[:] = 0
        self._seed = seed
        self._vocabulary_size = vocabulary_size

    def __len__(self) -> int:
        return len(self.choices)

    def example(self, index: int) -> Cloze:
        """Return example `index`, which is the same each time."""
        begin = int(self.starts[index])
        end = int(self.starts[index + 1])
        choices = end - begin
        context_length = int(self._context_lengths[index])
        # Where each answer begins in the tokens of the example, which follow its context, and where the last ends.
        answer_ends = context_length + np.cumsum(self._answer_lengths[begin:end])
        cuts = np.concatenate([[context_length], answer_ends]).tolist()
        # Philox's raw numbers are the same in all numpy versions, and it initialises ten times faster than
        # RandomState.
        raw = np.random.Philox(key=self._seed % 2**64 + (index << 64)).random_raw(cuts[-1])
        tokens = (len(SPECIAL) + raw % np.uint64(self._vocabulary_size - len(SPECIAL))).astype(np.int32)
        context = tokens[:context_length]
        # [MASK] replaces one of the last tokens before the final [PAD], and never [CLS].
        from_end = int(tokens[1]) % min(QUERY_TOKENS, context_length - 3)
        mask = context_length - 2 - from_end
        context[0] = SPECIAL.cls
        context[mask] = SPECIAL.mask
        context[-1] = SPECIAL.pad
        right = np.zeros(choices, dtype=bool)
        right[self._right[index]] = True
        answers = [tokens[first:last] for first, last in zip(cuts, cuts[1:])]
        return Cloze([context] * choices, [mask] * choices, answers, right)

    def f1(self, index: int, choice: int) -> float:
        """Return 1 for the right choice, else 0."""
        return float(self._right[index] == choice)

    def digest(self) -> str:
        """Return the sha256 of the sizes and the seed of the tokens."""
        hasher = hashlib.sha256((f"{self._seed} {self._vocabulary_size}").encode("ascii"))
        for array in (self.choices, self._answer_lengths, self._context_lengths, self._right):
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


def synthetic(data: dict[str, Any], model: dict[str, Any], split: str, seed: int) -> ClozeSet:
    """Return the `train` or `eval` set of a resolved `data` section."""
    shape = data["synthetic"]
    length = data["sequence_length"]
    training = split == "train"
    most_choices = shape["max_choices"]
    set_seed = 2 * seed + 1  # the two sets of a seed differ, and differ from those of any other seed
    if training:
        most_choices = min(MAX_TRAINING_CHOICES, most_choices)
        set_seed = 2 * seed
    count = data[f"{split}_examples"] or DEFAULT_EXAMPLES[split]
    examples = SyntheticExamples(shape, count, length, model["vocab_size"], most_choices, set_seed, training)
    return ClozeSet(examples, length, SPECIAL)
