"""Makes prompts of MMLU: questions with four choices, preceded by as many solved examples ("shots") as fit.

A data folder has dev/{subject}_dev.csv with the examples and test/{subject}_test.csv with the questions, both without
a header. A row is the question, four choices, and the letter of the right one. Cells may be quoted and contain line
breaks.

"The publisher" below is FlagPerf. Prompts are made as there, so that accuracies can be compared with the published
ones: choices are printed as there, and a prompt that is too long is shortened as there.
"""

from __future__ import annotations

import csv
import os
import re
from typing import Callable, NamedTuple, Sequence

import numpy as np

from flagbench_cases.prepare.llama import vocabulary as llama
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import Report, open_file

CHOICES = ("A", "B", "C", "D")
SUBJECTS = 57
"""The number of subjects in the published test set."""
QUESTIONS = 14042
"""The number of questions in the published test set."""
FOLDERS = (".", "mmlu", "mmlu_dataset", "data")
"""Where dev/ and test/ may be in a data folder; data.tar has them below data/."""
UNPACK_REMEDY = "unpack MMLU's data.tar again"
COLUMNS = 6
"""The cells of a row: question, four choices, answer."""
ROW_REMEDY = f"a line is question, four choices, answer; {UNPACK_REMEDY}"
MAX_ANSWER_LENGTH = 20
"""Most characters of an invalid answer that an error shows."""
PANDAS_MISSING = frozenset(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"]
    + ["NULL", "NaN", "None", "n/a", "nan", "null"]
)
"""Cells that pandas 2 reads as missing."""
PANDAS_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")
"""Cells of which pandas 2 makes a column of integers."""
PANDAS_FLOAT = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*|[+-]?inf(inity)?", re.IGNORECASE)
"""Cells of which pandas 2 makes a column of floats."""
QUESTION_CUT = -1
"""The count of shots of a prompt in which even the question is incomplete."""


class MmluVocabulary(llama.Vocabulary):
    """Llama's vocabulary, and its tokens for the answers of MMLU."""

    def __init__(self, path: str, pieces: int) -> None:
        """Read a tokenizer.model. Raises DataError as the base class does, and if a letter has no piece."""
        super().__init__(path, pieces)
        self.answer_tokens = self._encode_letters()

    def _encode_letters(self) -> list[int]:
        """Return the ids of A to D that the publisher uses: the first id of each letter as a separate text."""
        ids = [self.encode(letter)[0] for letter in CHOICES]
        if len(set(ids)) < len(CHOICES) or llama.UNK in ids:
            raise DataError(f"{self.path} has no separate pieces for the letters A to D", llama.VOCABULARY_REMEDY)
        return ids


class Row(NamedTuple):
    """One row of a CSV file."""

    question: str
    choices: tuple[str, ...]
    answer: int
    """The right choice, 0 to 3."""


class Prompts(NamedTuple):
    """The questions of all subjects in the order of their names, n in all."""

    tokens: np.ndarray  # int32, the concatenated prompts
    offsets: np.ndarray  # int64 [n + 1]: the start of each prompt
    answers: np.ndarray  # int8 [n]: 0 to 3
    subject_ids: np.ndarray  # int16 [n]
    shot_counts: np.ndarray  # int8 [n]: complete solved examples before the question
    questions_cut: int  # number of questions that do not fit even without shots
    subjects: list[str]


def find_folder(folder: str) -> str:
    """Return the folder with dev/ and test/, which is a data folder or in it. Raises DataError."""
    for subfolder in FOLDERS:
        path = os.path.normpath(os.path.join(folder, subfolder))
        if os.path.isdir(os.path.join(path, "test")) or os.path.isdir(os.path.join(path, "dev")):
            return path
    raise DataError(f"{folder} has no folders dev and test of MMLU", "unpack MMLU's data.tar into its folder mmlu")


