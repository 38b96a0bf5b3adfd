"""SST-2 in each form it is given in; what is damaged or does not fit is refused with the file's name and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flagbench_cases.cases.distilbert import data as sst2
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.manifests import load_case
from unit.cases.refusal import refusal as refusal_of
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

REFERENCE = load_case("distilbert")["presets"]["reference"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "film", "is", "gr", "##eat", "dull", '"', ".", "café"]
MODEL = {**REFERENCE["model"], "vocab_size": len(VOCABULARY)}
LENGTH = 16
# The sentences, their WordPiece rows by hand, and their labels.
SENTENCES = ["the film is great .", "dull", "the film is dull .", '"the" film', "great great great great"]
ROWS = [[2, 4, 5, 6, 7, 8, 11, 3], [2, 9, 3], [2, 4, 5, 6, 9, 11, 3], [2, 10, 4, 10, 5, 3], [2, *[7, 8] * 4, 3]]
LABELS = [1, 0, 0, 1, 1]


def published_arrays(length: int = LENGTH) -> dict[str, np.ndarray]:
    """The arrays of FlagPerf's npz files, in its order and types."""
    ids = np.array([row + [0] * (length - len(row)) for row in ROWS], dtype=np.int64)
    return {
        "idx": np.arange(len(ROWS)),
        "sentence": np.array(SENTENCES),
        "label": np.array(LABELS, dtype=np.int64),
        "input_ids": ids,
        "attention_mask": (ids != 0).astype(np.int64),
    }


def write_npz(folder: Path, **changed: Any) -> Path:
    """A data folder in FlagPerf's layout; `changed` arrays of the training set replace the good ones."""
    (folder / "dataset").mkdir(exist_ok=True)
    np.savez(str(folder / "dataset" / "eval_dataset.npz"), **published_arrays())
    np.savez(str(folder / "dataset" / "train_dataset.npz"), **{**published_arrays(), **changed})
    return folder


def write_tsv(folder: Path, text: str | None = None, vocabulary: list[str] | None = VOCABULARY) -> Path:
    """A data folder in GLUE's layout; `text` replaces the training set."""
    (folder / "SST-2").mkdir(exist_ok=True)
    good = "sentence\tlabel\n" + "".join(f"{s}\t{y}\n" for s, y in zip(SENTENCES, LABELS))
    (folder / "SST-2" / "dev.tsv").write_bytes(good.encode())
    (folder / "SST-2" / "train.tsv").write_bytes((good if text is None else text).encode())
    if vocabulary is not None:
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return folder


def read(folder: Path, weights: str | None = None, length: int = LENGTH) -> sst2.SentenceSet:
    """The training set of a folder."""
    return sst2.read_folder(str(folder), weights, length, MODEL)[0]


def refusal(folder: Path, **options: Any) -> str:
    return refusal_of(read, folder, **options)


# npz


def test_npz_in_the_published_layout(tmp_path: Path) -> None:
    train, evaluation = sst2.read_folder(str(write_npz(tmp_path)), None, LENGTH, MODEL)
    assert (len(train), len(evaluation)) == (5, 5)
    assert train.lengths.tolist() == [len(row) for row in ROWS]
    assert (train.input_ids.dtype, train.lengths.dtype, train.labels.dtype) == (np.int32, np.int32, np.int64)
    ids, mask, label = train[1]
    assert ids.tolist() == [2, 9, 3] + [0] * (LENGTH - 3)
    assert mask.tolist() == [1] * 3 + [0] * (LENGTH - 3)
    assert label.item() == 0
    assert (ids.dtype, mask.dtype, label.dtype) == (torch.int64,) * 3
    assert (ids.shape, mask.shape, label.shape) == ((LENGTH,), (LENGTH,), ())


class Canary:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_object_ids_are_never_unpickled(tmp_path: Path) -> None:
    ids = np.array([[Canary(tmp_path / "canary")] * LENGTH] * 5, dtype=object)
    assert "train_dataset.npz" in refusal(write_npz(tmp_path, input_ids=ids))
    assert not (tmp_path / "canary").exists()


