"""MMLU: multiple-choice questions with four choices, preceded by as many solved examples as fit.

A data folder has dev/{subject}_dev.csv and test/{subject}_test.csv without a header: question, four choices, the
letter of the right one. Cells may be quoted and contain line breaks.
"""

import csv
import os
import re
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

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

    def _answers(self) -> List[int]:
        """The ids of A to D, as used by the publisher: the first id of each letter as a separate text."""
        ids = [self.encode(letter)[0] for letter in CHOICES]
        if len(set(ids)) < len(CHOICES) or llama.UNK in ids:
            raise DataError("%s has no separate pieces for the letters A to D" % self.path, llama.VOCABULARY_REMEDY)
        return ids


class Row(NamedTuple):
    """One line of a CSV file; answer is 0 to 3."""

    question: str
    choices: Tuple[str, ...]
    answer: int


class Prompts(NamedTuple):
    """The questions of all subjects in the order of their names, n in all."""

    tokens: np.ndarray  # int32, the concatenated prompts
    offsets: np.ndarray  # int64 [n + 1]: the start of each prompt
    answers: np.ndarray  # int8 [n]: 0 to 3
    subject_ids: np.ndarray  # int16 [n]
    shots: np.ndarray  # int8 [n]: complete solved examples before the question
    cut: int  # number of questions that do not fit even without shots
    subjects: List[str]


def find(folder: str) -> str:
    """The folder with dev/ and test/, in a data folder. Raises DataError."""
    for place in PLACES:
        path = os.path.normpath(os.path.join(folder, place))
        if os.path.isdir(os.path.join(path, "test")) or os.path.isdir(os.path.join(path, "dev")):
            return path
    raise DataError("%s has no folders dev and test of MMLU" % folder, "unpack MMLU's data.tar into its folder mmlu")


def subjects(folder: str) -> List[str]:
    """The sorted names of the subjects. Raises DataError if a file is missing, or a name is not valid UTF-8."""
    found: Dict[str, List[str]] = {}
    for part in ("dev", "test"):
        place, ending = os.path.join(folder, part), "_%s.csv" % part
        try:
            names = os.listdir(place)
        except OSError as error:
            raise DataError("%s cannot be read (%s)" % (place, error.strerror), UNPACK_REMEDY) from None
        found[part] = sorted(name[: -len(ending)] for name in names if name.endswith(ending))
        for name in found[part]:
            _check_utf8(place, name + ending, name)
    for part, other in (("dev", "test"), ("test", "dev")):
        for name in found[other]:
            if name not in found[part]:
                raise DataError(
                    "%s does not exist" % os.path.join(folder, part, "%s_%s.csv" % (name, part)), UNPACK_REMEDY
                )
    if not found["test"]:
        raise DataError("%s has no {subject}_test.csv" % os.path.join(folder, "test"), UNPACK_REMEDY)
    return found["test"]


def _check_utf8(place: str, file: str, name: str) -> None:
    """Raise DataError for a name that is not valid UTF-8: it is part of prompts, and sentencepiece requires UTF-8."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError("%s has %r, which is not valid UTF-8" % (place, file), UNPACK_REMEDY) from None


def read(path: str) -> List[Row]:
    """The rows of a file, their choices as the publisher prints them. Raises DataError naming file and line."""
    rows: List[Row] = []
    try:
        with open_file(path, encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            begin = 1
            for cells in reader:
                if cells:
                    rows.append(_row("%s:%d" % (path, begin), cells))
                begin = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise DataError("%s is not UTF-8 (%s)" % (path, error), UNPACK_REMEDY) from None
    except csv.Error as error:
        raise DataError("%s:%d is not valid CSV (%s)" % (path, begin, error), UNPACK_REMEDY) from None
    except OSError as error:
        raise DataError("%s cannot be read (%s)" % (path, error.strerror), UNPACK_REMEDY) from None
    if not rows:
        raise DataError("%s has no questions" % path, UNPACK_REMEDY)
    columns = [as_pandas_prints(column) for column in zip(*(row.choices for row in rows))]
    return [row._replace(choices=choices) for row, choices in zip(rows, zip(*columns))]


def as_pandas_prints(cells: Sequence[str]) -> List[str]:
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
    return ["nan" if cell in MISSING else str(convert(cell)) for cell in cells]


def _row(where: str, cells: List[str]) -> Row:
    if len(cells) != 6:
        raise DataError(
            "%s has %d columns, not 6" % (where, len(cells)),
            "a line is question, four choices, answer; " + UNPACK_REMEDY,
        )
    letter = cells[5].strip()
    if letter not in CHOICES:
        raise DataError(
            "%s: the answer %r is not one of A, B, C, D" % (where, letter[:20]),
            "a line is question, four choices, answer; " + UNPACK_REMEDY,
        )
    return Row(cells[0], tuple(cells[1:5]), CHOICES.index(letter))


def heading(subject: str) -> str:
    """The first line of a prompt; the two spaces before the subject are the publisher's."""
    return "The following are multiple choice questions (with answers) about  %s.\n\n" % subject.replace("_", " ")


def format_question(row: Row) -> str:
    """A question with its choices, without the answer."""
    lines = [row.question] + ["%s. %s" % pair for pair in zip(CHOICES, row.choices)]
    return "\n".join(lines) + "\nAnswer:"


def format_solved(row: Row) -> str:
    """A question with its answer."""
    return "%s %s\n\n" % (format_question(row), CHOICES[row.answer])


def fit(
    head: str, shots: List[str], question: str, encode: Callable[[str], List[int]], limit: int
) -> Tuple[str, List[int]]:
    """The prompt as text and ids, shortened until it has at most `limit` tokens including <s>.

    Like the publisher, split it at blank lines and repeatedly drop the part after the heading: the solved examples in
    order, and finally the question itself, which leaves only the heading.
    """
    text = head + "".join(shots) + question
    ids = [llama.BOS] + encode(text)
    while len(ids) > limit:
        parts = text.split("\n\n")
        if len(parts) == 1:
            raise DataError(
                "a heading of MMLU has %d tokens" % len(ids), "use a sequence length greater than %d" % limit
            )
        del parts[1]
        text = "\n\n".join(parts)
        ids = [llama.BOS] + encode(text)
    return text, ids


def remaining_shots(text: str, shots: List[str], question: str) -> int:
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
    ids: List[np.ndarray] = []
    answers: List[int] = []
    subject_ids: List[int] = []
    kept: List[int] = []
    for number, name in enumerate(names):
        path = os.path.join(folder, "dev", name + "_dev.csv")
        examples = read(path)[:shots]
        if len(examples) < shots:
            raise DataError("%s has %d questions, fewer than %d" % (path, len(examples), shots), UNPACK_REMEDY)
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
