"""MMLU: multiple-choice questions with four choices, preceded by as many solved examples as fit.

A data folder has dev/{subject}_dev.csv and test/{subject}_test.csv without a header: question, four choices, the
letter of the right one. Cells may be quoted and contain line breaks.
"""

from __future__ import annotations

import csv
import os
import re
from typing import Callable, NamedTuple, Sequence

import numpy as np

from flagbench_cases.prepare.llama import vocabulary as llama
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

CHOICES = ("A", "B", "C", "D")
SUBJECTS, QUESTIONS = 57, 14042
"""Numbers of the published test set."""
# Where dev/ and test/ may be in a data folder; data.tar has them below data/.
PLACES = (".", "mmlu", "mmlu_dataset", "data")
UNPACK_REMEDY = "unpack MMLU's data.tar again"
# Cells that pandas 2 reads as missing, and those of which it makes a column of numbers.
MISSING = frozenset(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"]
    + ["NULL", "NaN", "None", "n/a", "nan", "null"]
)
WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]+\s*")
NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*|[+-]?inf(inity)?", re.IGNORECASE)


class MmluVocabulary(llama.Vocabulary):
    """Llama's vocabulary, and its tokens for the answers of MMLU."""

    def __init__(self, path: str, pieces: int) -> None:
        """Raises DataError also if a letter has no piece."""
        super().__init__(path, pieces)
        self.answer_tokens = self._answers()

    def _answers(self) -> list[int]:
        """The ids of A to D, as used by the publisher: the first id of each letter as a separate text."""
        ids = [self.encode(letter)[0] for letter in CHOICES]
        if len(set(ids)) < len(CHOICES) or llama.UNK in ids:
            raise DataError(f"{self.path} has no separate pieces for the letters A to D", llama.VOCABULARY_REMEDY)
        return ids


class Row(NamedTuple):
    """One line of a CSV file; answer is 0 to 3."""

    question: str
    choices: tuple[str, ...]
    answer: int


class Prompts(NamedTuple):
    """The questions of all subjects in the order of their names, n in all."""

    tokens: np.ndarray  # int32, the concatenated prompts
    offsets: np.ndarray  # int64 [n + 1]: the start of each prompt
    answers: np.ndarray  # int8 [n]: 0 to 3
    subject_ids: np.ndarray  # int16 [n]
    shots: np.ndarray  # int8 [n]: complete solved examples before the question
    cut: int  # number of questions that do not fit even without shots
    subjects: list[str]


def find(folder: str) -> str:
    """The folder with dev/ and test/, in a data folder. Raises DataError."""
    for place in PLACES:
        path = os.path.normpath(os.path.join(folder, place))
        if os.path.isdir(os.path.join(path, "test")) or os.path.isdir(os.path.join(path, "dev")):
            return path
    raise DataError(f"{folder} has no folders dev and test of MMLU", "unpack MMLU's data.tar into its folder mmlu")


def subjects(folder: str) -> list[str]:
    """The sorted names of the subjects. Raises DataError if a file is missing, or a name is not valid UTF-8."""
    subjects_of: dict[str, list[str]] = {}
    for part in ("dev", "test"):
        place, ending = os.path.join(folder, part), f"_{part}.csv"
        try:
            names = os.listdir(place)
        except OSError as error:
            raise DataError(f"{place} cannot be read ({error.strerror})", UNPACK_REMEDY) from None
        subjects_of[part] = sorted(name[: -len(ending)] for name in names if name.endswith(ending))
        for name in subjects_of[part]:
            _check_utf8(place, name + ending, name)
    for part, counterpart in (("dev", "test"), ("test", "dev")):
        for name in subjects_of[counterpart]:
            if name not in subjects_of[part]:
                path = os.path.join(folder, part, f"{name}_{part}.csv")
                raise DataError(f"{path} does not exist", UNPACK_REMEDY)
    if not subjects_of["test"]:
        raise DataError(f"{os.path.join(folder, 'test')} has no {{subject}}_test.csv", UNPACK_REMEDY)
    return subjects_of["test"]


