"""A stdout or stderr that is full, closed, gone or read by nobody: one error and its code, and never a traceback."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import resolve_image
from flagbench.runs.launchers.container_exit import record_of_killed
from flagbench.runs.launchers.native import NEEDED
from flagbench.runs.request import LocalOptions, RunRequest
from flagbench_core.exit_codes import ExitCode
from running import wait_until

REPLAY = Path(__file__).parents[1] / "verdict" / "replays" / "cpu-tiny.json"


def shell(folder: Path, line: str, *, path: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `fb` is the real command line; `path` is put on its PYTHONPATH."""
    env = dict(os.environ, PYTHONPATH=path, FLAGBENCH_STORE=str(folder / "store"))
    script = f'fb() {{ "{sys.executable}" -m flagbench "$@"; }}\n{line}\n'
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120} | options
    return subprocess.run(["bash", "-c", script], env=env, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("line", ["list --json >/dev/full", "--version >&-"])
def test_a_command_that_cannot_print_says_so_in_one_error(tmp_path: Path, line: str) -> None:
    done = shell(tmp_path, f"fb {line}")
    assert (done.returncode, done.stdout) == (ExitCode.NOT_STORED, "")
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "fix"], done.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("list >&- 2>/dev/full", ExitCode.NOT_STORED),
        ("list 0<&- 2>&-", ExitCode.OK),
        ("list csaes 2>/dev/full", ExitCode.USAGE),
        ("verify /nowhere 2> >(true)", ExitCode.DATA),
    ],
)
def test_a_lost_stderr_does_not_change_the_exit_code(tmp_path: Path, line: str, code: int) -> None:
    done = shell(tmp_path, f"fb {line}")
    assert (done.returncode, done.stderr) == (code, "")
    assert bool(done.stdout) is (code == ExitCode.OK)


@pytest.mark.parametrize("line", ["list", "--help"])
def test_a_reader_that_stops_reading_is_no_error(tmp_path: Path, line: str) -> None:
    done = shell(tmp_path, f"fb {line} | head -1; echo ${{PIPESTATUS[0]}}; fb {line} 2>&1 | head -1")
    assert done.stderr == ""
    assert done.stdout.splitlines()[1] == "0"


def test_a_closed_stdin_is_empty_and_asks_nothing(tmp_path: Path) -> None:
    asked = shell(tmp_path, "fb run distilbert:cpu 0<&-")
    assert (asked.returncode, asked.stdout) == (ExitCode.USAGE, "")
    read = shell(tmp_path, "fb verify - 0<&-")
    assert (read.returncode, read.stdout) == (ExitCode.DATA, "")


def test_a_stdin_that_does_not_block_is_read_to_its_end() -> None:
    record = REPLAY.read_bytes()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    command = [sys.executable, "-m", "flagbench", "verify", "-", "--json"]
    child = subprocess.Popen(command, stdin=reading, stdout=subprocess.PIPE)
    os.close(reading)
    with suppress(BrokenPipeError), open(writing, "wb", buffering=0) as writer:
        for part in (record[:100], record[100:]):
            writer.write(part)
            # It has read this much and waits for more, or has ended.
            wait_until(lambda: not _unread(writing) and not _running(child.pid), 60)
    answer, _ = child.communicate(timeout=60)
    assert json.loads(answer)["records"] == [json.loads(record)["record_id"]]


def _unread(pipe: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


def _running(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "RD"


def test_a_pipe_that_does_not_block_gets_everything(tmp_path: Path) -> None:
    whole = shell(tmp_path, "fb list claims --json").stdout
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with open(reading, encoding="utf-8") as reader:
        command = [sys.executable, "-m", "flagbench", "list", "claims", "--json"]
        child = subprocess.Popen(command, stdout=writing)
        os.close(writing)
        assert reader.read() == whole
    assert len(whole) > 2 * 4096, "more than the pipe holds"
    assert child.wait(60) == 0


def test_a_stderr_that_nobody_reads_stops_nothing() -> None:
    code = "from flagbench.console import stdio; stdio.install(); import sys; print('x' * 300_000, file=sys.stderr)"
    reading, writing = os.pipe()
    assert subprocess.run([sys.executable, "-c", code], stderr=writing, timeout=60).returncode == 0
    os.close(writing)
    os.close(reading)
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE).stderr == b"x" * 300_000 + b"\n"


@pytest.fixture
def entrypoint(tmp_path: Path) -> tuple[str, str]:
    """An image side whose runs print a record with a failed check and end with 12; and that record's id."""
    request = RunRequest(*resolve_image("distilbert:cpu", load_catalog()), LocalOptions(gpus=1))
    failed = FlagbenchError("the check ranks_in_step failed", remedy="look at it", code=ExitCode.INVALID)
    record = record_of_killed(request, failed)
    for name in NEEDED:
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text("")
    (tmp_path / "site" / "flagbench_cases" / "__main__.py").write_text(
        f"import os, sys\nos.write(1, {record!r})\nsys.exit(12)\n"
    )
    return str(tmp_path / "site"), json.loads(record)["record_id"]


@pytest.mark.parametrize(
    ("lost", "code"),
    [
        ("--json >/dev/full 2>&-", 12),
        ("0<&- >&- 2>&-", 12),
        ("2>&1 | head -c 1; exit ${PIPESTATUS[0]}", 12),
        # Kept nowhere: the store refuses it, and nobody can read it here.
        ("--store BROKEN >/dev/full", 14),
    ],
)
def test_a_run_is_stored_and_ends_with_its_own_code(
    tmp_path: Path, entrypoint: tuple[str, str], lost: str, code: int
) -> None:
    path, record = entrypoint
    broken = tmp_path / "broken"
    (broken / "results" / "v1").mkdir(parents=True)
    (broken / "results" / "v1" / "case=distilbert").write_text("")
    line = "fb run distilbert:cpu --preset tiny --via native " + lost.replace("BROKEN", str(broken))
    done = shell(tmp_path, line, path=path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if "BROKEN" not in lost:
        (kept,) = (tmp_path / "store").rglob("*.json")
        assert kept.stem == record
        assert json.loads(kept.read_text())["status"]["state"] == "failed"
