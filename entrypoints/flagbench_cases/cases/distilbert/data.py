"""Reads and validates SST-2, sentences labelled as positive or negative, as in-memory sets of rows of token ids.

These formats are read from a data folder:

    [dataset/]{train,eval}_dataset.npz    FlagPerf's: int64 arrays idx, label, input_ids and attention_mask, padded
    [SST-2/]{train,dev}.tsv               GLUE's: sentence, label; needs a vocab.txt

Otherwise the tiny set shipped here is used, or random rows with the lengths of SST-2.
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
"""The folder of the set shipped here."""
NPZ_KEYS = ("input_ids", "attention_mask", "label")
"""The arrays that are read from FlagPerf's files."""
NPZ_ERRORS = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Exceptions of numpy, zipfile and zlib for damaged archives (RuntimeError: a flag bit says "encrypted")."""
ZIP_MAGIC = b"PK\x03\x04"
"""The first bytes of a zip archive, which a npz file is."""
CLS = 101
"""The id of [CLS] in the published vocabulary."""
SEP = 102
"""The id of [SEP] in the published vocabulary; ordinary tokens follow."""
SPECIAL_TOKENS = ("[UNK]", "[CLS]", "[SEP]")
"""The special tokens that a vocabulary must have."""
SST2_EXAMPLES = (67349, 872)
"""The number of examples in the training and the evaluation set of SST-2."""
DEFAULT_TRAIN_EXAMPLES = 2048
"""The size of a random training set if the configuration does not set it."""
DEFAULT_EVAL_EXAMPLES = 256
"""The size of a random evaluation set if the configuration does not set it."""


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
        """Return the ids, int64 [T], the mask, int64 [T], and the label, int64 []."""
        ids = torch.from_numpy(self.input_ids[index].astype(np.int64))
        mask = torch.from_numpy((self._columns < self.lengths[index]).astype(np.int64))
        return ids, mask, torch.tensor(int(self.labels[index]))

    def digest(self) -> str:
        """Return the sha256 of token rows and labels, independent of the file format."""
        hasher = hashlib.sha256()
        for array in (self.input_ids, self.lengths, self.labels):
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


class Sets(NamedTuple):
    """The training and the evaluation set."""

    train: SentenceSet
    evaluation: SentenceSet
    condition: str
    """The `data` condition of a run with these sets, which is compared with that of a published result."""


def load(data: dict[str, Any], model: dict[str, Any], folder: str | None, weights: str | None, seed: int) -> Sets:
    """Load the sets selected by the resolved `data` section.

    `folder` and `weights`: the folders given as --data and --weights; either may have the vocabulary.
    """
    length = data["sequence_length"]
    if data["source"] == "synthetic":
        train = synthetic(data, model, data["train_examples"] or DEFAULT_TRAIN_EXAMPLES, seed)
        evaluation = synthetic(data, model, data["eval_examples"] or DEFAULT_EVAL_EXAMPLES, seed + 1)
        return Sets(train, evaluation, "synthetic")
    if data["source"] == "shipped":
        train, evaluation = read_tsv_pair(TINY, os.path.join(TINY, "vocab.txt"), length, model)
        return Sets(train, evaluation, "shipped")
    train, evaluation = read_folder(folder or "", weights, length, model)
    condition = "sst2" if (len(train), len(evaluation)) == SST2_EXAMPLES else "files"
    return Sets(train, evaluation, condition)


def read_folder(
    folder: str, weights: str | None, length: int, model: dict[str, Any]
) -> tuple[SentenceSet, SentenceSet]:
    """Read the training and the evaluation set from a data folder, in any of the formats. Raises DataError."""
    if not os.path.isdir(folder):
        raise DataError(f"there is no folder {folder}", "set --data to a folder, or use --data synthetic")
    for subfolder in ("dataset", "."):
        train_path = os.path.join(folder, subfolder, "train_dataset.npz")
        eval_path = os.path.join(folder, subfolder, "eval_dataset.npz")
        if os.path.exists(train_path) or os.path.exists(eval_path):
            return read_npz(train_path, length, model), read_npz(eval_path, length, model)
    for subfolder in ("SST-2", "."):
        tsv_folder = os.path.join(folder, subfolder)
        if any(os.path.exists(os.path.join(tsv_folder, name)) for name in ("train.tsv", "dev.tsv")):
            return read_tsv_pair(tsv_folder, find_vocabulary(tsv_folder, folder, weights), length, model)
    raise DataError(
        f"{folder} has neither {{train,eval}}_dataset.npz nor {{train,dev}}.tsv",
        "put FlagPerf's dataset/ folder or GLUE's SST-2/ folder there",
    )


def read_npz(path: str, length: int, model: dict[str, Any]) -> SentenceSet:
    """Read one of FlagPerf's npz files. Raises DataError if it is invalid."""
    try:
        ids, mask, labels = _read_arrays(path)
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
    return make_set(path, ids, lengths, labels, model)


