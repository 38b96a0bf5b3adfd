"""From downloaded files to a prepared folder to the sets of a run, and what is refused on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze_files import (
    from_text,
    nothing,
    published_matrices,
    write_hdf5,
    write_jsonl,
    write_vocabulary,
)
from flagbench_cases.cases.glm import data as dataset
from flagbench_cases.cases.glm import prepare
from flagbench_cases.cases.glm.special_tokens import SpecialTokens
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.shared.errors import DataError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

LENGTH = 512
DATA = {"source": "files", "sequence_length": LENGTH}
MODEL = {"vocab_size": 30592}
REFERENCE = {"data": DATA, "model": MODEL}


def make(source: Path, out: Path, vocabulary: str | None) -> str:
    """A folder prepared from `source`."""
    with prepared_folder.writing(str(out), "glm", "data", prepare.LICENCES["data"]) as writer:
        prepare.prepare_data(str(source), vocabulary, REFERENCE, writer, nothing)
    return str(out)


@pytest.fixture(scope="module")
def from_raw(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("raw")
    return make(write_jsonl(folder), folder / "out", write_vocabulary(folder))


def published(folder: Path, place: str = "ReCoRD/glm_train_eval_hdf5_sparse") -> Path:
    """The archive's layout with small files in it."""
    write_jsonl(folder)
    for split, name in (("train", "train.jsonl"), ("eval", "val.jsonl")):
        examples = from_text(folder / name, split == "train", LENGTH)
        write_hdf5(folder / place / prepare.HDF5[split], published_matrices(examples, LENGTH))
    return folder


def test_raw_text_becomes_the_sets_of_a_run(from_raw: str) -> None:
    sets = dataset.load(DATA, MODEL, from_raw, seed=1)
    assert (len(sets.train), len(sets.evaluation)) == (5, 4)
    assert (sets.condition, sets.choices_condition) == ("files", "4 at most, mean 2.6")
    assert sets.train[0].tokens.shape == (2, LENGTH)
    assert sets.train.special == SpecialTokens()
    assert all(sets.train[index].answers[0] for index in range(len(sets.train)))


def test_facts_and_sources_are_kept(from_raw: str) -> None:
    folder = prepared_folder.open_folder(from_raw, "glm", "data", ("glm-cloze/v1",))
    assert folder.facts["form"] == "raw jsonl"
    assert folder.facts["f1_over"] == "words"
    assert folder.facts["sequence_length"] == LENGTH
    assert folder.facts["data_condition"] == "files"
    assert folder.facts["examples_expected"] == "train 138000 to 139999, eval 10000"
    assert folder.facts["examples_found"] == "train 5, eval 4"
    assert folder.facts["eval"] == {
        "examples": 4,
        "choices": 12,
        "mean_choices": 3.0,
        "most_choices": 4,
        "mean_length": 30.5,
        "choices_with_cut_passage": 0,
        "examples_without_right_choice": 0,
    }
    assert [source["name"] for source in folder.sources] == ["train.jsonl", "val.jsonl", "vocab.txt"]


@pytest.mark.parametrize("place", ["ReCoRD/glm_train_eval_hdf5_sparse", "glm_train_eval_hdf5_sparse", "."])
def test_published_files_become_the_same_sets(tmp_path: Path, from_raw: str, place: str) -> None:
    """HDF5 is taken where both lie, and needs no vocabulary."""
    made = make(published(tmp_path, place), tmp_path / "out", None)
    ours, theirs = (dataset.load(DATA, MODEL, folder, seed=1) for folder in (from_raw, made))
    for index in range(len(ours.train)):
        assert all(np.array_equal(a, b) for a, b in zip(ours.train[index], theirs.train[index]))
    for index in range(len(ours.evaluation)):
        assert all(np.array_equal(a, b) for a, b in zip(ours.evaluation[index], theirs.evaluation[index]))
    facts = prepared_folder.open_folder(made, "glm", "data").facts
    assert (facts["form"], facts["f1_over"]) == ("published hdf5", "wordpieces")
    assert facts["examples_expected"] == "train 138816 to 138847, eval 10000"
    assert (ours.f1_over, theirs.f1_over) == ("words", "wordpieces")


def test_published_files_with_a_vocabulary_have_f1_over_words(tmp_path: Path, from_raw: str) -> None:
    made = make(published(tmp_path), tmp_path / "out", write_vocabulary(tmp_path))
    ours, theirs = (dataset.load(DATA, MODEL, folder, seed=1) for folder in (from_raw, made))
    assert theirs.f1_over == "words"
    assert ours.train.digest() == theirs.train.digest()
    assert ours.evaluation.digest() == theirs.evaluation.digest()
    sources = [source["name"] for source in prepared_folder.open_folder(made, "glm", "data").sources]
    assert sources == ["train_sparse.hdf5", "eval_sparse.hdf5", "vocab.txt"]


@pytest.mark.parametrize(
    ("form", "train", "evaluation", "condition"),
    [
        (dataset.HDF5_FORM, 138816, 10000, "record"),
        (dataset.HDF5_FORM, 138847, 10000, "record"),
        (dataset.HDF5_FORM, 138815, 10000, "files"),
        (dataset.HDF5_FORM, 138848, 10000, "files"),
        (dataset.JSONL_FORM, 138000, 10000, "record, rebuilt"),
        (dataset.JSONL_FORM, 137999, 10000, "files"),
        (dataset.JSONL_FORM, 138827, 10001, "files"),
    ],
)
def test_form_and_counts_make_the_condition(form: str, train: int, evaluation: int, condition: str) -> None:
    assert dataset.condition_of(form, {"train": train, "eval": evaluation}) == condition


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    file = Path(__file__)
    for source, named in ((tmp_path, prepare.HDF5["train"]), (tmp_path / "none", tmp_path / "none"), (file, file)):
        with refuses(DataError, named):
            make(source, tmp_path / "out", None)
    (write_jsonl(tmp_path) / "val.jsonl").unlink()
    with refuses(DataError, "val.jsonl"):
        make(tmp_path, tmp_path / "out", write_vocabulary(tmp_path))


def test_a_folder_that_was_not_prepared_is_refused(tmp_path: Path) -> None:
    with refuses(DataError) as caught:
        dataset.load(DATA, MODEL, str(write_jsonl(tmp_path)), seed=1)
    assert "flagbench prepare glm --data" in caught.value.remedy


@pytest.mark.parametrize(
    ("data", "model", "named"),
    [({**DATA, "sequence_length": 64}, MODEL, ("512", "64")), (DATA, {"vocab_size": 512}, ("30523", "train"))],
)
def test_a_folder_that_does_not_fit_the_model_is_refused(from_raw: str, data: Any, model: Any, named: Any) -> None:
    with refuses(DataError, *named):
        dataset.load(data, model, from_raw, seed=1)
