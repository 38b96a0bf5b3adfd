"""The text of a usage error: what Typer and pydantic refuse, in the words of every other error."""

from __future__ import annotations

from typing import Any

import typer

from flagbench.output import print_error

_REFUSALS = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number",
}
"""By pydantic's types of errors, which newer releases of Typer check values with."""


def click_exception() -> Any:
    """The base class of usage errors: Typer carries its own copy of click or imports click, by its release."""
    return next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def print_usage_error(error: Any) -> int:
    """Print an instance of `click_exception()`; returns its exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    found = error.__cause__.errors() if hasattr(error.__cause__, "errors") else ()
    for each in found:
        if each["type"] in _REFUSALS:
            error.message = f"{each['input']!r} {_REFUSALS[each['type']].format(**each.get('ctx', {}))}"
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "flagbench"
    text = " ".join(error.format_message().replace("Value error, ", "").split())
    print_error(text.rstrip("."), f"see `{command} --help`")
    return int(error.exit_code)