def _check_utf8(place: str, file: str, name: str) -> None:
    """Raise DataError for a name that is not valid UTF-8: it is part of prompts, and sentencepiece requires UTF-8."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{place} has {file!r}, which is not valid UTF-8", UNPACK_REMEDY) from None


def read(path: str) -> list[Row]:
    """The rows of a file, their choices as the publisher prints them. Raises DataError naming file and line."""
    rows: list[Row] = []
    try:
        with open_file(path, encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            begin = 1
            for cells in reader:
                if cells:
                    rows.append(_row(f"{path}:{begin}", cells))
                begin = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error})", UNPACK_REMEDY) from None
    except csv.Error as error:
        raise DataError(f"{path}:{begin} is not valid CSV ({error})", UNPACK_REMEDY) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", UNPACK_REMEDY) from None
    if not rows:
        raise DataError(f"{path} has no questions", UNPACK_REMEDY)
    columns = [as_pandas_prints(column) for column in zip(*(row.choices for row in rows))]
    return [row._replace(choices=choices) for row, choices in zip(rows, zip(*columns))]


def as_pandas_prints(cells: Sequence[str]) -> list[str]:
    """A column of a table as text, once pandas' read_csv has read it: of integers, floats, truth values or text.

    Missing cells are `nan`, and turn integers into floats. Source: pandas 2.2, _libs/parsers.pyx, `_convert_tokens`
    and STR_NA_VALUES.
    """
    present = [cell for cell in cells if cell not in MISSING]
    convert: Callable[[str], object] = str
    if all(WHOLE_NUMBER.fullmatch(cell) for cell in present):
        convert = int if len(present) == len(cells) else float
    elif all(NUMBER.fullmatch(cell) for cell in present):
        convert = float
    elif all(cell.lower() in ("true", "false") for cell in present):
        convert = str.capitalize
    texts = []
    for cell in cells:
        if cell in MISSING:
            texts.append("nan")
        else:
            texts.append(str(convert(cell)))
    return texts


def _row(where: str, cells: list[str]) -> Row:
    if len(cells) != 6:
        raise DataError(
            f"{where} has {len(cells)} columns, not 6",
            "a line is question, four choices, answer; " + UNPACK_REMEDY,
        )
    letter = cells[5].strip()
    if letter not in CHOICES:
        raise DataError(
            f"{where}: the answer {letter[:20]!r} is not one of A, B, C, D",
            "a line is question, four choices, answer; " + UNPACK_REMEDY,
        )
    return Row(cells[0], tuple(cells[1:5]), CHOICES.index(letter))


def heading(subject: str) -> str:
    """The first line of a prompt; the two spaces before the subject are the publisher's."""
    return f"The following are multiple choice questions (with answers) about  {subject.replace('_', ' ')}.\n\n"


def format_question(row: Row) -> str:
    """A question with its choices, without the answer."""
    lines = [row.question] + [f"{letter}. {choice}" for letter, choice in zip(CHOICES, row.choices)]
    return "\n".join(lines) + "\nAnswer:"


def format_solved(row: Row) -> str:
    """A question with its answer."""
    return f"{format_question(row)} {CHOICES[row.answer]}\n\n"


def fit(
    head: str, shots: list[str], question: str, encode: Callable[[str], list[int]], limit: int
) -> tuple[str, list[int]]:
    """The prompt as text and ids, shortened until it has at most `limit` tokens including <s>.

    Like the publisher, split it at blank lines and repeatedly drop the part after the heading: the solved examples in
    order, and finally the question itself, which leaves only the heading.
    """
    text = head + "".join(shots) + question
    ids = [llama.BOS] + encode(text)
    while len(ids) > limit:
        parts = text.split("\n\n")
        if len(parts) == 1:
            raise DataError(f"a heading of MMLU has {len(ids)} tokens", f"use a sequence length greater than {limit}")
        del parts[1]
        text = "\n\n".join(parts)
        ids = [llama.BOS] + encode(text)
    return text, ids


def remaining_shots(text: str, shots: list[str], question: str) -> int:
    """The number of complete solved examples in a shortened prompt; -1 if the question is incomplete."""
    # They follow the heading or, if a shot contains a blank line, its remaining part.
    for count in range(len(shots), -1, -1):
        if text.endswith("\n\n" + "".join(shots[len(shots) - count :]) + question):
            return count
    return -1


def prompts(
    folder: str, vocabulary: MmluVocabulary, length: int, shots: int, report: Callable[[str, int, int], None]
) -> Prompts:
    """All questions of a folder as prompts of at most `length` tokens. Raises DataError."""
    names = subjects(folder)
    ids: list[np.ndarray] = []
    answers: list[int] = []
    subject_ids: list[int] = []
    kept: list[int] = []
    for number, name in enumerate(names):
        path = os.path.join(folder, "dev", name + "_dev.csv")
        examples = read(path)[:shots]
        if len(examples) < shots:
            raise DataError(f"{path} has {len(examples)} questions, fewer than {shots}", UNPACK_REMEDY)
        head, before = heading(name), [format_solved(row) for row in examples]
        for row in read(os.path.join(folder, "test", name + "_test.csv")):
            text, tokens = fit(head, before, format_question(row), vocabulary.encode, length)
            ids.append(np.array(tokens, dtype=np.int32))
            answers.append(row.answer)
            subject_ids.append(number)
            kept.append(remaining_shots(text, before, format_question(row)))
        report("tokenise MMLU", number + 1, len(names))
    offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in ids])]).astype(np.int64)
    whole = np.array(kept)
    return Prompts(
        np.concatenate(ids),
        offsets,
        np.array(answers, dtype=np.int8),
        np.array(subject_ids, dtype=np.int16),
        np.maximum(whole, 0).astype(np.int8),
        int((whole < 0).sum()),
        names,
    )
