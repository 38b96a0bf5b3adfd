"""The published sparse HDF5: it gives what the raw text gives, and whatever is wrong with it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from cloze_files import (
    LENGTH,
    from_text,
    ids,
    line,
    nothing,
    published_matrices,
    vocabulary,
    write_hdf5,
    write_jsonl,
)
from flagbench_cases.cases.glm import sparse_hdf5
from flagbench_cases.cases.glm.ragged import DTYPES, Builder, RaggedExamples
from flagbench_cases.cases.glm.special_tokens import SpecialTokens
from flagbench_cases.shared.errors import DataError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

Matrices = dict  # of the parts of each group by name


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, RaggedExamples]:
    """The raw examples, of training (True) and of evaluation."""
    folder = write_jsonl(tmp_path_factory.mktemp("raw"))
    return {True: from_text(folder / "train.jsonl", True), False: from_text(folder / "val.jsonl", False)}


def read(path: Path, training: bool = False, length: int = LENGTH, vocabulary: Any = None) -> RaggedExamples:
    builder = Builder()
    sparse_hdf5.build(str(path), training, SpecialTokens(), length, builder, nothing, vocabulary)
    return RaggedExamples(builder.arrays())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("chunk", [1, 2048])
def test_hdf5_and_raw_text_give_the_same_arrays(
    tmp_path: Path, raw: Any, training: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_hdf5, "CHUNK", chunk)
    path = write_hdf5(tmp_path / "set.hdf5", published_matrices(raw[training]))
    found, named = read(path, training), read(path, training, vocabulary=vocabulary())
    for name in DTYPES:
        if name != "f1":  # over words there, over pieces of words here
            assert np.array_equal(found.arrays[name], raw[training].arrays[name]), name
        assert np.array_equal(named.arrays[name], raw[training].arrays[name]), name


SOME = line("Dogs of the dog.", ["Dogs", "the dog", "dog"], ("who is @placeholder", ["Dogs"]))


def test_f1_over_word_pieces_and_over_words(tmp_path: Path) -> None:
    text = from_text(write_jsonl(tmp_path, [SOME]) / "val.jsonl", False)
    path = write_hdf5(tmp_path / "set.hdf5", published_matrices(text))
    # `dog ##s` and `the dog` share a piece, and no word.
    assert read(path).arrays["f1"].tolist() == pytest.approx([1.0, 0.5, 2 / 3])
    assert read(path, vocabulary=vocabulary()).arrays["f1"].tolist() == text.arrays["f1"].tolist() == [1.0, 0.0, 0.0]


def test_an_unknown_piece(tmp_path: Path) -> None:
    matrices = published_matrices(from_text(write_jsonl(tmp_path, [SOME]) / "val.jsonl", False))
    for name in ("text", "target"):
        matrices[name]["data"] = np.where(matrices[name]["data"] == ids("##s")[0], 40000, matrices[name]["data"])
    path = write_hdf5(tmp_path / "set.hdf5", matrices)
    with refuses(DataError, path, 40000):
        read(path, vocabulary=vocabulary())


def test_training_files_need_no_answers(tmp_path: Path, raw: Any) -> None:
    matrices = published_matrices(raw[True])
    del matrices["answer_idx"], matrices["answer_start_end"]
    found = read(write_hdf5(tmp_path / "set.hdf5", matrices), True)
    assert found.digest()
    assert (found.arrays["right"][found.starts[:-1]] == 1).all()


def change(name: str, part: str, at: Any, value: Any) -> Callable[[Matrices], None]:
    """Set one place of one array, or all of it where `at` is None."""

    def apply(matrices: Matrices) -> None:
        if at is None:
            matrices[name][part] = value
        else:
            matrices[name][part] = matrices[name][part].copy()
            matrices[name][part][at] = value

    return apply


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda m: m.pop("target"), "target"),
        (change("text", "data", None, np.array([b"a", b"b"])), "text"),
        (change("position", "format", None, "csc"), "position is a csc"),
        (lambda m: m["text"].update(data=m["text"]["data"][:-1]), "text: indptr"),
        (change("text", "indptr", 1, 10**6), "text: indptr"),
        (change("text", "indices", 5, LENGTH), "0 to 47"),
        (change("text", "indices", 5, 4), "duplicate"),
        (change("target", "shape", None, (3, LENGTH)), "target"),
        (change("choice_start_end", "data", 0, 5), "choice_start_end"),
        (change("answer_idx", "data", -1, 9), "answer"),
        (change("mask", "data", 1, 2), "row 1: mask"),
        (change("mask", "data", 1, 9), "row 1: logit_mask"),
        (change("text", "data", 0, 102), "row 0: text"),
        (change("target", "data", 0, 999), "row 0: target"),
        (change("position", "data", 3, 40), "row 0: position"),
        (change("position", "data", np.array([-1]), 9), "block position"),
    ],
)
def test_damage_is_named(tmp_path: Path, raw: Any, damage: Callable[[Matrices], None], named: str) -> None:
    matrices = published_matrices(raw[False])
    damage(matrices)
    path = write_hdf5(tmp_path / "set.hdf5", matrices)
    with refuses(DataError, path, named):
        read(path)


@pytest.mark.parametrize("kept", [0.1, 0.97])
def test_a_truncated_file_is_named(tmp_path: Path, raw: Any, kept: float) -> None:
    path = write_hdf5(tmp_path / "set.hdf5", published_matrices(raw[False]))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with refuses(DataError, path, "truncated"):
        read(path)


def test_another_sequence_length_is_named(tmp_path: Path, raw: Any) -> None:
    path = write_hdf5(tmp_path / "set.hdf5", published_matrices(raw[False]))
    with refuses(DataError, path, ", 48)", ", 512)"):
        read(path, length=512)
