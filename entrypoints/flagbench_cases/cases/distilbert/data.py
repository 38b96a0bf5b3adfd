"""Reads and validates SST-2 in its published formats, as in-memory sets of fixed-length token rows.

Formats: FlagPerf's npz (`[dataset/]{train,eval}_dataset.npz`: idx, sentence, label, input_ids, attention_mask, int64,
padded), GLUE's TSV (`[SST-2/]{train,dev}.tsv`: sentence, label; needs a vocab.txt), the tiny set shipped here, and
synthetic rows with the lengths of SST-2.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from typing import Any, NamedTuple

import numpy as np
import torch

from flagbench_cases.prepare.synthetic import lognormal
from flagbench_cases.prepare.wordpiece import read_vocabulary
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
NPZ_KEYS = ("input_ids", "attention_mask", "label")
# What numpy, zipfile and zlib raise for damaged archives (RuntimeError: a flag bit says "encrypted").
NPZ_ERRORS = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
CLS, SEP = 101, 102
SPECIAL_TOKENS = ("[UNK]", "[CLS]", "[SEP]")


class SentenceSet(torch.utils.data.Dataset):
    """n sentences: input_ids int32 [n, T] padded on the right, lengths int32 [n], labels int64 [n]."""

    def __init__(self, input_ids: np.ndarray, lengths: np.ndarray, labels: np.ndarray) -> None:
        self.input_ids = input_ids
        self.lengths = lengths
        self.labels = labels
        self._columns = np.arange(input_ids.shape[1])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """ids int64 [T], mask int64 [T], label int64 []."""
        ids = torch.from_numpy(self.input_ids[index].astype(np.int64))
        mask = torch.from_numpy((self._columns < self.lengths[index]).astype(np.int64))
        return ids, mask, torch.tensor(int(self.labels[index]))

    def digest(self) -> str:
        """sha256 of token rows and labels, independent of the file format."""
        hasher = hashlib.sha256()
        for array in (self.input_ids, self.lengths, self.labels):
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


class Sets(NamedTuple):
    """The two sets, and their origin as the value of a claim's `data` condition."""

    train: SentenceSet
    evaluation: SentenceSet
    condition: str


def load(data: dict[str, Any], model: dict[str, Any], folder: str | None, weights: str | None, seed: int) -> Sets:
    """Load the sets selected by the resolved `data` section."""
    if data["source"] == "synthetic":
        train = synthetic(data, model, data["train_examples"] or 2048, seed)
        return Sets(train, synthetic(data, model, data["eval_examples"] or 256, seed + 1), "synthetic")
    if data["source"] == "shipped":
        tiny = read_tsv_pair(TINY, os.path.join(TINY, "vocab.txt"), data["sequence_length"], model)
        return Sets(tiny[0], tiny[1], "shipped")
    train, evaluation = read_folder(folder or "", weights, data["sequence_length"], model)
    condition = "sst2" if (len(train), len(evaluation)) == (67349, 872) else "files"
    return Sets(train, evaluation, condition)


def read_folder(
    folder: str, weights: str | None, length: int, model: dict[str, Any]
) -> tuple[SentenceSet, SentenceSet]:
    """Load the sets from a data folder, in any of the formats."""
    if not os.path.isdir(folder):
        raise DataError(f"there is no folder {folder}", "set --data to a folder, or use --data synthetic")
    for sub in ("dataset", "."):
        pair = [os.path.join(folder, sub, f"{part}_dataset.npz") for part in ("train", "eval")]
        if any(os.path.exists(path) for path in pair):
            return read_npz(pair[0], length, model), read_npz(pair[1], length, model)
    for sub in ("SST-2", "."):
        place = os.path.join(folder, sub)
        if any(os.path.exists(os.path.join(place, name)) for name in ("train.tsv", "dev.tsv")):
            return read_tsv_pair(place, find_vocabulary(place, folder, weights), length, model)
    raise DataError(
        f"{folder} has neither {{train,eval}}_dataset.npz nor {{train,dev}}.tsv",
        "put FlagPerf's dataset/ folder or GLUE's SST-2/ folder there",
    )


def read_npz(path: str, length: int, model: dict[str, Any]) -> SentenceSet:
    """Read one of FlagPerf's npz files. Raises DataError if it is invalid."""
    try:
        ids, mask, labels = _arrays(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", "put both files into the data folder") from None
    except NPZ_ERRORS as error:
        first_line = str(error).split("\n")[0]
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}: {first_line})",
            "download it again: it is truncated or not an npz file",
        ) from error
    for key, array, shape in (
        ("label", labels, (labels.size,)),
        ("input_ids", ids, (labels.size, length)),
        ("attention_mask", mask, (labels.size, length)),
    ):
        if array.dtype != np.int64:
            raise DataError(f"{path}: {key} is {array.dtype}", "store it as int64, as published")
        if array.shape != shape:
            raise DataError(
                f"{path}: {key} has the shape {array.shape}, not {shape}",
                f"provide a row for each label, padded to the {length} tokens of this preset",
            )
    lengths = mask.sum(axis=1)
    if not np.array_equal(mask, np.arange(length) < lengths[:, None]):
        raise DataError(f"{path}: attention_mask is not ones followed by zeros", "pad on the right")
    return checked(path, ids, lengths, labels, model)


