"""The data sets of the case: the prepared folder, the shipped set or random examples; and batches of them."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import torch

from flagbench_cases.cases.glm.cloze_set import ClozeSet, Example
from flagbench_cases.cases.glm.dataset_text import SPECIAL_TOKENS, build, special_tokens
from flagbench_cases.cases.glm.ragged import FORMAT, Builder, RaggedExamples, Special, open_split
from flagbench_cases.cases.glm.synthetic import synthetic
from flagbench_cases.prepare.wordpiece import read_vocabulary
from flagbench_cases.shared.errors import DataError, UsageError

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
# The source formats of a prepared folder.
HDF5_FORM, JSONL_FORM = "published hdf5", "raw jsonl"
# Minimum and maximum number of examples, by source format. The evaluation set was counted. The training set was
# inferred from the publisher's schedule of floor(n / 32) = 4338 updates (138827 is the most likely n). For sets
# rebuilt from text other counts are known, such as 138854, so their range is wider and they have a separate
# condition.
EXPECTED = {
    HDF5_FORM: {"train": (138816, 138847), "eval": (10000, 10000)},
    JSONL_FORM: {"train": (138000, 139999), "eval": (10000, 10000)},
}
CONDITIONS = {HDF5_FORM: "record", JSONL_FORM: "record, rebuilt"}
OTHER_DATA = "files"


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
    """The two sets, their `data` and `choices` conditions of a claim, and the tokens that F1 is computed on."""

    train: ClozeSet
    evaluation: ClozeSet
    condition: str
    choices_condition: str
    f1_over: str  # "words" or "wordpieces"


def collate(examples: list[Example]) -> Batch:
    """A batch of examples; C is the largest number of choices among them."""
    most = max(len(example.answers) for example in examples)

    def stacked(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([_padded(getattr(example, name), most) for example in examples]))

    counts = [len(example.answers) for example in examples]
    choice_mask = (np.arange(most) < np.array(counts)[:, None]).astype(np.int64)
    useful = [int(example.sep.sum()) + int(example.target_mask.sum()) for example in examples]
    return Batch(
        **{name: stacked(name) for name in ("tokens", "positions", "sep", "targets", "target_mask")},
        choice_mask=torch.from_numpy(choice_mask),
        labels=torch.zeros(len(examples), dtype=torch.int64),
        answers=stacked("answers") & torch.from_numpy(choice_mask).bool(),
        index=torch.tensor([example.index for example in examples]),
        useful=torch.tensor(useful),
    )


def _padded(array: np.ndarray, most: int) -> np.ndarray:
    missing = most - len(array)
    if not missing:
        return array
    return np.concatenate([array] + [array[:1]] * missing)


def load(data: dict[str, Any], model: dict[str, Any], folder: str | None, seed: int) -> Sets:
    """Load the sets selected by the resolved `data` section. `folder` was written by `flagbench prepare glm`."""
    if data["source"] == "synthetic":
        train = synthetic(data, model, "train", seed)
        return _sets(train, synthetic(data, model, "eval", seed), "synthetic", "wordpieces")
    if data["source"] == "shipped":
        return _sets(*read_shipped(data["sequence_length"], model["vocab_size"]), "shipped", "words")
    return read_prepared(folder, data["sequence_length"], model["vocab_size"])


def _sets(train: ClozeSet, evaluation: ClozeSet, condition: str, f1_over: str) -> Sets:
    most, mean = int(train.choices.max()), float(train.choices.mean())
    return Sets(train, evaluation, condition, f"{most} at most, mean {mean:.1f}", f1_over)


def condition_of(form: str, examples: dict[str, int]) -> str:
    """The `data` condition for a source format and the numbers of `train` and `eval` examples."""
    expected = EXPECTED[form]
    for split, (low, high) in expected.items():
        if not low <= examples[split] <= high:
            return OTHER_DATA
    return CONDITIONS[form]


def read_shipped(length: int, vocabulary_size: int) -> tuple[ClozeSet, ClozeSet]:
    """The sets of the tiny preset, read like the published files.

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

    place = prepared_folder.open_folder(folder or "", "glm", "data", (FORMAT,))
    facts, sets = place.facts, []
    if facts["sequence_length"] != length:
        raise DataError(
            f"{folder} was prepared for {facts['sequence_length']} tokens, but this preset has {length}",
            "use --preset reference, or prepare the data again",
        )
    special = Special(**facts["special"])
    for split in ("train", "eval"):
        examples = open_split(split, place)
        in_texts = int(examples.arrays["contexts"].max(initial=0))
        in_answers = int(examples.arrays["answers"].max(initial=0))
        highest = max(in_texts, in_answers, *special)
        if highest >= vocabulary_size:
            raise DataError(
                f"{folder}: the {split} set has the token {highest}, but the model has {vocabulary_size} tokens",
                "prepare the data with the vocabulary of the checkpoint",
            )
        sets.append(ClozeSet(examples, length, special))
    condition = condition_of(facts["form"], {"train": len(sets[0]), "eval": len(sets[1])})
    return _sets(sets[0], sets[1], condition, facts["f1_over"])
