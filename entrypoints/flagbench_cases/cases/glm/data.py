"""Loads the data sets of GLM, from a prepared folder, the set shipped here or at random, and collates their batches.

The task is ReCoRD: questions about a passage, whose answer is one of several entities (choices).
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import torch

from flagbench_cases.cases.glm.cloze_set import ClozeSet, Example
from flagbench_cases.cases.glm.dataset_text import SPECIAL_TOKENS, build, special_tokens
from flagbench_cases.cases.glm.ragged import FORMAT, Builder, RaggedExamples, open_split
from flagbench_cases.cases.glm.special_tokens import SpecialTokens
from flagbench_cases.cases.glm.synthetic import synthetic
from flagbench_cases.prepare.wordpiece import read_vocabulary
from flagbench_cases.shared.errors import DataError, UsageError

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
"""The folder of the set shipped here."""
HDF5_FORM = "published hdf5"
"""The source format of the publisher's files, a fact of prepared folders."""
JSONL_FORM = "raw jsonl"
"""The source format of SuperGLUE's text files."""
EXPECTED = {
    HDF5_FORM: {"train": (138816, 138847), "eval": (10000, 10000)},
    JSONL_FORM: {"train": (138000, 139999), "eval": (10000, 10000)},
}
"""Minimum and maximum number of examples of each set, by source format.

The evaluation set was counted. The training set was inferred from the publisher's schedule of floor(n / 32) = 4338
updates (138827 is the most likely n). For sets rebuilt from text other counts are known, such as 138854, so their
range is wider and they have a separate condition.
"""
CONDITIONS = {HDF5_FORM: "record", JSONL_FORM: "record, rebuilt"}
"""The `data` condition of sets with the expected numbers of examples, by source format.

Conditions are the facts of a run that are compared with those of a published result.
"""
OTHER_DATA = "files"
"""The `data` condition of all other sets."""


class Batch(NamedTuple):
    """B examples, their choices padded to the largest number C among them by repeating choice 0."""

    tokens: torch.Tensor  # int64 [B, C, T]
    positions: torch.Tensor  # int64 [B, C, 2, T]
    sep: torch.Tensor  # int64 [B, C]
    targets: torch.Tensor  # int64 [B, C, T]
    target_mask: torch.Tensor  # int64 [B, C, T]
    choice_mask: torch.Tensor  # int64 [B, C]: 0 where the choice is padding
    labels: torch.Tensor  # int64 [B]: the right choice in training, always 0
    answers: torch.Tensor  # bool [B, C]: False for padding
    index: torch.Tensor  # type: ignore[assignment] # int64 [B]
    useful: torch.Tensor  # int64 [B]: tokens of the example's own choices without padding


class Sets(NamedTuple):
    """The training and the evaluation set."""

    train: ClozeSet
    evaluation: ClozeSet
    condition: str
    """The `data` condition of a run with these sets."""
    choices_condition: str
    """The `choices` condition: their largest and mean number."""
    f1_over: str
    """The tokens that F1 is computed on, `words` or `wordpieces`."""


def collate(examples: list[Example]) -> Batch:
    """Return a batch of examples; C is the largest number of choices among them."""
    counts = [len(example.answers) for example in examples]
    most = max(counts)
    choice_mask = (np.arange(most) < np.array(counts)[:, None]).astype(np.int64)
    useful = [int(example.sep.sum()) + int(example.target_mask.sum()) for example in examples]
    return Batch(
        tokens=_stack(examples, "tokens", most),
        positions=_stack(examples, "positions", most),
        sep=_stack(examples, "sep", most),
        targets=_stack(examples, "targets", most),
        target_mask=_stack(examples, "target_mask", most),
        choice_mask=torch.from_numpy(choice_mask),
        labels=torch.zeros(len(examples), dtype=torch.int64),
        answers=_stack(examples, "answers", most) & torch.from_numpy(choice_mask).bool(),
        index=torch.tensor([example.index for example in examples]),
        useful=torch.tensor(useful),
    )