def _arrays(path: str) -> list[np.ndarray]:
    """Read only the arrays of NPZ_KEYS. Raises NPZ_ERRORS for a damaged file."""
    with open_file(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":  # np.load would try to read it as a single array, then as a pickle
            raise ValueError("it is not a zip archive")
    with np.load(path, allow_pickle=False) as archive:
        missing = [key for key in NPZ_KEYS if key not in archive.files]
        if missing:
            raise DataError(
                f"{path} has no array {', '.join(missing)}",
                f"write the file with {', '.join(NPZ_KEYS)}",
            )
        arrays = [archive[key] for key in NPZ_KEYS]
    for key, array in zip(NPZ_KEYS, arrays):
        if not isinstance(array, np.ndarray):  # numpy returns bytes for a member without the magic number of an array
            raise ValueError(f"{key} is not an array")
    return arrays


def checked(
    path: str, ids: np.ndarray, lengths: np.ndarray, labels: np.ndarray, model: dict[str, Any]
) -> SentenceSet:
    """The set, after checking that all values are valid for the model."""
    if len(labels) == 0:
        raise DataError(f"{path} has no examples", "download it again")
    for what, values, limit in (("token id", ids, model["vocab_size"]), ("label", labels, model["labels"])):
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= limit:
            bad = low if low < 0 else high
            raise DataError(f"{path}: {what} {bad} is out of range", f"it must be in 0 to {limit - 1}")
    if int(lengths.min()) < 1:
        raise DataError(f"{path}: example {int(lengths.argmin())} is empty", "every row needs at least one token")
    return SentenceSet(ids.astype(np.int32), lengths.astype(np.int32), labels.astype(np.int64))


def find_vocabulary(*folders: str | None) -> str:
    """The path of vocab.txt, in the data folder or the checkpoint folder. Raises DataError."""
    for folder in folders:
        path = os.path.join(folder or "", "vocab.txt")
        if folder and os.path.isfile(path):
            return path
    raise DataError(
        "TSV data need a WordPiece vocabulary, but no vocab.txt was found",
        "put vocab.txt into the folder of the TSV files or the --weights folder",
    )


def read_tsv(path: str, classes: int) -> tuple[list[str], list[int]]:
    """Sentences and labels (0 to classes - 1) of one GLUE TSV file, header `sentence<TAB>label`."""
    sentences: list[str] = []
    labels: list[int] = []
    valid_labels = {str(label): label for label in range(classes)}
    try:
        with open_file(path, encoding="utf-8") as file:
            header = file.readline().rstrip("\n").split("\t")
            if header != ["sentence", "label"]:
                raise DataError(f"{path} has the header {header!r}", "the header must be sentence<TAB>label")
            for number, line in enumerate(file, start=2):
                cells = line.rstrip("\n").split("\t")
                if len(cells) != 2 or cells[1].strip() not in valid_labels:
                    raise DataError(
                        f"{path}:{number} is not sentence<TAB>label",
                        f"correct the line (labels are 0 to {classes - 1}) or download the file again",
                    )
                sentences.append(cells[0])
                labels.append(valid_labels[cells[1].strip()])
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", "both train.tsv and dev.tsv are needed") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error})", "it must be readable UTF-8 text") from error
    return sentences, labels


def read_tsv_pair(
    folder: str, vocabulary: str, length: int, model: dict[str, Any]
) -> tuple[SentenceSet, SentenceSet]:
    """Read train.tsv and dev.tsv, tokenised by WordPiece, truncated and padded to `length`."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(read_vocabulary(vocabulary, SPECIAL_TOKENS), lowercase=True)
    tokenizer.enable_truncation(length)
    sets = []
    for name in ("train.tsv", "dev.tsv"):
        path = os.path.join(folder, name)
        sentences, labels = read_tsv(path, model["labels"])
        rows = [encoding.ids for encoding in tokenizer.encode_batch(sentences)]
        ids = np.full((len(rows), length), model["pad_token_id"], dtype=np.int64)
        for row, tokens in zip(ids, rows):
            row[: len(tokens)] = tokens
        lengths = np.array([len(tokens) for tokens in rows], dtype=np.int64)
        sets.append(checked(path, ids, lengths, np.array(labels, dtype=np.int64), model))
    return sets[0], sets[1]


def synthetic(data: dict[str, Any], model: dict[str, Any], count: int, seed: int) -> SentenceSet:
    """`count` random rows with lognormal lengths of the manifest's mean and range; deterministic for a seed."""
    shape = data["synthetic"]
    generator = np.random.RandomState(seed)
    length = data["sequence_length"]
    longest = min(shape["max_length"], length)
    drawn = lognormal(generator, count, shape["mean_length"], shape["sigma"], shape["min_length"], longest)
    lengths = drawn.astype(np.int32)
    ids = generator.randint(SEP + 1, model["vocab_size"], size=(count, length), dtype=np.int32)
    ids[:, 0] = CLS
    ids[np.arange(count), lengths - 1] = SEP
    ids[np.arange(length) >= lengths[:, None]] = model["pad_token_id"]
    return SentenceSet(ids, lengths, generator.randint(0, model["labels"], size=count).astype(np.int64))