def list_subjects(folder: str) -> list[str]:
    """Return the sorted names of the subjects. Raises DataError if a file is missing, or a name is not UTF-8."""
    subjects_by_part: dict[str, list[str]] = {}
    for part in ("dev", "test"):
        part_folder = os.path.join(folder, part)
        ending = f"_{part}.csv"
        try:
            names = os.listdir(part_folder)
        except OSError as error:
            raise DataError(f"{part_folder} cannot be read ({error.strerror})", UNPACK_REMEDY) from None
        subjects_by_part[part] = sorted(name[: -len(ending)] for name in names if name.endswith(ending))
        for name in subjects_by_part[part]:
            _check_utf8(part_folder, name + ending, name)
    for part, counterpart in (("dev", "test"), ("test", "dev")):
        for name in subjects_by_part[counterpart]:
            if name not in subjects_by_part[part]:
                path = os.path.join(folder, part, f"{name}_{part}.csv")
                raise DataError(f"{path} does not exist", UNPACK_REMEDY)
    if not subjects_by_part["test"]:
        raise DataError(f"{os.path.join(folder, 'test')} has no {{subject}}_test.csv", UNPACK_REMEDY)
    return subjects_by_part["test"]


def _check_utf8(folder: str, file: str, name: str) -> None:
    """Raise DataError for a name that is not valid UTF-8: it is part of prompts, and sentencepiece requires UTF-8."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{folder} has {file!r}, which is not valid UTF-8", UNPACK_REMEDY) from None


def read_rows(path: str) -> list[Row]:
    """Read the rows of a file, their choices as the publisher prints them. Raises DataError naming file and line.

    The publisher reads the files with pandas, which changes some choices: `1` may become `1.0`.
    """
    rows: list[Row] = []
    try:
        with open_file(path, encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            first_line = 1  # of the next row, which may have several
            for cells in reader:
                if cells:
                    rows.append(_parse_row(f"{path}:{first_line}", cells))
                first_line = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error})", UNPACK_REMEDY) from None
    except csv.Error as error:
        raise DataError(f"{path}:{first_line} is not valid CSV ({error})", UNPACK_REMEDY) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", UNPACK_REMEDY) from None
    if not rows:
        raise DataError(f"{path} has no questions", UNPACK_REMEDY)
    columns = [as_pandas_prints(column) for column in zip(*(row.choices for row in rows))]
    return [row._replace(choices=choices) for row, choices in zip(rows, zip(*columns))]


def as_pandas_prints(cells: Sequence[str]) -> list[str]:
    """Return a column of a table as text, after pandas' read_csv made it integers, floats, truth values or text.

    Missing cells are `nan`, and turn integers into floats. Source: pandas 2.2, _libs/parsers.pyx, `_convert_tokens`
    and STR_NA_VALUES.
    """
    present = [cell for cell in cells if cell not in PANDAS_MISSING]
    convert: Callable[[str], object] = str
    if all(PANDAS_INTEGER.fullmatch(cell) for cell in present):
        convert = int
        if len(present) < len(cells):
            convert = float
    elif all(PANDAS_FLOAT.fullmatch(cell) for cell in present):
        convert = float
    elif all(cell.lower() in ("true", "false") for cell in present):
        convert = str.capitalize
    texts = []
    for cell in cells:
        if cell in PANDAS_MISSING:
            texts.append("nan")
        else:
            texts.append(str(convert(cell)))
    return texts


def _parse_row(where: str, cells: list[str]) -> Row:
    """Return the row of a line's cells. Raises DataError, which names the line `where`."""
    if len(cells) != COLUMNS:
        raise DataError(f"{where} has {len(cells)} columns, not {COLUMNS}", ROW_REMEDY)
    question, *choices, answer = cells
    letter = answer.strip()
    if letter not in CHOICES:
        raise DataError(f"{where}: the answer {letter[:MAX_ANSWER_LENGTH]!r} is not one of A, B, C, D", ROW_REMEDY)
    return Row(question, tuple(choices), CHOICES.index(letter))


