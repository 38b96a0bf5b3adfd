"""Reads the publisher's ReCoRD: one HDF5 file per set with h5sparse matrices, read and validated in pieces.

Groups, each a CSR matrix in the format of h5sparse (datasets data, indices, indptr; attributes h5sparse_format "csr"
and h5sparse_shape), with a row for each choice and T columns:

    text [rows, T], target [rows, T], logit_mask [rows, T], position [2 * rows, T] (position, block position)
    mask [rows]                  length of the first part
    choice_start_end [n, 2]      the rows of an example
    answer_start_end [n, 2], answer_idx    the right choices of an example (evaluation only)

Every row is compared with the layout that data.py reconstructs, so that nothing is lost in the conversion.
"""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np

from flagbench_cases.cases.glm.dataset_text import Counts, Report
from flagbench_cases.cases.glm.overlap import best_f1, normalised_words, text_of
from flagbench_cases.cases.glm.ragged import Builder, Special
from flagbench_cases.shared.errors import DataError

CHUNK = 2048
DOWNLOAD_REMEDY = "download it again: it is truncated, damaged or has a different layout"
# Exceptions of h5py and numpy for files that are not HDF5, are truncated, or have another layout.
HDF5_ERRORS = (OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError)


class Csr:
    """One CSR matrix of a file; `shape` is (rows, columns)."""

    def __init__(self, path: str, file: Any, name: str) -> None:
        self.what = f"{path}: {name}"
        try:
            group = file[name]
            form = group.attrs["h5sparse_format"]
            shape = [int(size) for size in group.attrs["h5sparse_shape"]]
            self._data, self._indices = group["data"], group["indices"]
            self.pointers = pointers = group["indptr"][()].astype(np.int64)  # [rows + 1]
        except HDF5_ERRORS as error:
            raise _unreadable(self.what, error) from error
        if form not in ("csr", b"csr") or len(shape) != 2:
            raise DataError(f"{self.what} is a {form} of {len(shape)} dimensions", "store it as a CSR matrix")
        self.shape = (shape[0], shape[1])
        if len(pointers) != shape[0] + 1:
            raise DataError(f"{self.what} has {len(pointers) - 1} row ends for {shape[0]} rows", DOWNLOAD_REMEDY)
        if pointers[0] != 0 or (np.diff(pointers) < 0).any():
            raise DataError(f"{self.what}: indptr does not increase from 0", DOWNLOAD_REMEDY)
        if not pointers[-1] == len(self._data) == len(self._indices):
            counts = f"{len(self._data)} values and {len(self._indices)} indices"
            raise DataError(f"{self.what}: indptr ends at {pointers[-1]}, but there are {counts}", DOWNLOAD_REMEDY)

    def dense(self, first: int, last: int) -> np.ndarray:
        """Rows first to last - 1 as int64 [last - first, columns]."""
        pointers = self.pointers[first : last + 1]
        try:
            values = self._data[pointers[0] : pointers[-1]]
            columns = self._indices[pointers[0] : pointers[-1]].astype(np.int64)
        except HDF5_ERRORS as error:
            raise _unreadable(self.what, error) from error
        whole = values.astype(np.int64)
        if values.dtype.kind == "f" and not np.array_equal(whole, values):
            raise DataError(f"{self.what} has numbers that are not integers", DOWNLOAD_REMEDY)
        if len(columns) and (columns.min() < 0 or columns.max() >= self.shape[1]):
            raise DataError(f"{self.what}: an index is not in 0 to {self.shape[1] - 1}", DOWNLOAD_REMEDY)
        rows = np.repeat(np.arange(last - first), np.diff(pointers))
        result = np.zeros((last - first, self.shape[1]), dtype=np.int64)
        result[rows, columns] = whole
        if np.count_nonzero(result) != np.count_nonzero(whole):
            raise DataError(f"{self.what} has duplicate indices", DOWNLOAD_REMEDY)
        return result

    def flat(self) -> np.ndarray:
        """The whole matrix as one row, int64."""
        return self.dense(0, self.shape[0]).reshape(-1)


def _unreadable(what: str, error: Exception) -> DataError:
    if isinstance(error, KeyError):
        return DataError(f"{what} is missing or incomplete", DOWNLOAD_REMEDY)
    first_line = str(error).split("\n")[0]
    return DataError(f"{what} cannot be read ({first_line})", DOWNLOAD_REMEDY)


