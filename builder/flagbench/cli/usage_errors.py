"""The text of a usage error: what Typer refuses, in the words of every other error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from flagbench.console.output import print_error


def click_exception() -> Any:
    """The base class of usage errors: Typer carries its own copy of click or imports click, by its release."""
    return next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def print_usage_error(error: Any) -> int:
    """Print an instance of `click_exception()`; returns its exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    print_error(*_explained(error))
    return int(error.exit_code)


def _explained(error: Any) -> tuple[str, str]:
    """What is wrong, and what to do."""
    context, kind = getattr(error, "ctx", None), type(error).__name__
    command_path = context.command_path if context else "flagbench"
    help_ = f"`{command_path} --help`"
    text = " ".join(error.message.split()).rstrip(".")
    name = _name(getattr(error, "param", None))
    quoted = re.findall(r"'([^']*)'", text)
    if kind == "NoSuchOption":
        option = error.option_name
        return f"there is no option {option}", f"{_meant_option(option, error.possibilities or ())}{help_} lists all"
    if text.startswith("No such command") and quoted:
        command, *close = quoted
        return f"there is no command '{command}'", f"{_meant(command, close)}{help_} lists all"
    if kind == "MissingParameter":
        return f"{name} is missing", f"see {help_}"
    if " is not one of " in text and len(quoted) > 1:
        value, *choices = quoted
        return f"{name}: {value!r} is not valid", f"{_meant(value, choices)}use {_join_choices(choices)}"
    text = re.sub(r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)$", r"unexpected argument: \1", text)
    if name:
        text = f"{name}: {text}"
    return text, f"see {help_}"


def _join_choices(choices: Sequence[str]) -> str:
    """`A, B or C`."""
    if len(choices) == 1:
        return choices[0]
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def _name(parameter: Any) -> str | None:
    """`--gpus`, or an argument as --help calls it."""
    if parameter is None:
        return None
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper())


def _meant_option(option: str, options: Iterable[str]) -> str:
    """`did you mean --NAME? ` for the option with the most similar name; empty if none is similar."""
    names = {name.lstrip("-"): name for name in options}
    close = difflib.get_close_matches(option.lstrip("-"), names, n=1, cutoff=0.7)
    if not close:
        return ""
    return f"did you mean {names[close[0]]}? "


def _meant(word: str, names: Iterable[str]) -> str:
    from flagbench.schema import hint  # no command needs it that starts

    return hint(word, names)
