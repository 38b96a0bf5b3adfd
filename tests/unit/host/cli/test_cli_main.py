"""Every way a command can end has its exit code and its words; nothing ends in a traceback."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from flagbench.cli import main
from flagbench.cli.app import COMMANDS, HIDDEN, load
from flagbench.errors import FlagbenchError
from flagbench_core import __version__
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench, process


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each(name: str) -> None:
    assert " ".join(load(name).help.split("\n\n")[0].split()) == COMMANDS[name]


def test_help_lists_every_command_and_imports_none() -> None:
    script = (
        "import json, sys\n"
        "from flagbench.cli import main\n"
        "main.run(['--help'])\n"
        "print(json.dumps([m for m in sys.modules if m.startswith('flagbench.cli.')]), file=sys.stderr)"
    )
    done = process("-c", script)
    first_words = {line.split()[0] for line in done.stdout.splitlines() if re.match(r"  \S", line)}
    assert COMMANDS.keys() & first_words == COMMANDS.keys() - HIDDEN
    assert set(json.loads(done.stderr)) == {f"flagbench.cli.{name}" for name in ("app", "main", "usage_errors")}


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (
            FlagbenchError("two problems:\n  a\x1b[2J\n  b", remedy="fix\rthem", code=ExitCode.DATA),
            ExitCode.DATA,
            "error: two problems:\n  a\\x1b[2J\n  b\nfix: fix\\rthem\n",
        ),
        (
            FlagbenchError("no s3://KEY:secret@b, u:p@h/x:1", remedy="give https://u:p@h", code=ExitCode.DATA),
            ExitCode.DATA,
            "error: no s3://***@b, ***@h/x:1\nfix: give https://***@h\n",
        ),
        (typer.Exit(ExitCode.BELOW), ExitCode.BELOW, ""),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "error: interrupted\nfix: run the command again when ready\n"),
        (typer.Abort(), ExitCode.INTERRUPTED, "error: interrupted\nfix: run the command again when ready\n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/root/x"),
            ExitCode.USAGE,
            "error: /root/x cannot be used: Permission denied\n"
            "fix: make it accessible to you, or name another path\n",
        ),
    ],
)
def test_what_a_command_raises_is_its_code_and_its_words(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, printed: str
) -> None:
    app = typer.Typer(rich_markup_mode=None)
    monkeypatch.setattr(main, "app", app)

    @app.command()
    def fail() -> None:
        raise error

    assert flagbench("") == (code, "", printed)


def test_an_interrupt_during_imports_is_no_traceback() -> None:
    script = (
        "import os, signal, sys\n"
        "def interrupt(event, arguments):\n"
        "    if event == 'import' and arguments[0] == 'typer':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(interrupt)\n"
        "from flagbench.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = process("-c", script)
    expected = "error: interrupted\nfix: run the command again when ready\n"
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", expected)


@pytest.mark.parametrize(("words", "code"), [("--version", ExitCode.OK), ("list nosuch", ExitCode.USAGE)])
def test_pythoninspect_changes_no_exit_code(words: str, code: ExitCode) -> None:
    done = process("-m", "flagbench", *words.split(), PYTHONINSPECT="1")
    assert done.returncode == code
    assert "a bug in flagbench" not in done.stderr


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_bug_is_one_line_and_a_traceback_only_on_request(debug: str) -> None:
    script = "import flagbench.__main__ as m, flagbench.cli.main as c; c.run = lambda _: {}['a\\nb']; m.main()"
    done = process("-c", script, FLAGBENCH_DEBUG=debug)
    *traceback, error, fix = done.stderr.splitlines()
    assert (done.returncode, error) == (ExitCode.BUG, r"error: a bug in flagbench: KeyError: 'a\nb'")
    assert fix.startswith("fix: run it again with FLAGBENCH_DEBUG=1")
    assert bool(traceback) is (debug == "1")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("nope", "'nope'"),
        ("list csaes", "'csaes'"),
        ("list --jsn", "--jsn"),
        ("list https://me:secret@h.example", "'https://***@h.example'"),
        ("results ls --limit 0", "--limit"),
        (
            "results ls --state faild",
            "error: --state: 'faild' is not valid\nfix: did you mean failed? use ok, failed",
        ),
        ("list --jsn", "error: there is no option --jsn\nfix: did you mean --json?"),
        ("run x --ticket y", "error: there is no option --ticket\nfix: `flagbench run --help` lists all\n"),
        ("resluts ls", "error: there is no command 'resluts'\nfix: did you mean results?"),
        ("results lst", "error: there is no command 'lst'\nfix: did you mean ls?"),
        ("run x --data", "fix: see `flagbench run --help`\n"),
        ("results ls --limit", "fix: see `flagbench results ls --help`\n"),
        ("run", "error: CASE[:STACK] is missing\n"),
        ("run distilbrt", "fix: did you mean distilbert?"),
        ("run distilbert:4090", "fix: did you mean rtx-4090?"),
        ("run distilbert:cpu --gpus 0", "error: --gpus: "),
        ("--show-completion nosuch", "'nosuch'"),
        ("--show-completion bash zsh", "--show-completion"),
    ],
)
def test_usage_errors_exit_2(flagbench: Flagbench, arguments: str, expected: str) -> None:
    ended = flagbench(arguments)
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert expected in ended.err


def every_command(commands: Iterable[Any]) -> Iterator[Any]:
    """Each command that has options: a group's, instead of the group."""
    for command in commands:
        inner = getattr(command, "commands", None)
        yield from [command] if inner is None else every_command(inner.values())


def test_an_option_is_spelled_alike_in_every_command() -> None:
    """A long name has one short name, or none, and is a flag, or takes a value, wherever it is."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for command in every_command(map(load, COMMANDS)):
        for option in command.params:
            long, *short = option.opts
            if long.startswith("-"):
                found.setdefault(long, set()).add((*short, "flag" if option.is_flag else "value"))
    assert {long: forms for long, forms in found.items() if len(forms) > 1} == {}
    shorts = [short for forms in found.values() for short, *_ in forms if short.startswith("-")]
    assert len(shorts) == len(set(shorts))


def test_every_command_says_what_its_json_has() -> None:
    silent = {
        command.name
        for command in every_command(map(load, COMMANDS))
        if any("--json" in option.opts for option in command.params)
        and "--json prints" not in " ".join(command.help.split())
    }
    assert silent == {"run", "job"}, "their option says it"


def test_version_is_one_answer_on_both_paths(flagbench: Flagbench) -> None:
    assert (
        flagbench("--version").out == process("-m", "flagbench", "--version").stdout == f"flagbench {__version__}\n"
    )


def test_completion_is_offered_for_the_shell(
    flagbench: Flagbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = flagbench("--show-completion bash").out
    monkeypatch.setenv("HOME", str(tmp_path))
    assert flagbench("--install-completion=bash").code == 0
    assert (tmp_path / ".bashrc").exists()
    assert (tmp_path / ".bash_completions" / "flagbench.sh").read_text() == script
    (tmp_path / ".zshrc").write_bytes(b"# caf\xe9\n")
    assert flagbench("--install-completion zsh").code == ExitCode.USAGE
    assert (tmp_path / ".zshrc").read_bytes() == b"# caf\xe9\n"
