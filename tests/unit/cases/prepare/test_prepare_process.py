"""`python -m flagbench_cases prepare`: what it prints, and how it ends whatever becomes of the conversion.

The case `letters` is laid into a copy of the package: it copies a text, and what the text says happens to it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from running import alive, wait_until

pytestmark = pytest.mark.image

ENTRYPOINTS = Path(__file__).parents[4] / "entrypoints"
CASE = '{"name": "letters", "presets": {"reference": {}}}'
LETTERS = """
import os, signal

WANTS = {"data": "a text", "weights": "a text", "vocabulary": "a table"}
LICENCES = {"data": "free for all", "vocabulary": "ask the makers"}


def prepare_data(source, vocabulary, preset, writer, report):
    print("a library's banner")
    writer.source(source)
    with open(source, "rb") as file:
        content = file.read()
    writer.need(len(content))
    with open(writer.path("letters.bin"), "wb") as file:
        file.write(content)
    report("letters", len(content), len(content))
    happen(content.strip())
    writer.format("letters/v1")
    writer.fact(letters=len(content), vocabulary=vocabulary and os.path.basename(vocabulary))


def prepare_weights(source, preset, writer, report):
    prepare_data(source, None, preset, writer, report)


def happen(what):
    if what.startswith(b"SIG"):
        os.kill(os.getpid(), getattr(signal, what.decode()))
    elif what == b"wait":
        signal.pause()
    elif what == b"bug":
        raise ZeroDivisionError("a mistake")
    elif what == b"memory":
        raise MemoryError()
    elif what == b"full":
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(what)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with one case that prepares and one that does not."""
    made = tmp_path_factory.mktemp("packages") / "copy"
    shutil.copytree(str(ENTRYPOINTS), str(made), ignore=shutil.ignore_patterns("__pycache__"))
    case = made / "flagbench_cases" / "cases" / "letters"
    case.mkdir()
    for name, content in (("__init__.py", ""), ("case.json", CASE), ("prepare.py", LETTERS)):
        (case / name).write_text(content)
    return made


class Called:
    """Starts the command in a folder of its own, which has a text to prepare."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        (folder / "tmp").mkdir()
        self.environment = dict(os.environ, PYTHONPATH=str(root), TMPDIR=str(folder / "tmp"))
        self.environment.pop("FLAGBENCH_STACK", None)

    def text(self, content: str, name: str = "text") -> str:
        (self.folder / name).write_text(content)
        return name

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flagbench_cases", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=self.environment, cwd=str(self.folder), stdout=pipe, stderr=pipe, text=True
        )

    def __call__(self, *words: str, code: int = 0) -> tuple[str, str]:
        process = self.start(*words)
        printed, said = process.communicate(timeout=60)
        assert process.returncode == code, said
        assert not os.listdir(self.folder / "tmp"), "the scratch folder is removed"
        return printed, said

    @property
    def left(self) -> list[str] | None:
        """What lies in OUT; None where there is no OUT."""
        out = self.folder / "out"
        return sorted(os.listdir(out)) if out.exists() else None


@pytest.fixture
def call(root: Path, tmp_path: Path) -> Called:
    return Called(root, tmp_path)


def test_json_is_one_line_whatever_libraries_print(call: Called) -> None:
    call.text("a table", "vocabulary")
    source = call.text("some letters")
    words = ["--data", source, "--weights", source, "--vocabulary", "vocabulary", "-o", "out", "--json"]
    printed, said = call("prepare", "letters", *words)
    result: dict[str, Any] = json.loads(printed)
    assert printed.count("\n") == 1
    assert set(result) == {"case", "folders", "run"}
    assert (result["case"], result["run"]) == ("letters", "flagbench run letters:cpu --data out")
    data, weights = result["folders"]["data"], result["folders"]["weights"]
    assert data["folder"] == "out/data"
    assert data["facts"] == {"letters": 12, "vocabulary": "vocabulary"}
    assert (data["licence"], weights["licence"]) == ("free for all; vocabulary: ask the makers", None)
    kept = json.loads((call.folder / "out" / "data" / "prepared.json").read_text())
    assert kept["licence"] == data["licence"]
    assert data["sources"][0]["name"] == "text"
    assert data["files"] == weights["files"]
    assert "a library's banner" in said
    assert call.left == ["data", "weights"]