def build(
    path: str,
    training: bool,
    special: Special,
    length: int,
    builder: Builder,
    report: Report,
    vocabulary: dict[str, int] | None = None,
) -> Counts:
    """Read a file, whose rows have `length` columns, and add its examples to `builder`.

    F1 is over words with a vocabulary, else over WordPieces. Raises DataError.
    """
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            f"reading {path} requires h5py, which is not installed",
            "pip install h5py, or use an image of this case",
        ) from error
    try:
        file = h5py.File(path, "r")
    except HDF5_ERRORS as error:
        raise _unreadable(path, error) from error
    with file:
        return _build(path, file, training, special, length, Scorer(path, vocabulary), builder, report)


class Scorer:
    """Computes F1 of answers given as token ids."""

    def __init__(self, path: str, vocabulary: dict[str, int] | None) -> None:
        self._path = path
        self._spelled = vocabulary is not None
        self._pieces = {index: piece for piece, index in (vocabulary or {}).items()}

    def f1(self, answers: list[list[int]], right: list[int]) -> list[float]:
        """F1 of each answer against the right ones. Raises DataError for a token missing in the vocabulary."""
        tokens: list[Any] = answers
        if self._spelled:
            tokens = [self._words(answer) for answer in answers]
        right_answers = [tokens[index] for index in right]
        return [best_f1(answer, right_answers) for answer in tokens]

    def _words(self, answer: list[int]) -> list[str]:
        try:
            return normalised_words(text_of([self._pieces[token] for token in answer]))
        except KeyError as error:
            raise DataError(
                f"{self._path}: an answer has the token {error}, which is not in the vocabulary",
                "use the vocab.txt of bert-large-uncased, or omit --vocabulary",
            ) from None


def _build(
    path: str,
    file: Any,
    training: bool,
    special: Special,
    length: int,
    scorer: Scorer,
    builder: Builder,
    report: Report,
) -> Counts:
    matrices = {name: Csr(path, file, name) for name in ("text", "target", "logit_mask", "position")}
    rows = matrices["text"].shape[0]
    for name, matrix in matrices.items():
        expected = (2 * rows if name == "position" else rows, length)
        if matrix.shape != expected:
            raise DataError(f"{matrix.what} has the shape {matrix.shape}, not {expected}", DOWNLOAD_REMEDY)
    sep = Csr(path, file, "mask").flat()
    if len(sep) != rows:
        raise DataError(f"{path}: mask has {len(sep)} values for {rows} rows of text", DOWNLOAD_REMEDY)
    ends = _ranges(path, file, "choice_start_end", rows)
    right = [[0]] * len(ends)  # in training the right choice comes first
    if not training:
        right = _answers(path, file, ends)
    unanswerable = 0
    split = "train" if training else "eval"
    first = 0
    while first < len(ends):
        start = ends[first, 0]
        # At least one example, and as many as fit into a chunk.
        last = max(first + 1, int(np.searchsorted(ends[:, 1], start + CHUNK, side="right")))
        end = int(ends[last - 1, 1])
        rebuilt = _rows(path, matrices, sep, int(start), end, special)
        for index in range(first, last):
            choices = slice(int(ends[index, 0] - start), int(ends[index, 1] - start))
            unanswerable += _add(builder, scorer, rebuilt, choices, right[index])
        report(f"{split} rows", end, rows)
        first = last
    return Counts(len(ends), 0, unanswerable)


def _ranges(path: str, file: Any, name: str, total: int) -> np.ndarray:
    """A matrix [n, 2] of non-empty, contiguous ranges from 0 to `total`."""
    matrix = Csr(path, file, name)
    if matrix.shape[1] != 2 or matrix.shape[0] == 0:
        raise DataError(f"{matrix.what} has the shape {matrix.shape}, not (n, 2)", DOWNLOAD_REMEDY)
    ranges = matrix.flat().reshape(-1, 2)
    gaps = ranges[0, 0] != 0 or ranges[-1, 1] != total or (ranges[1:, 0] != ranges[:-1, 1]).any()
    if gaps or (ranges[:, 1] <= ranges[:, 0]).any():
        raise DataError(f"{matrix.what} does not partition the {total} rows", DOWNLOAD_REMEDY)
    return ranges


