"""The list of commands is written down, so that --help imports none of them; here it is held against them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flagbench.cli.app import COMMANDS
from flagbench.cli.lazy import LazyCommands


@pytest.mark.parametrize("name", COMMANDS)
def test_summary_is_the_first_line_of_the_commands_own_help(name: str) -> None:
    command = LazyCommands(COMMANDS)[name]
    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name].summary
    assert command.name == name
    assert command.hidden == COMMANDS[name].hidden


def test_help_lists_every_command_and_imports_none() -> None:
    script = (
        "import json, sys\n"
        "from flagbench.cli import main\n"
        "main.run(['--help'])\n"
        "print(json.dumps([m for m in sys.modules if m.startswith('flagbench.cli.')]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    listed = done.stdout.split("Commands:")[1].split()
    for name, entry in COMMANDS.items():
        assert (name in listed) != entry.hidden
    imported = set(json.loads(done.stderr))
    assert imported == {f"flagbench.cli.{name}" for name in ("app", "lazy", "main", "output", "shells")}


def test_one_command_is_imported_for_its_own_run_alone() -> None:
    commands = LazyCommands(COMMANDS)
    assert "verify" in commands
    assert list(commands) == list(COMMANDS)
    assert commands["verify"] is commands["verify"]
    with pytest.raises(TypeError):
        commands["other"] = commands["verify"]
    with pytest.raises(TypeError):
        del commands["verify"]
    assert len(commands) == len(COMMANDS)