def altered(key: str, row: int, column: int, value: int) -> dict[str, np.ndarray]:
    array = published_arrays()[key]
    array[row, column] = value
    return {key: array}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"input_ids": published_arrays()["input_ids"].astype(np.int32)}, "input_ids is int32"),
        ({"label": np.array(LABELS[:4])}, "(5, 16), not (4, 16)"),
        ({"input_ids": published_arrays(17)["input_ids"]}, "(5, 17), not (5, 16)"),
        ({"label": np.array([0, 1, 2, 0, 1])}, "label 2"),
        (altered("input_ids", 2, 3, len(VOCABULARY)), "token id 13"),
        (altered("attention_mask", 0, 3, 0), "attention_mask"),
        ({"attention_mask": np.zeros((5, LENGTH), np.int64)}, "example 0"),
        ({key: array[:0] for key, array in published_arrays().items()}, "no examples"),
    ],
)
def test_npz_with_wrong_values_is_refused(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    with refuses(DataError, "train_dataset.npz", named):
        read(write_npz(tmp_path, **changed))


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda content, share=share: content[: int(share * len(content))] for share in (0.0, 0.5)),
        lambda content: b"<html>404</html>",
        lambda content: b"\x80\x04N.",  # a pickle
    ],
)
def test_what_is_no_npz_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write_npz(tmp_path) / "dataset" / "train_dataset.npz"
    path.write_bytes(damage(path.read_bytes()))
    assert "train_dataset.npz" in refusal(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for write, below, names in (
        (write_npz, "dataset", ("train_dataset.npz", "eval_dataset.npz")),
        (write_tsv, "SST-2", ("train.tsv", "dev.tsv")),
    ):
        for name in names:
            folder = tmp_path / name
            folder.mkdir()
            (write(folder) / below / name).unlink()
            assert name in refusal(folder)


def test_folder_missing_or_empty_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path, Path(__file__)):
        assert str(folder) in refusal(folder)


# TSV


def test_tsv_gives_the_rows_of_the_npz(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    from_npz, from_tsv = read(write_npz(tmp_path / "a")), read(write_tsv(tmp_path / "b"))
    assert from_tsv.input_ids.tolist() == from_npz.input_ids.tolist()
    assert from_tsv.digest() == from_npz.digest()


def test_tsv_keeps_quotes_and_folds_unicode(tmp_path: Path) -> None:
    """A quote is a token like any other; accents fold, so that `café` becomes `cafe`, which is not in the list."""
    train = read(write_tsv(tmp_path, 'sentence\tlabel\n"the "film" is\t1\nCAFÉ the\u2028film\t0\n'))
    assert train.input_ids[0][:8].tolist() == [2, 10, 4, 10, 5, 10, 6, 3]
    assert train.input_ids[1][:5].tolist() == [2, 1, 4, 5, 3]


def test_long_sentence_is_cut_and_still_ends_in_sep(tmp_path: Path) -> None:
    train = read(write_tsv(tmp_path, "sentence\tlabel\n" + "the " * 99 + "\t1\n"))
    assert train.lengths.tolist() == [LENGTH]
    assert train.input_ids[0].tolist() == [2, *[4] * (LENGTH - 2), 3]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "['']"),
        ("the film\t1\n", "['the film', '1']"),
        ("sentence\tlabel\n", "train.tsv"),
        ("sentence\tlabel\ndull\t0\nthe film 1\n", "train.tsv:3"),
        *(("sentence\tlabel\n" + line, "train.tsv:2") for line in ("dull\t0\t1\n", "\n", "dull\t²\n", "dull\t-1\n")),
        *((f"sentence\tlabel\ndull\t{label}\n", "train.tsv:2") for label in ("2", "9" * 30)),
    ],
)
def test_bad_tsv_is_refused(tmp_path: Path, text: str, named: str) -> None:
    with refuses(DataError, "train.tsv", named):
        read(write_tsv(tmp_path, text))


def test_vocabulary_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    longer = [*VOCABULARY, "cafe"]  # one more than the model has embeddings
    assert "token id 13" in refusal(write_tsv(tmp_path, "sentence\tlabel\ncafé\t1\n", longer))
    assert "vocab.txt has no token [CLS], [SEP]" in refusal(write_tsv(tmp_path, vocabulary=["[PAD]", "[UNK]", "the"]))
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe\n")
    assert "vocab.txt" in refusal(tmp_path)


# synthetic and shipped


def test_synthetic_set_has_the_shape_of_sst2() -> None:
    train = sst2.synthetic(REFERENCE["data"], REFERENCE["model"], 67_349, seed=0)
    assert len(train) == 67_349
    assert train.lengths.mean() == pytest.approx(13.3, abs=0.4)
    assert (train.lengths.min(), train.lengths.max()) == (3, 66)
    assert train.labels.mean() == pytest.approx(0.5, abs=0.02)
    assert train.input_ids.shape == (67_349, 512)
    ids, lengths = train.input_ids[:1000], train.lengths[:1000]
    inside = np.arange(512) < lengths[:, None]
    assert not ids[~inside].any()
    assert (ids[:, 0] == sst2.CLS).all()
    assert (ids[np.arange(1000), lengths - 1] == sst2.SEP).all()
    assert 0 < ids[inside].min() <= ids[inside].max() < REFERENCE["model"]["vocab_size"]
