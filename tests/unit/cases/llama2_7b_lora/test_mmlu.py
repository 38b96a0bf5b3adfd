"""MMLU's folders as prompts: the published text, what is dropped of it to fit, and which files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flagbench_cases.cases.llama2_7b_lora import data, mmlu
from flagbench_cases.cases.llama2_7b_lora.mmlu import MmluVocabulary
from flagbench_cases.prepare.llama.vocabulary import BOS
from flagbench_cases.shared.errors import DataError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

ROW = ["Which is red?", "rust", "grass", "snow", "coal", "A"]
PROMPT = """\
The following are multiple choice questions (with answers) about  high school art.

Which is red?
A. rust
B. grass
C. snow
D. coal
Answer: A

Which is red?
A. rust
B. grass
C. snow
D. coal
Answer:"""


def words(text: str) -> list[int]:
    """A tokenizer that counts: one id a word."""
    return [3] * len(text.split())


def write(folder: Path, dev: str | bytes = "", test: str | bytes = "", subject: str = "art") -> Path:
    """An MMLU folder of one subject."""
    for part, content in (("dev", dev), ("test", test)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        raw = content if isinstance(content, bytes) else content.encode()
        (folder / part / f"{subject}_{part}.csv").write_bytes(raw)
    return folder


def prompts(folder: Path, shots: int = 1) -> mmlu.Prompts:
    vocabulary = MmluVocabulary(str(Path(data.TINY) / "tokenizer.model"), 512)
    return mmlu.make_prompts(str(folder), vocabulary, 128, shots, lambda *_: None)


GOOD = ",".join(ROW) + "\n"


def test_the_published_prompt() -> None:
    row = mmlu.Row(ROW[0], tuple(ROW[1:5]), 0)
    assert mmlu.format_heading("high_school_art") + mmlu.format_solved(row) + mmlu.format_question(row) == PROMPT


def test_shots_are_dropped_from_the_first_on() -> None:
    head, shots, question = "head\n\n", [f"shot {n}\n\n" for n in range(5)], "question"
    text, ids = mmlu.fit_prompt(head, shots, question, words, 6)  # <s>, head, two of each shot, question
    assert text == "head\n\nshot 4\n\nquestion"
    assert len(ids) == 5
    assert ids[0] == BOS
    assert mmlu.count_shots(text, shots, question) == 1


def test_a_question_too_long_alone_is_dropped_and_counted() -> None:
    text, _ = mmlu.fit_prompt("head\n\n", ["shot\n\n"], "a question of six words, really", words, 5)
    assert text == "head"
    assert mmlu.count_shots(text, ["shot\n\n"], "a question of six words, really") == mmlu.QUESTION_CUT


def test_prompts_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path, GOOD, GOOD + ",".join([*ROW[:5], "D"]) + "\n", "b_art")
    write(tmp_path, GOOD, GOOD, "a_music")
    made = prompts(tmp_path)
    assert made.subjects == ["a_music", "b_art"]
    assert made.subject_ids.tolist() == [0, 1, 1]
    assert made.answers.tolist() == [0, 0, 3]
    assert made.questions_cut == 0
    assert np.diff(made.offsets).max() <= 128
    assert made.tokens[made.offsets[:-1]].tolist() == [BOS] * 3


def test_quotes_commas_and_line_ends_in_cells(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'"a ""b"",\nc",1,"2\r\n2",3,4,B\n\nq,1,2,3,4,C\n')
    rows = mmlu.read_rows(str(tmp_path / "x.csv"))
    assert rows[0] == ('a "b",\nc', ("1", "2\r\n2", "3", "4"), 1)
    assert rows[1].answer == 2


@pytest.mark.parametrize(
    ("cells", "printed"),
    [
        (["01", "+2", " 3"], ["1", "2", "3"]),
        (["1", "NA"], ["1.0", "nan"]),
        (["0.10", "1", ".5", "1e5", "2E-5"], ["0.1", "1.0", "0.5", "100000.0", "2e-05"]),
        (["0.10", "None", "inf"], ["0.1", "nan", "inf"]),
        (["TRUE", "false"], ["True", "False"]),
        (["TRUE", "", "false"], ["True", "nan", "False"]),
        (["None", "n/a"], ["nan", "nan"]),
        # One cell of text keeps the others as they are.
        (["0.10", "01", "None", "none", " NA", "$2"], ["0.10", "01", "nan", "none", " NA", "$2"]),
        (["1_000", "2"], ["1_000", "2"]),
        (["TRUE", "1"], ["TRUE", "1"]),
    ],
)
def test_columns_print_as_in_pandas_2(cells: list[str], printed: list[str]) -> None:
    """Expected: what pandas 2.2.3 gave for a file of these lines with header=None."""
    assert mmlu.as_pandas_prints(cells) == printed


def test_choices_are_read_by_column(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("q,0.10,01,a,None,A\n0.50,2,03,0.10,None,B\n")
    rows = mmlu.read_rows(str(tmp_path / "x.csv"))
    assert rows[0].choices == ("0.1", "1", "a", "nan")
    assert rows[1] == ("0.50", ("2.0", "3", "0.10", "nan"), 1)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "art_test.csv"),
        ("q,1,2,3,A\n", "art_test.csv:1"),
        (GOOD + '"a\nb",1,2,3,4,A\n' + "q,1,2,3,4,E\n", "art_test.csv:4"),
        (GOOD.encode() + b"\xff,1,2,3,4,A\n", "art_test.csv"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, content: str | bytes, named: str) -> None:
    with refuses(DataError, named):
        prompts(write(tmp_path, GOOD, content))


def test_too_few_solved_examples(tmp_path: Path) -> None:
    write(tmp_path, GOOD, GOOD)
    with refuses(DataError, "art_dev.csv", "1 questions", 5):
        prompts(tmp_path, shots=5)


def test_folders_missing_or_empty(tmp_path: Path) -> None:
    with refuses(DataError, "dev", "test"):
        mmlu.find_folder(str(tmp_path))
    for part, named in (("dev", tmp_path / "test"), ("test", "_test.csv")):
        (tmp_path / part).mkdir()
        with refuses(DataError, named):
            prompts(tmp_path)