def _answers(path: str, file: Any, ends: np.ndarray) -> list[list[int]]:
    """The right choices of every example, relative to its first choice."""
    values = Csr(path, file, "answer_idx").flat()
    ranges = Csr(path, file, "answer_start_end")
    if ranges.shape != (len(ends), 2):
        raise DataError(f"{ranges.what} has the shape {ranges.shape} for {len(ends)} examples", DOWNLOAD_REMEDY)
    answers = []
    for index, (begin, end) in enumerate(ranges.flat().reshape(-1, 2).tolist()):
        chosen = values[begin:end].tolist()
        choices = int(ends[index, 1] - ends[index, 0])
        if not 0 <= begin <= end <= len(values) or any(not 0 <= value < choices for value in chosen):
            raise DataError(f"{path}: example {index} has an answer that is not one of its choices", DOWNLOAD_REMEDY)
        answers.append(chosen)
    return answers


Rebuilt = Tuple[List[List[int]], List[int], List[List[int]]]


def _rows(path: str, matrices: dict[str, Csr], sep: np.ndarray, first: int, last: int, special: Special) -> Rebuilt:
    """Contexts, positions of [MASK] and answers of rows first to last - 1, fully validated."""
    text, target, counted = (matrices[name].dense(first, last) for name in ("text", "target", "logit_mask"))
    length = text.shape[1]
    positions = matrices["position"].dense(2 * first, 2 * last).reshape(-1, 2, length)
    begin = sep[first:last, None]
    size = counted.sum(axis=1, keepdims=True)
    _require(path, first, (begin >= 3) & (size >= 1) & (begin + size <= length), "mask and logit_mask do not fit")
    columns = np.arange(length)
    context, answer = columns < begin, (columns >= begin) & (columns < begin + size)
    row = np.arange(last - first)[:, None]
    masked = ((text == special.mask) & context).argmax(axis=1)[:, None]
    inside = answer & (columns > begin)  # tokens of the answer itself, after <|startofpiece|>
    shifted = np.where(answer, np.roll(text, -1, axis=1), 0)
    end = begin + size - 1
    expected = np.where(columns == end, special.eop, shifted)
    place = np.where(context, columns, np.where(answer, masked, 0))
    frame = (text[row, 0] == special.cls) & (text[row, begin - 1] == special.pad) & (text[row, begin] == special.sop)
    for right, words in (
        (counted == answer, "logit_mask is not one run of ones after the first part"),
        (
            frame & (text[row, masked] == special.mask),
            "text does not have the vocabulary's special tokens in their positions",
        ),
        ((text == 0) | context | answer, "text does not end with its answer"),
        ((text > 0) | ~inside, "text has an answer with a gap"),
        (target == expected, "target is not the answer and its end token"),
        (positions[:, 0] == place, "position is not that of [MASK] within the answer"),
        (positions[:, 1] == np.where(answer, columns - begin + 1, 0), "block position does not count the answer"),
    ):
        _require(path, first, right, words)
    begins, ends = begin[:, 0].tolist(), end[:, 0].tolist()
    contexts = [tokens[:b].tolist() for tokens, b in zip(text, begins)]
    answers = [tokens[b + 1 : e + 1].tolist() for tokens, b, e in zip(text, begins, ends)]
    return contexts, masked[:, 0].tolist(), answers


def _require(path: str, first: int, right: np.ndarray, words: str) -> None:
    """Raise DataError for the first row in which `right` [rows, ...] is not entirely True."""
    if not right.all():
        row = first + int((~right.reshape(len(right), -1).all(axis=1)).argmax())
        raise DataError(f"{path}: row {row}: {words}", "check the vocabulary, or " + DOWNLOAD_REMEDY)


def _add(builder: Builder, scorer: Scorer, rebuilt: Rebuilt, choices: slice, right: list[int]) -> bool:
    """Add an example to `builder`; returns whether it has no right choice."""
    contexts, masks, answers = rebuilt[0][choices], rebuilt[1][choices], rebuilt[2][choices]
    flags = [index in right for index in range(len(answers))]
    builder.add(contexts, masks, answers, flags, scorer.f1(answers, right))
    return not right
