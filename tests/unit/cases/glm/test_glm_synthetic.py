"""Random examples in ReCoRD's sizes: reproducible, in range, at hand at once."""

from __future__ import annotations

import numpy as np
import pytest

from flagbench_cases.cases.glm.data import ClozeSet, load
from flagbench_cases.cases.glm.synthetic import SPECIAL, synthetic

pytestmark = pytest.mark.image

SHAPE = {
    "mean_context": 240,
    "sigma_context": 0.42,
    "min_context": 32,
    "mean_choices": 9.5,
    "sigma_choices": 0.48,
    "min_choices": 2,
    "max_choices": 40,
    "mean_answer": 2.5,
    "sigma_answer": 0.5,
    "max_answer": 12,
}
DATA = {"source": "synthetic", "sequence_length": 512, "synthetic": SHAPE}
DATA.update(train_examples=4000, eval_examples=500)
MODEL = {"vocab_size": 30592}


def train(seed: int = 1) -> ClozeSet:
    return synthetic(DATA, MODEL, "train", seed)


def test_numbers_and_lengths_are_those_asked_for() -> None:
    sets = load(DATA, MODEL, None, 1)
    assert (len(sets.train), len(sets.evaluation), sets.condition) == (4000, 500, "synthetic")
    assert sets.train.choices.min() >= 2
    assert sets.train.choices.max() == 10
    assert sets.choices_condition == "10 at most, mean %.1f" % sets.train.choices.mean()
    assert 8.9 < sets.evaluation.choices.mean() < 10.1
    assert sets.evaluation.choices.max() > 10
    assert 230 < sets.train.lengths.mean() < 255
    assert sets.train.lengths.max() <= 512


def test_every_row_is_a_whole_cloze() -> None:
    cloze = train()
    for index in range(0, len(cloze), 200):
        example = cloze[index]
        row = np.arange(len(example.sep))
        assert (example.tokens[:, 0] == SPECIAL.cls).all()
        assert (example.tokens[row, example.sep] == SPECIAL.sop).all()
        assert ((example.tokens == SPECIAL.mask).sum(axis=1) == 1).all()
        masked = (example.tokens == SPECIAL.mask).argmax(axis=1)
        assert (example.positions[row, 0, example.sep] == masked).all()
        assert (masked < example.sep).all()
        assert 0 <= example.tokens.min() <= example.tokens.max() < 30592
        assert example.answers.tolist() == [True] + [False] * (len(row) - 1)