def _stack(examples: list[Example], name: str, most: int) -> torch.Tensor:
    """Stack one array of all examples, each padded to `most` choices."""
    return torch.from_numpy(np.stack([_pad_choices(getattr(example, name), most) for example in examples]))


def _pad_choices(array: np.ndarray, most: int) -> np.ndarray:
    """Repeat the first choice of an array [C, ...] until it has `most` choices."""
    missing = most - len(array)
    if not missing:
        return array
    return np.concatenate([array] + [array[:1]] * missing)


def load(data: dict[str, Any], model: dict[str, Any], folder: str | None, seed: int) -> Sets:
    """Load the sets selected by the resolved `data` section. `folder` was written by `flagbench prepare glm`."""
    length = data["sequence_length"]
    vocabulary_size = model["vocab_size"]
    if data["source"] == "synthetic":
        train = synthetic(data, model, "train", seed)
        evaluation = synthetic(data, model, "eval", seed)
        return _describe_sets(train, evaluation, "synthetic", "wordpieces")
    if data["source"] == "shipped":
        train, evaluation = read_shipped(length, vocabulary_size)
        return _describe_sets(train, evaluation, "shipped", "words")
    return read_prepared(folder, length, vocabulary_size)


def _describe_sets(train: ClozeSet, evaluation: ClozeSet, condition: str, f1_over: str) -> Sets:
    most = int(train.choices.max())
    mean = float(train.choices.mean())
    return Sets(train, evaluation, condition, f"{most} at most, mean {mean:.1f}", f1_over)


def condition_of(form: str, examples: dict[str, int]) -> str:
    """Return the `data` condition for a source format and the numbers of `train` and `eval` examples."""
    expected = EXPECTED[form]
    for split, (low, high) in expected.items():
        if not low <= examples[split] <= high:
            return OTHER_DATA
    return CONDITIONS[form]


def read_shipped(length: int, vocabulary_size: int) -> tuple[ClozeSet, ClozeSet]:
    """Read the training and the evaluation set of the tiny preset, like the published text files.

    Raises UsageError if the vocabulary does not fit the model.
    """
    vocabulary = read_vocabulary(os.path.join(TINY, "vocab.txt"), SPECIAL_TOKENS)
    special = special_tokens(vocabulary)
    if special.eop >= vocabulary_size:
        raise UsageError(
            f"the shipped set has {special.eop + 1} tokens, but the model has {vocabulary_size}",
            "use it with --preset tiny",
        )
    sets = []
    for name, training in (("train.jsonl", True), ("val.jsonl", False)):
        builder = Builder()
        build(os.path.join(TINY, name), training, vocabulary, length, builder, lambda *_: None)
        sets.append(ClozeSet(RaggedExamples(builder.arrays()), length, special))
    return sets[0], sets[1]


def read_prepared(folder: str | None, length: int, vocabulary_size: int) -> Sets:
    """Load the sets of a prepared folder. Raises DataError if they do not fit the model."""
    from flagbench_cases.prepare import prepared_folder

    prepared = prepared_folder.open_folder(folder or "", "glm", "data", (FORMAT,))
    facts = prepared.facts
    if facts["sequence_length"] != length:
        raise DataError(
            f"{folder} was prepared for {facts['sequence_length']} tokens, but this preset has {length}",
            "use --preset reference, or prepare the data again",
        )
    special = SpecialTokens(**facts["special"])
    sets = []
    for split in ("train", "eval"):
        examples = open_split(split, prepared)
        highest_in_contexts = int(examples.arrays["contexts"].max(initial=0))
        highest_in_answers = int(examples.arrays["answers"].max(initial=0))
        highest = max(highest_in_contexts, highest_in_answers, *special)
        if highest >= vocabulary_size:
            raise DataError(
                f"{folder}: the {split} set has the token {highest}, but the model has {vocabulary_size} tokens",
                "prepare the data with the vocabulary of the checkpoint",
            )
        sets.append(ClozeSet(examples, length, special))
    train, evaluation = sets
    condition = condition_of(facts["form"], {"train": len(train), "eval": len(evaluation)})
    return _describe_sets(train, evaluation, condition, facts["f1_over"])