def _read_arrays(path: str) -> list[np.ndarray]:
    """Read only the arrays of NPZ_KEYS. Raises NPZ_ERRORS for a damaged file, and DataError for a missing array."""
    with open_file(path, "rb") as file:
        # np.load would try to read anything else as a single array, then as a pickle.
        if file.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
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


def make_set(
    path: str, ids: np.ndarray, lengths: np.ndarray, labels: np.ndarray, model: dict[str, Any]
) -> SentenceSet:
    """Make a set of the rows of a file. Raises DataError for values that are not valid for the model."""
    if len(labels) == 0:
        raise DataError(f"{path} has no examples", "download it again")
    for name, values, limit in (("token id", ids, model["vocab_size"]), ("label", labels, model["labels"])):
        lowest = int(values.min())
        highest = int(values.max())
        if lowest < 0 or highest >= limit:
            invalid = lowest if lowest < 0 else highest
            raise DataError(f"{path}: {name} {invalid} is out of range", f"it must be in 0 to {limit - 1}")
    if int(lengths.min()) < 1:
        raise DataError(f"{path}: example {int(lengths.argmin())} is empty", "every row needs at least one token")
    return SentenceSet(ids.astype(np.int32), lengths.astype(np.int32), labels.astype(np.int64))


def find_vocabulary(*folders: str | None) -> str:
    """Return the path of vocab.txt in the first of the folders that has it; None is skipped. Raises DataError."""
    for folder in folders:
        path = os.path.join(folder or "", "vocab.txt")
        if folder and os.path.isfile(path):
            return path
    raise DataError(
        "TSV data need a WordPiece vocabulary, but no vocab.txt was found",
        "put vocab.txt into the folder of the TSV files or the --weights folder",
    )


def read_tsv(path: str, classes: int) -> tuple[list[str], list[int]]:
    """Read the sentences and labels (0 to classes - 1) of a TSV file of GLUE. Raises DataError.

    Its first line is `sentence<TAB>label`.
    """
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
    """Read train.tsv and dev.tsv, tokenised with WordPiece, truncated and padded to `length`. Raises DataError.

    `vocabulary`: the path of vocab.txt.
    """
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
        sets.append(make_set(path, ids, lengths, np.array(labels, dtype=np.int64), model))
    return sets[0], sets[1]


def synthetic(data: dict[str, Any], model: dict[str, Any], count: int, seed: int) -> SentenceSet:
    """Return `count` random rows with lognormal lengths of the manifest's mean and range.

    A seed always gives the same rows.
    """
    shape = data["synthetic"]
    generator = np.random.RandomState(seed)
    length = data["sequence_length"]
    longest = min(shape["max_length"], length)
    drawn_lengths = lognormal(generator, count, shape["mean_length"], shape["sigma"], shape["min_length"], longest)
    lengths = drawn_lengths.astype(np.int32)
    ids = generator.randint(SEP + 1, model["vocab_size"], size=(count, length), dtype=np.int32)
    ids[:, 0] = CLS
    ids[np.arange(count), lengths - 1] = SEP
    ids[np.arange(length) >= lengths[:, None]] = model["pad_token_id"]
    return SentenceSet(ids, lengths, generator.randint(0, model["labels"], size=count).astype(np.int64))
