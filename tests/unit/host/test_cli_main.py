"""Every way a command can end has its exit code and its words; nothing ends in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from flagbench._version import __version__
from flagbench.cli import main
from flagbench.errors import ExitCode, FlagbenchError

BUILDER = Path(__file__).parents[3] / "builder"
PYTHONPATH = os.pathsep.join([str(BUILDER), os.environ.get("PYTHONPATH", "")])


def flagbench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "flagbench", *arguments],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """A command line of one command, to be given its ending by the test."""
    app = typer.Typer(rich_markup_mode=None)
    monkeypatch.setattr(main, "app", app)
    return app


def test_a_known_failure_is_two_sentences_and_its_code(
    ending: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    @ending.command()
    def fail() -> None:
        raise FlagbenchError("the data are gone", remedy="bring them back", code=ExitCode.DATA)

    assert main.run([]) == ExitCode.DATA
    assert capsys.readouterr().err == "error: the data are gone\nfix: bring them back\n"


def test_control_characters_of_an_error_are_shown_and_not_meant(
    ending: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    @ending.command()
    def fail() -> None:
        raise FlagbenchError("two problems:\n  a\x1b[2J\n  b", remedy="mend\rthem")

    assert main.run([]) == ExitCode.USAGE
    assert capsys.readouterr().err == "error: two problems:\n  a\\x1b[2J\n  b\nfix: mend\\rthem\n"


def test_an_exit_code_is_passed_on(ending: typer.Typer) -> None:
    @ending.command()
    def below() -> None:
        raise typer.Exit(ExitCode.BELOW)

    assert main.run([]) == ExitCode.BELOW


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, typer.Abort])
def test_an_interrupt_exits_7(
    ending: typer.Typer, capsys: pytest.CaptureFixture[str], interrupt: type[BaseException]
) -> None:
    @ending.command()
    def stop() -> None:
        raise interrupt

    assert main.run([]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.startswith("error: interrupted\nfix: ")


def test_a_bug_passes_through_to_the_hook(ending: typer.Typer) -> None:
    @ending.command()
    def bug() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main.run([])


@pytest.mark.parametrize(("debug", "traceback"), [("0", False), ("1", True)])
def test_a_bug_is_one_line_and_a_traceback_only_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, debug: str, traceback: bool
) -> None:
    monkeypatch.setenv("FLAGBENCH_DEBUG", debug)
    error = ZeroDivisionError("division\nby zero")
    main.report_bug(ZeroDivisionError, error, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2] == "error: a bug in flagbench: ZeroDivisionError: division by zero"
    assert lines[-1].startswith("fix: run it again with FLAGBENCH_DEBUG=1")
    assert (len(lines) > 2) is traceback


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nope",), "'nope'"),
        (("list", "csaes"), "'csaes'"),
        (("list", "--jsn"), "--jsn"),
        (("results", "ls", "--limit", "0"), "--limit"),
    ],
)
def test_usage_errors_exit_2(arguments: tuple[str, ...], expected: str) -> None:
    done = flagbench(*arguments)
    assert done.returncode == ExitCode.USAGE
    assert expected in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_version_is_one_answer_on_both_paths(capsys: pytest.CaptureFixture[str]) -> None:
    fast = flagbench("--version")
    assert fast.returncode == 0
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == fast.stdout == f"flagbench {__version__}\n"


@pytest.mark.parametrize("arguments", ["list", "list --json", "doctor", "--help"])
def test_a_reader_that_goes_away_is_no_error(arguments: str, tmp_path: Path) -> None:
    script = f"{sys.executable} -m flagbench {arguments} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "FLAGBENCH_STORE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == "0\n"


def test_completion_is_offered_for_the_shell() -> None:
    done = flagbench("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0
    assert "_FLAGBENCH_COMPLETE" in done.stdout
