"""Options declared once, as fields of a dataclass: from them follow the Typer parameters, the words and the ranges.

A field is `name: Annotated[type, typer.Option(...)] = default`; a class variable GROUP is their title in --help.
"""

from __future__ import annotations

import inspect
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
    type: Any
    """Type of the value; `tuple[X, ...]` for an option that may be repeated."""
    info: OptionInfo
    default: Any

    @property
    def repeated(self) -> bool:
        """Whether the option may be given several times: Typer gives a list where the dataclass holds a tuple."""
        return get_origin(self.type) is tuple

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter that Typer reads."""
        annotation, default = self.type, self.default
        if self.default is MISSING:
            default = inspect.Parameter.empty
        if self.repeated:
            annotation, default = list[get_args(self.type)[0]] | None, None  # type: ignore[misc]
        return inspect.Parameter(
            self.field,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[annotation, self.info],
        )


def _declared(kind: type) -> tuple[Declared, ...]:
    """The options of a dataclass, in order."""
    hints = get_type_hints(kind, include_extras=True)
    options = []
    for field in fields(kind):
        annotation, info = get_args(hints[field.name])
        name = "--" + field.name.replace("_", "-")
        if isinstance(info.default, str):  # where Typer keeps the first name that `typer.Option` gets
            name = info.default
        info.rich_help_panel = info.rich_help_panel or getattr(kind, "GROUP", None)
        options.append(Declared(field.name, name, annotation, info, field.default))
    return tuple(options)


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
    def command(**arguments: Any) -> None:
        for name, kind in groups.items():
            settings = {}
            for option in declared(kind):
                setting = arguments.pop(option.field)
                if option.repeated:
                    setting = tuple(setting or ())
                settings[option.field] = setting
            arguments[name] = kind(**settings)
        function(**arguments)

    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def words(options: Any, always: Collection[str] = ()) -> list[str]:
    """The options of a dataclass as words of a command line, `--name=value`; options at their default are left out.

    One word each: a value that begins with a dash stays a value. `always`: options that are written even at their
    default.
    """
    command_line: list[str] = []
    for option in declared(type(options)):
        setting = getattr(options, option.field)
        if setting == option.default and option.name not in always:
            continue
        if setting is True:
            command_line.append(option.name)
        elif isinstance(setting, tuple):
            command_line += [f"{option.name}={word}" for word in setting]
        else:
            command_line.append(f"{option.name}={setting}")
    return command_line


def check_ranges(options: Any) -> None:
    """Raise FlagbenchError (usage) for a number outside the `min` and `max` of its declaration."""
    for option in declared(type(options)):
        setting = getattr(options, option.field)
        if setting is None or option.info.min is None:
            continue
        if isinstance(setting, tuple):
            for number in setting:
                _check_range(option, number)
        else:
            _check_range(option, setting)


def _check_range(option: Declared, number: float) -> None:
    least, most = option.info.min, option.info.max
    assert least is not None
    limit = f"from {least} on"
    in_range = number >= least
    if most is not None:
        limit = f"from {least} to {most}"
        in_range = least <= number <= most
    if not in_range:
        raise FlagbenchError(f"{option.name} {number} is out of range", remedy=f"give a number {limit}")


def text_fault(text: str) -> str | None:
    """Why `text` cannot reach a process unchanged: control characters and lone surrogates cannot."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs"):
            return f"contains the control character {character!r}"
    return None
