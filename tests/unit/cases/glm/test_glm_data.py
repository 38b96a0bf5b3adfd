"""Cloze examples as a model is given them: padding, positions, targets, batches, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flagbench_cases.cases.glm.data import ClozeSet, collate, load
from flagbench_cases.cases.glm.ragged import Builder, RaggedExamples
from flagbench_cases.cases.glm.special_tokens import SpecialTokens
from flagbench_cases.shared.errors import UsageError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

SPECIAL = SpecialTokens(pad=0, cls=1, mask=2, sop=3, eop=4)
# Two choices share a context; the second example has one choice.
CONTEXT, OTHER = [1, 11, 12, 2, 13, 0], [1, 2, 14, 0]


def examples() -> RaggedExamples:
    builder = Builder()
    builder.add([CONTEXT, CONTEXT], [3, 3], [[21], [22, 23]], [True, False], [1.0, 0.5])
    builder.add([OTHER], [1], [[24]], [False], [0.0])
    return RaggedExamples(builder.arrays())


@pytest.fixture
def cloze() -> ClozeSet:
    return ClozeSet(examples(), 10, SPECIAL)


def test_an_example_by_hand(cloze: ClozeSet) -> None:
    example = cloze[0]
    assert example.tokens.tolist() == [[1, 11, 12, 2, 13, 0, 3, 21, 0, 0], [1, 11, 12, 2, 13, 0, 3, 22, 23, 0]]
    assert example.positions[:, 0].tolist() == [[0, 1, 2, 3, 4, 5, 3, 3, 0, 0], [0, 1, 2, 3, 4, 5, 3, 3, 3, 0]]
    assert example.positions[:, 1].tolist() == [[0, 0, 0, 0, 0, 0, 1, 2, 0, 0], [0, 0, 0, 0, 0, 0, 1, 2, 3, 0]]
    assert example.targets.tolist() == [[0] * 6 + [21, 4, 0, 0], [0] * 6 + [22, 23, 4, 0]]
    assert example.target_mask.tolist() == [[0] * 6 + [1, 1, 0, 0], [0] * 6 + [1, 1, 1, 0]]
    assert example.sep.tolist() == [6, 6]
    assert example.answers.tolist() == [True, False]
    assert [example.tokens.dtype, example.target_mask.dtype] == [np.int64, np.int64]


def test_a_batch_repeats_choice_0_and_says_so(cloze: ClozeSet) -> None:
    batch = collate([cloze[0], cloze[1]])
    assert batch.tokens.shape == (2, 2, 10)
    assert batch.positions.shape == (2, 2, 2, 10)
    assert torch.equal(batch.tokens[1, 1], batch.tokens[1, 0])
    assert torch.equal(batch.target_mask[1, 1], batch.target_mask[1, 0])
    assert batch.choice_mask.tolist() == [[1, 1], [1, 0]]
    assert batch.answers.tolist() == [[True, False], [False, False]]
    assert batch.index.tolist() == [0, 1]
    assert batch.useful.tolist() == [8 + 9, 6]
    assert batch.labels.tolist() == [0, 0]
    kinds = {name: tensor.dtype for name, tensor in batch._asdict().items()}
    assert kinds == {**dict.fromkeys(batch._fields, torch.int64), "answers": torch.bool}


SHIPPED = {"source": "shipped", "sequence_length": 56}


def test_the_shipped_set() -> None:
    sets = load(SHIPPED, {"vocab_size": 96}, None, seed=1)
    assert (len(sets.train), len(sets.evaluation)) == (1040, 200)
    assert (sets.condition, sets.choices_condition) == ("shipped", "4 at most, mean 4.0")
    assert sets.train.lengths.max() <= 50
    with refuses(UsageError, 88, 87):
        load(SHIPPED, {"vocab_size": 87}, None, seed=1)
