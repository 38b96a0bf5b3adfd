"""Cloze examples as a model is given them: padding, positions, targets, batches, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flagbench_cases.cases.glm.data import ClozeSet, check_range, collate, share
from flagbench_cases.cases.glm.ragged import Builder, RaggedExamples, Special, file_name, open_split, save
from flagbench_cases.shared.errors import DataError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

SPECIAL = Special(pad=0, cls=1, mask=2, sop=3, eop=4)
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


@pytest.mark.parametrize(("count", "world"), [(0, 2), (1, 3), (7, 1), (7, 3), (64, 16)])
def test_every_example_has_one_rank(count: int, world: int) -> None:
    shares = [share(count, rank, world) for rank in range(world)]
    assert sorted(index for each in shares for index in each) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_stored_and_opened_examples_are_the_same(tmp_path: Path, cloze: ClozeSet) -> None:
    save("train", cloze.examples.arrays, lambda name: str(tmp_path / name))
    opened = ClozeSet(open_split("train", lambda name: str(tmp_path / name)), 10, SPECIAL)
    assert opened.digest() == cloze.digest()
    for index in range(2):
        assert all(np.array_equal(a, b) for a, b in zip(opened[index], cloze[index]))


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("masks", b"\x93NUMPY", "eval-masks.npy"),
        ("contexts", np.zeros(10, dtype=np.int64), "int64"),
        ("example_starts", np.array([0, 3, 2], dtype=np.int64), "eval-example_starts.npy"),
        ("rows", np.array([0, 0, 2], dtype=np.int32), "eval-rows.npy"),
        ("right", np.array([1, 0, 2], dtype=np.uint8), "eval-right.npy"),
        ("f1", np.array([1.0, np.nan, 0.0], dtype=np.float32), "eval-f1.npy"),
    ],
)
def test_damaged_arrays_are_refused(tmp_path: Path, name: str, content: Any, named: str) -> None:
    save("eval", examples().arrays, lambda each: str(tmp_path / each))
    path = tmp_path / file_name("eval", name)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(str(path), content)
    with refuses(DataError, named):
        open_split("eval", lambda each: str(tmp_path / each))


@pytest.mark.parametrize(("length", "size", "value"), [(10, 24, "id 24"), (8, 25, "9 tokens")])
def test_what_a_model_cannot_take_is_refused(length: int, size: int, value: str) -> None:
    with refuses(DataError, "folder", "train", value):
        check_range("folder", "train", examples(), length, size, SPECIAL)
