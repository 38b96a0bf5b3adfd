"""The data sets of the case: the prepared folder, the shipped set or random examples; and batches of them."""

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import torch

from flagbench_cases.cases.glm import tiny
from flagbench_cases.cases.glm.cloze_set import ClozeSet, Example
from flagbench_cases.cases.glm.ragged import FORMAT, RaggedExamples, Special, open_split
from flagbench_cases.cases.glm.synthetic import synthetic
from flagbench_cases.shared.errors import DataError

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
F1_OVER = ("words", "wordpieces")


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
    index: torch.Tensor  # int64 [B]
    useful: torch.Tensor  # int64 [B]: tokens of the example's own choices without padding


class Sets(NamedTuple):
    """The two sets, their `data` and `choices` conditions of a claim, and the tokens that F1 is computed on."""

    train: ClozeSet
    evaluation: ClozeSet
    condition: str
    choices_condition: str
    f1_over: str  # one of F1_OVER


def collate(examples: List[Example]) -> Batch:
    """A batch of examples; C is the largest number of choices among them."""
    most = max(len(example.answers) for example in examples)

    def stacked(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([_padded(getattr(example, name), most) for example in examples]))

    counts = [len(example.answers) for example in examples]
    choice_mask = (np.arange(most) < np.array(counts)[:, None]).astype(np.int64)
    useful = [int(example.sep.sum()) + int(example.target_mask.sum()) for example in examples]
    return Batch(
        *(stacked(name) for name in ("tokens", "positions", "sep", "targets", "target_mask")),
        torch.from_numpy(choice_mask),
        torch.zeros(len(examples), dtype=torch.int64),
        stacked("answers") & torch.from_numpy(choice_mask).bool(),
        torch.tensor([example.index for example in examples]),
        torch.tensor(useful),
    )


def _padded(array: np.ndarray, most: int) -> np.ndarray:
    missing = most - len(array)
    return np.concatenate([array] + [array[:1]] * missing) if missing else array


def share(examples: int, rank: int, world: int) -> range:
    """The examples of one rank; every example is on exactly one rank."""
    return range(rank, examples, world)


def load(data: Dict[str, Any], model: Dict[str, Any], folder: Optional[str], seed: int) -> Sets:
    """Load the sets selected by the resolved `data` section. `folder` was written by `flagbench prepare glm`."""
    if data["source"] == "synthetic":
        train = synthetic(data, model, "train", seed)
        return _sets(train, synthetic(data, model, "eval", seed), "synthetic", "wordpieces")
    if data["source"] == "shipped":
        return _sets(*tiny.read(data["sequence_length"], model["vocab_size"]), "shipped", "words")
    return read_prepared(folder, data["sequence_length"], model["vocab_size"])


def _sets(train: ClozeSet, evaluation: ClozeSet, condition: str, f1_over: str) -> Sets:
    most, mean = int(train.choices.max()), float(train.choices.mean())
    return Sets(train, evaluation, condition, "%d at most, mean %.1f" % (most, mean), f1_over)


def condition_of(form: str, examples: Dict[str, int]) -> str:
    """The `data` condition for a source format and the numbers of `train` and `eval` examples."""
    expected = EXPECTED[form]
    known = all(low <= examples[split] <= high for split, (low, high) in expected.items())
    return CONDITIONS[form] if known else OTHER_DATA


def read_prepared(folder: Optional[str], length: int, vocabulary_size: int) -> Sets:
    """Load the sets of a prepared folder. Raises DataError if they do not fit the model."""
    from flagbench_cases.prepare import prepared_folder

    place = prepared_folder.open_folder(folder or "", "glm", "data", (FORMAT,))
    facts = _checked(str(folder), place.facts)
    if facts.length != length:
        raise DataError(
            "%s was prepared for %d tokens, but this preset has %d" % (folder, facts.length, length),
            "use --preset reference, or prepare the data again",
        )
    special, sets = facts.special, []
    for split in ("train", "eval"):
        examples = open_split(split, place.path)
        check_range(str(folder), split, examples, length, vocabulary_size, special)
        sets.append(ClozeSet(examples, length, special))
    condition = condition_of(facts.form, {"train": len(sets[0]), "eval": len(sets[1])})
    return _sets(sets[0], sets[1], condition, facts.f1_over)


class Facts(NamedTuple):
    """The facts of `prepared.json` that a run needs."""

    form: str
    length: int
    special: Special
    f1_over: str


def _checked(folder: str, facts: Dict[str, Any]) -> Facts:
    """Validate the facts of a prepared folder. Raises DataError."""
    form, length, special, f1_over = (facts.get(name) for name in ("form", "sequence_length", "special", "f1_over"))
    for name, right in (
        ("form", isinstance(form, str) and form in EXPECTED),
        ("sequence_length", _is_count(length)),
        (
            "special",
            isinstance(special, dict)
            and set(special) == set(Special._fields)
            and all(map(_is_count, special.values())),
        ),
        ("f1_over", isinstance(f1_over, str) and f1_over in F1_OVER),
    ):
        if not right:
            raise DataError(
                "%s: the fact %s in prepared.json is missing or invalid" % (folder, name),
                "prepare the data again",
            )
    return Facts(form, length, Special(**special), f1_over)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_range(
    where: str, split: str, examples: RaggedExamples, length: int, vocabulary_size: int, special: Special
) -> None:
    """Raise DataError for examples that a model of that size and length cannot use."""
    tokens = [examples.arrays[name] for name in ("contexts", "answers")]  # answers may be empty
    highest = max(*(int(ids.max(initial=0)) for ids in tokens), *special)
    lowest = min(int(ids.min(initial=0)) for ids in tokens)
    if lowest < 0 or highest >= vocabulary_size:
        raise DataError(
            "%s: token id %d of the %s set is out of range" % (where, lowest if lowest < 0 else highest, split),
            "the vocabulary may have at most %d tokens; prepare the data with the vocabulary of the checkpoint"
            % vocabulary_size,
        )
    masks = examples.arrays["masks"]
    if masks.min() < 0 or (masks >= np.diff(examples.arrays["context_starts"])).any():
        raise DataError("%s: a mask of the %s set is outside of its context" % (where, split), "prepare it again")
    if int(examples.lengths.max()) > length:
        raise DataError(
            "%s: a choice of the %s set has %d tokens" % (where, split, int(examples.lengths.max())),
            "prepare the data for %d tokens" % length,
        )
