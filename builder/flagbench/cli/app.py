"""The commands of the command line, as a Typer application.

The module of a command is imported only to run it, to print its help or to complete its arguments: importing all of
them would take longer than most commands.
"""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from flagbench.cli import usage_errors
from flagbench_core import __version__

GROUPS = {
    "Measure and judge": {
        "run": "Run a case, keep its record in the store, and show it beside the published row.",
        "accept": "Decide within minutes whether this machine works as it should: preflight, roofs and one case.",
        "fleet": "Judge the nodes of a store together: which to drain, to look at, or to look for.",
        "verify": "Say whether a record reproduces a published number, and why not.",
        "reproduce": "Run what a published row says until the verdict is decided, and bundle all evidence of it.",
        "list": "Show all cases, stacks, devices and claims.",
        "doctor": "Check this machine: installation, manifests, store, packages, hardware, container engine.",
    },
    "Records": {
        "report": "Make static pages: an index, one for each published row, device, series and new record.",
        "results": "List, show, export and remove stored records, and store those that wait.",
        "compare": "Show how two records of a case differ: verdict, conditions, settings, metrics (B/A), losses.",
        "store": "Test whether records are safe in a store.",
        "bundle": "Check the bundle of a reproduction or an acceptance, without a network.",
    },
    "Before a run": {
        "build": "Build images, each on its stack's image.",
        "pull": "Bring an image from a bucket into the container engine, verified by digest.",
        "prepare": "Convert downloaded data and weights into the folders that runs read, or verify such folders.",
        "expect": "Show what has been published of a case or model for a device, and what comes closest.",
        "plan": (
            "Show the layouts of a split model, and whether they fit into the devices' memory; those that fit first."
        ),
        "job": "Print a job that runs a case on a cluster: for `kubectl apply -f -`, or a batch script for `sbatch`.",
    },
    "For those who publish": {
        "render": "Print an image's Dockerfiles, or write its build directories.",
        "lock": "Lock the packages and the base of stacks, by hash.",
        "push": "Push an image with its fixed tag and the moving ones.",
        "manifests": "Generate the image side's copies of the manifests, in a checkout.",
    },
}
"""Each command with the first line of its docstring: --help shows these without importing any command."""
COMMANDS: dict[str, str] = {}
for _commands in GROUPS.values():
    COMMANDS.update(_commands)
"""The commands of all groups."""
SECOND_WORDS = {"job accept": "job_accept"}
"""The modules of commands that are chosen by an argument of another one, and have options of their own."""
HIDDEN = {"manifests"}
"""Commands that --help does not list: only those who work on flagbench need them."""
_MAX_HELP_LENGTH = 1000
"""More characters than a sentence has, so that Typer does not shorten it."""


def load(name: str) -> Any:
    """Import the module of a command, and make the click command.

    The module has a function `command`, or, for a command of commands such as `results`, a Typer application `app`.
    """
    module = import_module(f"flagbench.cli.{name}")
    group = getattr(module, "app", None)
    if group is None:
        # A Typer with one command becomes that command. Only the root offers to install completion.
        group = typer.Typer(add_completion=False, rich_markup_mode=None)
        group.command(name, cls=Command)(module.command)
    else:
        group.info.cls = Group
        for registered in group.registered_commands:
            registered.cls = Command
    command = get_command(group)
    command.name = name
    command.help = command.help or COMMANDS.get(name)
    command.hidden = name in HIDDEN
    return command


class _NamesCommandInErrors:
    """A mix-in of commands: usage errors know the command that was typed, since their remedy is its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments of the command."""
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc]
        except usage_errors.click_exception() as error:
            # The parser does not set it if an option lacks its value.
            error.ctx = getattr(error, "ctx", None) or ctx
            raise


class Command(_NamesCommandInErrors, TyperCommand):
    """A command whose --help shows its options in their groups; first the options without a group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options for --help."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        parameters: Any = self.get_params(ctx)
        for parameter in parameters:
            line = parameter.get_help_record(ctx)
            if line is None:
                continue
            title = getattr(parameter, "rich_help_panel", None) or "Options"
            if title == "Options" and parameter.param_type_name == "argument":
                title = "Arguments"
            sections.setdefault(title, []).append(line)
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


class Group(_NamesCommandInErrors, TyperGroup):
    """A command of commands, such as `results`. Its --help shows the first sentence of each command in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands for --help."""
        lines = []
        for name, command in self.commands.items():
            lines.append((name, command.get_short_help_str(_MAX_HELP_LENGTH)))
        with formatter.section("Commands"):
            formatter.write_dl(lines)


class Commands(_NamesCommandInErrors, TyperGroup):
    """The group of all commands, `flagbench` itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Only the names, from which Typer suggests one for an unknown command. `get_command` imports the commands.
        self.commands: Any = dict.fromkeys(COMMANDS)
        self._is_completing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command with a name; None for an unknown one. It is imported, unless only its name is completed."""
        if self._is_completing and cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name], hidden=cmd_name in HIDDEN)
        if cmd_name not in COMMANDS:
            return None
        return load(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The name and the command that the arguments begin with, and the other arguments."""
        for before, word in pairwise(args):
            words = f"{args[0]} {word}"
            is_value = before.startswith("-") and "=" not in before  # of the option before it
            if words in SECOND_WORDS and not is_value:
                others = args[1:]
                others.remove(word)
                return words, load(SECOND_WORDS[words]), others
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the name of a command."""
        self._is_completing = True
        return super().shell_complete(ctx, incomplete)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands, in the order of GROUPS."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands for --help."""
        for title, commands in GROUPS.items():
            lines = [(name, text) for name, text in commands.items() if name not in HIDDEN]
            with formatter.section(title):
                formatter.write_dl(lines)


app = typer.Typer(
    name="flagbench",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(version: bool) -> None:
    """Print the version and exit, if --version was given."""
    if version:
        print(f"flagbench {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Benchmarks in containers, and a verdict on whether a published number is reproduced here."""
