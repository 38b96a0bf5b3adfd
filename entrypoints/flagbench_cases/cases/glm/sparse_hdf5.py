"""Reads the publisher's ReCoRD: one HDF5 file per set with h5sparse matrices, read and validated in pieces.

Groups, each a CSR matrix in the format of h5sparse (datasets data, indices, indptr; attributes h5sparse_format "csr"
and h5sparse_shape), with a row for each choice and T columns:

    text [rows, T], target [rows, T], logit_mask [rows, T], position [2 * rows, T] (position, block position)
    mask [rows]                  length of part A: passage and query, before the answer
    choice_start_end [n, 2]      the rows of an example
    answer_start_end [n, 2], answer_idx    the right choices of an example (evaluation only)

Every row is compared with the layout that cloze_set.py reconstructs from contexts and answers, so that nothing is
lost in the conversion.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flagbench_cases.cases.glm.dataset_text import Counts
from flagbench_cases.cases.glm.overlap import best_f1, normalised_words, text_of
from flagbench_cases.cases.glm.ragged import Builder
from flagbench_cases.cases.glm.special_tokens import SpecialTokens
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import Report

CHUNK = 2048
"""Rows that are read and checked at a time."""
LEAST_PART_A = 3
"""The fewest tokens of part A: [CLS], [MASK] and [PAD]."""
DOWNLOAD_REMEDY = "download it again: it is truncated, damaged or has a different layout"
HDF5_ERRORS = (OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError)
"""Exceptions of h5py and numpy for files that are not HDF5, are truncated, or have another layout."""


class Csr:
    """One CSR matrix of a file. `shape` is (rows, columns), `label` its name for messages."""

    def __init__(self, path: str, file: Any, name: str) -> None:
        """Read the pointers of the matrix `name` of an open file. Raises DataError if they are invalid."""
        self.label = f"{path}: {name}"
        try:
            group = file[name]
            form = group.attrs["h5sparse_format"]
            shape = [int(size) for size in group.attrs["h5sparse_shape"]]
            self._data = group["data"]
            self._indices = group["indices"]
            pointers = group["indptr"][()].astype(np.int64)  # [rows + 1]: where the values of each row begin
        except HDF5_ERRORS as error:
            raise _unreadable(self.label, error) from error
        if form not in ("csr", b"csr") or len(shape) != 2:
            raise DataError(f"{self.label} is a {form} of {len(shape)} dimensions", "store it as a CSR matrix")
        self.shape = (shape[0], shape[1])
        self._pointers = pointers
        if len(pointers) != shape[0] + 1:
            raise DataError(f"{self.label} has {len(pointers) - 1} row ends for {shape[0]} rows", DOWNLOAD_REMEDY)
        if pointers[0] != 0 or (np.diff(pointers) < 0).any():
            raise DataError(f"{self.label}: indptr does not increase from 0", DOWNLOAD_REMEDY)
        if not pointers[-1] == len(self._data) == len(self._indices):
            counts = f"{len(self._data)} values and {len(self._indices)} indices"
            raise DataError(f"{self.label}: indptr ends at {pointers[-1]}, but there are {counts}", DOWNLOAD_REMEDY)

    def dense(self, first: int, last: int) -> np.ndarray:
        """Read the rows `first` to `last` - 1 as int64 [last - first, columns]. Raises DataError."""
        pointers = self._pointers[first : last + 1]
        try:
            values = self._data[pointers[0] : pointers[-1]]
            columns = self._indices[pointers[0] : pointers[-1]].astype(np.int64)
        except HDF5_ERRORS as error:
            raise _unreadable(self.label, error) from error
        integers = values.astype(np.int64)
        if values.dtype.kind == "f" and not np.array_equal(integers, values):
            raise DataError(f"{self.label} has numbers that are not integers", DOWNLOAD_REMEDY)
        if len(columns) and (columns.min() < 0 or columns.max() >= self.shape[1]):
            raise DataError(f"{self.label}: an index is not in 0 to {self.shape[1] - 1}", DOWNLOAD_REMEDY)
        rows = np.repeat(np.arange(last - first), np.diff(pointers))
        result = np.zeros((last - first, self.shape[1]), dtype=np.int64)
        result[rows, columns] = integers
        if np.count_nonzero(result) != np.count_nonzero(integers):
            raise DataError(f"{self.label} has duplicate indices", DOWNLOAD_REMEDY)
        return result

    def flat(self) -> np.ndarray:
        """Read all rows of the matrix, one after the other, as int64 [rows * columns]. Raises DataError."""
        return self.dense(0, self.shape[0]).reshape(-1)


def _unreadable(label: str, error: Exception) -> DataError:
    """Return the error for a file or matrix that raised one of HDF5_ERRORS."""
    if isinstance(error, KeyError):
        return DataError(f"{label} is missing or incomplete", DOWNLOAD_REMEDY)
    first_line = str(error).split("\n")[0]
    return DataError(f"{label} cannot be read ({first_line})", DOWNLOAD_REMEDY)


def build(
    path: str,
    training: bool,
    special: SpecialTokens,
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
    """Computes F1 of answers given as token ids, over words if there is a vocabulary, else over the ids."""

    def __init__(self, path: str, vocabulary: dict[str, int] | None) -> None:
        self._path = path
        self._over_words = vocabulary is not None
        self._pieces = {index: piece for piece, index in (vocabulary or {}).items()}

    def f1(self, answers: list[list[int]], right: list[int]) -> list[float]:
        """Return F1 of each answer, compared with the right ones, whose indices are `right`.

        Raises DataError for a token that is not in the vocabulary.
        """
        tokens: list[Any] = answers
        if self._over_words:
            tokens = [self._words(answer) for answer in answers]
        right_answers = [tokens[index] for index in right]
        return [best_f1(answer, right_answers) for answer in tokens]

    def _words(self, answer: list[int]) -> list[str]:
        """Return the words of an answer."""
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
    special: SpecialTokens,
    length: int,
    scorer: Scorer,
    builder: Builder,
    report: Report,
) -> Counts:
    """Add the examples of an open file to `builder`, a chunk of rows at a time. Raises DataError."""
    matrices = {name: Csr(path, file, name) for name in ("text", "target", "logit_mask", "position")}
    rows = matrices["text"].shape[0]
    for name, matrix in matrices.items():
        expected = (2 * rows if name == "position" else rows, length)
        if matrix.shape != expected:
            raise DataError(f"{matrix.label} has the shape {matrix.shape}, not {expected}", DOWNLOAD_REMEDY)
    sep = Csr(path, file, "mask").flat()
    if len(sep) != rows:
        raise DataError(f"{path}: mask has {len(sep)} values for {rows} rows of text", DOWNLOAD_REMEDY)
    ranges = _read_ranges(path, file, "choice_start_end", rows)
    right = [[0]] * len(ranges)  # in training the right choice comes first
    if not training:
        right = _read_right_choices(path, file, ranges)
    split = "train" if training else "eval"
    first = 0
    while first < len(ranges):
        start = int(ranges[first, 0])
        # At least one example, and as many as fit into a chunk.
        last = max(first + 1, int(np.searchsorted(ranges[:, 1], start + CHUNK, side="right")))
        end = int(ranges[last - 1, 1])
        chunk = _read_chunk(path, matrices, sep, start, end)
        mask_columns = _check_chunk(path, chunk, special)
        for index in range(first, last):
            choices = range(int(ranges[index, 0]) - start, int(ranges[index, 1]) - start)
            _add_example(builder, scorer, chunk, mask_columns, choices, right[index])
        report(f"{split} rows", end, rows)
        first = last
    unanswerable = sum(not choices for choices in right)
    return Counts(len(ranges), 0, unanswerable)


def _read_ranges(path: str, file: Any, name: str, total: int) -> np.ndarray:
    """Read a matrix [n, 2] of non-empty, contiguous ranges from 0 to `total`. Raises DataError."""
    matrix = Csr(path, file, name)
    if matrix.shape[1] != 2 or matrix.shape[0] == 0:
        raise DataError(f"{matrix.label} has the shape {matrix.shape}, not (n, 2)", DOWNLOAD_REMEDY)
    ranges = matrix.flat().reshape(-1, 2)
    spans_all = ranges[0, 0] == 0 and ranges[-1, 1] == total
    is_contiguous = (ranges[1:, 0] == ranges[:-1, 1]).all()
    has_empty = (ranges[:, 1] <= ranges[:, 0]).any()
    if not spans_all or not is_contiguous or has_empty:
        raise DataError(f"{matrix.label} does not partition the {total} rows", DOWNLOAD_REMEDY)
    return ranges


def _read_right_choices(path: str, file: Any, ranges: np.ndarray) -> list[list[int]]:
    """Read the right choices of every example, relative to its first choice. Raises DataError.

    `ranges` [n, 2]: the rows of each example.
    """
    values = Csr(path, file, "answer_idx").flat()
    answer_ranges = Csr(path, file, "answer_start_end")
    if answer_ranges.shape != (len(ranges), 2):
        raise DataError(
            f"{answer_ranges.label} has the shape {answer_ranges.shape} for {len(ranges)} examples", DOWNLOAD_REMEDY
        )
    right = []
    for index, (begin, end) in enumerate(answer_ranges.flat().reshape(-1, 2).tolist()):
        right_choices = values[begin:end].tolist()
        choices = int(ranges[index, 1] - ranges[index, 0])
        is_valid_range = 0 <= begin <= end <= len(values)
        if not is_valid_range or any(not 0 <= choice < choices for choice in right_choices):
            raise DataError(f"{path}: example {index} has an answer that is not one of its choices", DOWNLOAD_REMEDY)
        right.append(right_choices)
    return right


class Chunk(NamedTuple):
    """N consecutive rows of the matrices, each a choice; all int64."""

    first: int
    """The number of the first row in the file."""
    text: np.ndarray  # [N, T]
    target: np.ndarray  # [N, T]
    counted: np.ndarray  # [N, T]: logit_mask, 1 where a target counts
    positions: np.ndarray  # [N, 2, T]: position, block position
    begin: np.ndarray  # [N, 1]: length of part A, and the column of <|startofpiece|>
    end: np.ndarray  # [N, 1]: the column of the answer's last token, or `begin` if it has none


def _read_chunk(path: str, matrices: dict[str, Csr], sep: np.ndarray, first: int, last: int) -> Chunk:
    """Read the rows `first` to `last` - 1. Raises DataError if part A and answer do not fit into a row."""
    text = matrices["text"].dense(first, last)
    target = matrices["target"].dense(first, last)
    counted = matrices["logit_mask"].dense(first, last)
    length = text.shape[1]
    positions = matrices["position"].dense(2 * first, 2 * last).reshape(-1, 2, length)
    begin = sep[first:last, None]
    size = counted.sum(axis=1, keepdims=True)  # the answer's tokens and <|endofpiece|>
    fits = (begin >= LEAST_PART_A) & (size >= 1) & (begin + size <= length)
    _require(path, first, fits, "mask and logit_mask do not fit")
    return Chunk(first, text, target, counted, positions, begin, begin + size - 1)


def _check_chunk(path: str, chunk: Chunk, special: SpecialTokens) -> list[int]:
    """Check that every row has the layout of cloze_set.py; returns the column of [MASK] in each.

    Raises DataError for the first row that has not.
    """
    text, begin, end = chunk.text, chunk.begin, chunk.end
    columns = np.arange(text.shape[1])
    row = np.arange(len(text))[:, None]
    in_part_a = columns < begin
    in_part_b = (columns >= begin) & (columns <= end)  # from <|startofpiece|> on
    in_answer = in_part_b & (columns > begin)
    mask_column = ((text == special.mask) & in_part_a).argmax(axis=1)[:, None]
    _require(path, chunk.first, chunk.counted == in_part_b, "logit_mask is not one run of ones after the first part")
    has_special_tokens = (
        (text[row, 0] == special.cls)
        & (text[row, begin - 1] == special.pad)
        & (text[row, begin] == special.sop)
        & (text[row, mask_column] == special.mask)
    )
    words = "text does not have the vocabulary's special tokens in their positions"
    _require(path, chunk.first, has_special_tokens, words)
    _require(path, chunk.first, (text == 0) | in_part_a | in_part_b, "text does not end with its answer")
    _require(path, chunk.first, (text > 0) | ~in_answer, "text has an answer with a gap")
    next_token = np.where(in_part_b, np.roll(text, -1, axis=1), 0)
    target = np.where(columns == end, special.eop, next_token)
    _require(path, chunk.first, chunk.target == target, "target is not the answer and its end token")
    position = np.where(in_part_a, columns, np.where(in_part_b, mask_column, 0))
    words = "position is not that of [MASK] within the answer"
    _require(path, chunk.first, chunk.positions[:, 0] == position, words)
    block_position = np.where(in_part_b, columns - begin + 1, 0)
    words = "block position does not count the answer"
    _require(path, chunk.first, chunk.positions[:, 1] == block_position, words)
    return mask_column[:, 0].tolist()


def _require(path: str, first: int, is_right: np.ndarray, words: str) -> None:
    """Raise DataError for the first row in which `is_right` [rows, ...] is not entirely True.

    `first`: the number of row 0 in the file.
    """
    if not is_right.all():
        row = first + int((~is_right.reshape(len(is_right), -1).all(axis=1)).argmax())
        raise DataError(f"{path}: row {row}: {words}", "check the vocabulary, or " + DOWNLOAD_REMEDY)


def _add_example(
    builder: Builder, scorer: Scorer, chunk: Chunk, mask_columns: list[int], choices: range, right: list[int]
) -> None:
    """Add an example to `builder`.

    `choices`: its rows in the chunk; `right`: its right choices, counted from the first of them.
    """
    contexts = []
    answers = []
    for row in choices:
        begin = int(chunk.begin[row, 0])
        end = int(chunk.end[row, 0])
        contexts.append(chunk.text[row, :begin].tolist())
        answers.append(chunk.text[row, begin + 1 : end + 1].tolist())
    masks = [mask_columns[row] for row in choices]
    is_right = [index in right for index in range(len(choices))]
    builder.add(contexts, masks, answers, is_right, scorer.f1(answers, right))
