"""The standard descriptors of a run: open from the start, and a stderr that neither fails nor blocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.image

# Far more than a pipe holds, from this process, from a child, and from C; then what became of it, into a file.
NOISY = """
import json, os, subprocess, sys
from flagbench_cases.shared.stdio import Stderr
found = {}
with Stderr():
    found["open"] = [os.path.exists("/proc/self/fd/%d" % fd) for fd in range(3)]
    found["first"] = os.open("/dev/null", os.O_RDONLY)
    found["terminal"] = sys.stderr.isatty()
    sys.stderr.write("begin\\n")
    for _ in range(100):
        sys.stderr.write("x" * 5000 + "\\n")
    os.write(2, b"from write\\n")
    found["child"] = subprocess.call([sys.executable, "-c", "import sys\\nsys.stderr.write('y' * 300000)"])
    sys.stderr.write("end\\n")
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


def noisy(folder: Path, redirection: str = "", **options: object) -> tuple[int, dict[str, object]]:
    """Exit code of a process that writes a lot to its stderr, and what it found."""
    found = folder / "found.json"
    command = ["bash", "-c", 'exec "$@" ' + redirection, "bash", sys.executable, "-c", NOISY, str(found)]
    code = subprocess.run(command, timeout=60, **options).returncode  # type: ignore[call-overload]
    return code, json.loads(found.read_text()) if found.exists() else {}


@pytest.mark.parametrize(
    "redirection", ["2>&-", "2>/dev/full", "0<&- >&- 2>&-", "2>&1 >/dev/full", "2> >(head -c 1)"]
)
def test_a_stderr_that_takes_nothing_changes_nothing(tmp_path: Path, redirection: str) -> None:
    code, found = noisy(tmp_path, redirection, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert code == 0
    assert (found["open"], found["child"]) == ([True, True, True], 0)
    assert found["first"] not in (0, 1, 2), "no file gets the number of a standard descriptor"


@pytest.mark.parametrize("blocking", [True, False])
def test_a_reader_that_reads_nothing_holds_nobody_up(tmp_path: Path, blocking: bool) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, blocking)
    code, found = noisy(tmp_path, stderr=writing)
    assert (code, found["child"]) == (0, 0)
    os.close(writing)
    with open(reading, "rb") as file:
        assert file.read().startswith(b"begin\n")


def test_stderr_is_forwarded_in_order(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOISY, str(tmp_path / "found.json")], stderr=subprocess.PIPE, timeout=60
    )
    expected = b"begin\n" + (b"x" * 5000 + b"\n") * 100 + b"from write\n" + b"y" * 300000 + b"end\n"
    assert (done.returncode, done.stderr) == (0, expected)


@pytest.mark.parametrize(
    ("arguments", "redirection", "code"),
    [
        (["--help"], ">/dev/full", 14),
        (["--version"], "2>&-", 0),
        (["distilbert", "--describe"], ">/dev/full", 14),
        (["distilbert", "--describe"], ">&-", 14),
        (["distilbert", "--describe"], "0<&- 2>&-", 0),
        (["distilbert", "--gpus", "0"], "2>/dev/full", 2),
        # A run that failed by itself: its record is kept nowhere, on stdout, or where --out is.
        (["distilbert", "--preset=tiny", "--data", "/nowhere"], ">/dev/full 2>&-", 14),
        (["distilbert", "--preset=tiny", "--data", "/nowhere"], "2>/dev/full", 3),
        (["distilbert", "--preset=tiny", "--data", "/nowhere", "--out", "OUT"], ">&- 2>&-", 3),
    ],
)
def test_an_image_that_cannot_print_ends_with_its_code(
    tmp_path: Path, arguments: list[str], redirection: str, code: int
) -> None:
    words = [str(tmp_path / "out") if word == "OUT" else word for word in arguments]
    command = ["bash", "-c", 'exec "$@" ' + redirection, "bash", sys.executable, "-m", "flagbench_cases", *words]
    entrypoints = Path(__file__).parents[4] / "entrypoints"
    env = dict(os.environ, PYTHONPATH=str(entrypoints), TMPDIR=str(tmp_path))
    done = subprocess.run(command, env=env, capture_output=True, timeout=60)
    assert done.returncode == code
    assert b"Traceback" not in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) <= 4, done.stderr
    if "OUT" in arguments:
        (written,) = (tmp_path / "out").glob("*.json")
        assert json.loads(written.read_text())["status"]["exit_code"] == code
