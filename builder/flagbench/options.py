"""Options declared once, as fields of a dataclass: from them follow the Typer parameters, the words and the ranges.

A field is `name: Annotated[type, typer.Option(...)] = default`; a class variable GROUP is their title in --help.
"""

from __future__ import annotations

import inspect
import math
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, wraps
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

from flagbench.errors import FlagbenchError

Text: TypeAlias = str | None
"""Type of an option with a text, which may be left out."""
Texts: TypeAlias = tuple[str, ...]
"""The same of one that may be repeated."""


@dataclass(frozen=True)
class Declared:
    """One option of a dataclass."""

    field: str
    name: str
    """As it is typed: `--max-samples`."""
    value: Any
    """Type of the value; `tuple[X, ...]` for an option that may be repeated."""
    info: OptionInfo
    default: Any

    @property
    def repeated(self) -> bool:
        """Whether the option may be given several times: Typer gives a list where the dataclass holds a tuple."""
        return get_origin(self.value) is tuple

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter that Typer reads."""
        value = list[get_args(self.value)[0]] | None if self.repeated else self.value  # type: ignore[misc]
        default = inspect.Parameter.empty if self.default is MISSING else self.default
        return inspect.Parameter(
            self.field,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if self.repeated else default,
            annotation=Annotated[value, self.info],
        )


def _declared(kind: type) -> tuple[Declared, ...]:
    """The options of a dataclass, in order."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in fields(kind):
        value, info = get_args(hints[field.name])
        # Typer keeps the first name that `typer.Option` is given in `default`.
        name = info.default if isinstance(info.default, str) else "--" + field.name.replace("_", "-")
        info.rich_help_panel = info.rich_help_panel or getattr(kind, "GROUP", None)
        found.append(Declared(field.name, name, value, info, field.default))
    return tuple(found)


declared: Callable[[type], tuple[Declared, ...]] = cache(_declared)
"""The same, read once for each dataclass."""


def takes_options(function: Callable[..., None]) -> Callable[..., None]:
    """A Typer command from `function`, with each parameter that is an options dataclass replaced by its options."""
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    # Not get_type_hints: before Python 3.11 it wraps the hint of a parameter whose default is None in Optional.
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        hint = parameter.annotation
        if is_dataclass(hint) and isinstance(hint, type):
            groups[parameter.name] = hint
            parameters += [option.parameter for option in declared(hint)]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(function)
    def command(**given: Any) -> None:
        for name, kind in groups.items():
            values = {}
            for option in declared(kind):
                value = given.pop(option.field)
                values[option.field] = tuple(value or ()) if option.repeated else value
            given[name] = kind(**values)
        function(**given)

    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def words(options: Any, always: Collection[str] = ()) -> list[str]:
    """The options of a dataclass as words of a command line, `--name=value`; what has its default is left out.

    One word each: a value that begins with a dash stays a value. `always`: options that stand there with their
    default too.
    """
    found = []
    for option in declared(type(options)):
        value = getattr(options, option.field)
        if value == option.default and option.name not in always:
            continue
        values = value if isinstance(value, tuple) else (value,)
        found += [option.name if item is True else f"{option.name}={item}" for item in values]
    return found


def check_ranges(options: Any) -> None:
    """Raise FlagbenchError (usage) for a number outside the `min` and `max` of its declaration."""
    for option in declared(type(options)):
        value, least, most = getattr(options, option.field), option.info.min, option.info.max
        if value is None or least is None:
            continue
        for number in value if isinstance(value, tuple) else (value,):
            if not least <= number <= (math.inf if most is None else most):
                limit = f"from {least} on" if most is None else f"from {least} to {most}"
                raise FlagbenchError(f"{option.name} {number} is out of range", remedy=f"give a number {limit}")


def text_fault(text: str) -> str | None:
    """Why `text` cannot reach a process unchanged: control characters and lone surrogates cannot."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs"):
            return f"contains the control character {character!r}"
    return None
