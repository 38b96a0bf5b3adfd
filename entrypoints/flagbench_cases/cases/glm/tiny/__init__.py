"""The data set of the tiny preset: passages and queries in ReCoRD's format."""

import os
from typing import Tuple

from flagbench_cases.cases.glm.cloze_set import ClozeSet
from flagbench_cases.cases.glm.dataset_text import build, read_vocabulary, special_tokens
from flagbench_cases.cases.glm.ragged import Builder, RaggedExamples
from flagbench_cases.shared.errors import UsageError

HERE = os.path.dirname(os.path.abspath(__file__))


def read(length: int, vocabulary_size: int) -> Tuple[ClozeSet, ClozeSet]:
    """Training and evaluation set, read like the published files.

    Raises UsageError if the vocabulary does not fit the model.
    """
    vocabulary = read_vocabulary(os.path.join(HERE, "vocab.txt"))
    special = special_tokens(vocabulary)
    if special.eop >= vocabulary_size:
        raise UsageError(
            "the shipped set has %d tokens, but the model has %d" % (special.eop + 1, vocabulary_size),
            "use it with --preset tiny",
        )
    sets = []
    for name, training in (("train.jsonl", True), ("val.jsonl", False)):
        builder = Builder()
        build(os.path.join(HERE, name), training, vocabulary, length, builder, _silent)
        sets.append(ClozeSet(RaggedExamples(builder.arrays()), length, special))
    return sets[0], sets[1]


def _silent(phase: str, done: int, total: int) -> None:
    """Reading the shipped set is too fast to report progress."""