def format_heading(subject: str) -> str:
    """Return the first line of a prompt; the two spaces before the subject are the publisher's."""
    return f"The following are multiple choice questions (with answers) about  {subject.replace('_', ' ')}.\n\n"


def format_question(row: Row) -> str:
    """Return a question with its choices, without the answer."""
    lines = [row.question] + [f"{letter}. {choice}" for letter, choice in zip(CHOICES, row.choices)]
    return "\n".join(lines) + "\nAnswer:"


def format_solved(row: Row) -> str:
    """Return a question with its answer."""
    return f"{format_question(row)} {CHOICES[row.answer]}\n\n"


def fit_prompt(
    heading: str, solved: list[str], question: str, encode: Callable[[str], list[int]], limit: int
) -> tuple[str, list[int]]:
    """Return the prompt as text and ids, shortened until it has at most `limit` tokens including <s>.

    Like the publisher, split it at blank lines and repeatedly drop the part after the heading: the solved examples in
    order, and finally even the question itself, which leaves only the heading.
    """
    text = heading + "".join(solved) + question
    ids = [llama.BOS] + encode(text)
    while len(ids) > limit:
        parts = text.split("\n\n")
        if len(parts) == 1:
            raise DataError(f"a heading of MMLU has {len(ids)} tokens", f"use a sequence length greater than {limit}")
        del parts[1]
        text = "\n\n".join(parts)
        ids = [llama.BOS] + encode(text)
    return text, ids


def count_shots(text: str, solved: list[str], question: str) -> int:
    """Return the number of complete solved examples in a shortened prompt; QUESTION_CUT if its question is cut."""
    # The first examples were dropped, so the last ones remain. A blank line precedes them: it ends the heading or, if
    # an example contains a blank line itself and was dropped only in part, another part of that example.
    for count in range(len(solved), -1, -1):
        remaining = "".join(solved[len(solved) - count :])
        if text.endswith("\n\n" + remaining + question):
            return count
    return QUESTION_CUT


def make_prompts(
    folder: str, vocabulary: MmluVocabulary, length: int, shots_per_prompt: int, report: Report
) -> Prompts:
    """Make prompts of at most `length` tokens of all questions in a folder. Raises DataError."""
    subjects = list_subjects(folder)
    ids: list[np.ndarray] = []
    answers: list[int] = []
    subject_ids: list[int] = []
    shot_counts: list[int] = []
    for subject_id, subject in enumerate(subjects):
        path = os.path.join(folder, "dev", subject + "_dev.csv")
        examples = read_rows(path)[:shots_per_prompt]
        if len(examples) < shots_per_prompt:
            raise DataError(f"{path} has {len(examples)} questions, fewer than {shots_per_prompt}", UNPACK_REMEDY)
        heading = format_heading(subject)
        solved = [format_solved(row) for row in examples]
        for row in read_rows(os.path.join(folder, "test", subject + "_test.csv")):
            question = format_question(row)
            text, tokens = fit_prompt(heading, solved, question, vocabulary.encode, length)
            ids.append(np.array(tokens, dtype=np.int32))
            answers.append(row.answer)
            subject_ids.append(subject_id)
            shot_counts.append(count_shots(text, solved, question))
        report("tokenise MMLU", subject_id + 1, len(subjects))
    offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in ids])]).astype(np.int64)
    counts = np.array(shot_counts)
    return Prompts(
        tokens=np.concatenate(ids),
        offsets=offsets,
        answers=np.array(answers, dtype=np.int8),
        subject_ids=np.array(subject_ids, dtype=np.int16),
        shot_counts=np.maximum(counts, 0).astype(np.int8),  # QUESTION_CUT becomes 0
        questions_cut=int((counts == QUESTION_CUT).sum()),
        subjects=subjects,
    )