def test_a_person_gets_a_summary_and_the_next_command(call: Called) -> None:
    call.environment["FLAGBENCH_STACK"] = "a100-cuda11.6"
    printed, said = call("letters", "prepare", "--data", call.text("abc"), "-o", "out", "--shown-as", "/my data")
    for words in ("/my data/data", "sha256 ba7816bf", "free for all", "letters:a100-cuda11.6 --data '/my data'\n"):
        assert words in printed
    assert "flagbench: data: letters 3/3" in said


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["distilbert", "--data", "text", "-o", "out"], 2, "distilbert"),
        (["letters", "-o", "out"], 2, "no source"),
        (["letters", "--data", "none", "-o", "out"], 3, "--data none"),
        (["letters", "--data", "https://u:secret@host/x", "-o", "out"], 2, "--data"),
        (["letters", "--check", "--force", "-o", "out"], 2, "--check"),
        (["letters", "--data", "text", "-o", "text"], 2, "text"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Called, words: list[str], code: int, named: str) -> None:
    call.text("abc")
    _, said = call("prepare", *words, code=code)
    error, _, fix = said.partition("\nfix: ")
    assert named in error
    assert fix
    assert "secret" not in said
    assert call.left is None


@pytest.mark.parametrize(
    ("text", "code"), [("SIGKILL", 5), ("SIGSEGV", 3), ("SIGBUS", 3), ("memory", 5), ("full", 14), ("bug", 1)]
)
def test_failures_leave_nothing(call: Called, text: str, code: int) -> None:
    _, said = call("prepare", "letters", "--data", call.text(text), "-o", "out", code=code)
    assert "fix: " in said
    assert ("ZeroDivisionError" in said) == (text == "bug")
    assert call.left is None


def test_what_is_prepared_stays(call: Called) -> None:
    good, bad = call.text("abc"), call.text("memory", "bad")
    _, said = call("prepare", "letters", "--data", good, "--weights", bad, "-o", "out", code=5)
    assert "data was finished and is kept" in said
    assert call.left == ["data"]
    _, said = call("prepare", "letters", "--weights", bad, "--data", good, "-o", "out", code=2)
    assert "--force" in said, "before anything is converted"
    call("prepare", "letters", "--data", good, "--weights", good, "-o", "out", "--force")
    assert call.left == ["data", "weights"]


def waiting(call: Called) -> tuple[subprocess.Popen[str], int]:
    """A command whose conversion has written something and waits, and the conversion's process."""
    process = call.start("prepare", "letters", "--data", call.text("wait"), "-o", "out")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def written() -> bool:
        return process.poll() is not None or bool(list(call.folder.glob("out/.data.preparing/letters.bin")))

    wait_until(written, 60)
    assert process.poll() is None, process.communicate()
    (child,) = children.read_text().split()
    return process, int(child)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_conversion_leaves_nothing(call: Called, number: signal.Signals) -> None:
    process, child = waiting(call)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, call.left) == (7, None)
    assert f"interrupted by {number.name}" in said
    assert not alive(child)


def test_the_conversion_does_not_outlive_its_parent(call: Called) -> None:
    process, child = waiting(call)
    process.kill()
    process.communicate(timeout=30)
    wait_until(lambda: not alive(child), 10)
    assert ".data.lock" in (call.left or [])
    shutil.rmtree(str(call.folder / "tmp"))
    (call.folder / "tmp").mkdir()
    call("prepare", "letters", "--data", call.text("abc", "good"), "-o", "out")
    assert call.left == ["data"], "the next one clears what was left"


def test_names_of_files_do_not_speak_to_the_terminal(call: Called) -> None:
    name = call.text("abc", "a\n\x1b[31mé")
    printed, said = call("prepare", "letters", "--data", name, "-o", "o\x1b[1mut\n")
    assert "\x1b" not in printed + said
    assert "a??[31mé" in printed
    result, _ = call("prepare", "letters", "-o", "o\x1b[1mut\n", "--check", "--json")
    assert json.loads(result)["folders"]["data"]["folder"] == "o\x1b[1mut\n/data"
