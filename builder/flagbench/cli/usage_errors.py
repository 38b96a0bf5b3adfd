"""Prints usage errors, which Typer raises for wrong arguments, in the form of all other errors.

Typer builds on click, whose error types are used here by name: see `click_exception`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import typer

from flagbench.console.output import print_error

_MIN_SIMILARITY = 0.7
"""How similar an option must be to be suggested: options are short, so that a smaller number suggests wrong ones."""


def click_exception() -> Any:
    """The base class of usage errors. Some releases of Typer import click, others contain a copy of it."""
    for base in typer.BadParameter.__mro__:
        if base.__name__ == "ClickException":
            return base
    raise AssertionError("typer.BadParameter is no ClickException")


def print_usage_error(error: Any) -> int:
    """Print an instance of `click_exception()`. Returns its exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    explanation = _explain(error)
    print_error(explanation.message, explanation.remedy)
    return int(error.exit_code)


class _Explanation(NamedTuple):
    """A usage error in our words."""

    message: str
    """What is wrong."""
    remedy: str
    """What to do."""


def _explain(error: Any) -> _Explanation:
    """Explain a usage error by its type and click's message, which quotes the words that were typed."""
    kind = type(error).__name__
    context = getattr(error, "ctx", None)
    command_path = "flagbench"
    if context is not None:
        command_path = context.command_path
    help_command = f"`{command_path} --help`"
    text = " ".join(error.message.split()).rstrip(".")
    name = _parameter_name(getattr(error, "param", None))
    quoted = re.findall(r"'([^']*)'", text)
    if kind == "NoSuchOption":
        option = error.option_name
        suggestion = _suggest_option(option, error.possibilities or ())
        return _Explanation(f"there is no option {option}", f"{suggestion}{help_command} lists all")
    if text.startswith("No such command") and quoted:
        command, *similar_commands = quoted
        suggestion = _suggest(command, similar_commands)
        return _Explanation(f"there is no command '{command}'", f"{suggestion}{help_command} lists all")
    if kind == "MissingParameter":
        return _Explanation(f"{name} is missing", f"see {help_command}")
    if " is not one of " in text and len(quoted) > 1:
        value, *choices = quoted
        remedy = f"{_suggest(value, choices)}use {_join_choices(choices)}"
        return _Explanation(f"{name}: {value!r} is not valid", remedy)
    text = re.sub(r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)$", r"unexpected argument: \1", text)
    if name:
        text = f"{name}: {text}"
    return _Explanation(text, f"see {help_command}")


def _join_choices(choices: Sequence[str]) -> str:
    """`A, B or C`."""
    if len(choices) == 1:
        return choices[0]
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def _parameter_name(parameter: Any) -> str | None:
    """The name of a parameter in messages: `--gpus` for an option, `RECORD` for an argument; None without one."""
    if parameter is None:
        return None
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper())


def _suggest_option(option: str, options: Iterable[str]) -> str:
    """`did you mean --NAME? ` for the option with the most similar name; empty if none is similar."""
    names = {name.lstrip("-"): name for name in options}
    close = difflib.get_close_matches(option.lstrip("-"), names, n=1, cutoff=_MIN_SIMILARITY)
    if not close:
        return ""
    return f"did you mean {names[close[0]]}? "


def _suggest(word: str, names: Iterable[str]) -> str:
    """`did you mean NAME? ` for the most similar name; empty if none is similar."""
    from flagbench.schema import hint  # slow to import, and most commands end without a usage error

    return hint(word, names)
