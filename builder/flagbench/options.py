"""Options of commands that are declared once, as the fields of a dataclass.

Several commands share such a dataclass. This module makes Typer parameters of it (`takes_options`), writes its values
as words of a command line (`words`), and checks the ranges of its numbers (`check_ranges`). A field is
`name: Annotated[type, typer.Option(...)] = default`; a class variable GROUP is the title of the options in --help.
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
"""The type of an option with a text, which may be left out."""
Texts: TypeAlias = tuple[str, ...]
"""The type of an option with a text that may be repeated."""
_UNPASSABLE = ("Cc", "Cs")
"""The Unicode categories of control characters and lone surrogates."""


@dataclass(frozen=True)
class DeclaredOption:
    """One option of a dataclass."""

    field: str
    """The name of the field."""
    name: str
    """The option as it is typed: `--max-samples`."""
    type: Any
    """The type of the value; `tuple[X, ...]` for an option that may be repeated."""
    info: OptionInfo
    """What `typer.Option` returned."""
    default: Any
    """The default of the field; MISSING for a required option."""

    @property
    def is_repeated(self) -> bool:
        """Whether the option may be given several times: Typer gives a list where the dataclass holds a tuple."""
        return get_origin(self.type) is tuple

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter of a command that Typer reads."""
        annotation = self.type
        default = self.default
        if self.default is MISSING:
            default = inspect.Parameter.empty
        if self.is_repeated:
            element = get_args(self.type)[0]
            annotation = list[element] | None  # type: ignore[valid-type]
            default = None
        return inspect.Parameter(
            self.field,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[annotation, self.info],
        )


def declared_options(options_class: type) -> tuple[DeclaredOption, ...]:
    """The options of a dataclass, in order."""
    return _read_options(options_class)


@cache  # every command reads its options several times
def _read_options(options_class: type) -> tuple[DeclaredOption, ...]:
    hints = get_type_hints(options_class, include_extras=True)
    options = []
    for field in fields(options_class):
        annotation, info = get_args(hints[field.name])
        name = "--" + field.name.replace("_", "-")
        if isinstance(info.default, str):  # where Typer keeps the first name that `typer.Option` gets
            name = info.default
        info.rich_help_panel = info.rich_help_panel or getattr(options_class, "GROUP", None)
        options.append(DeclaredOption(field.name, name, annotation, info, field.default))
    return tuple(options)


def takes_options(function: Callable[..., None]) -> Callable[..., None]:
    """Make a Typer command of `function`: each parameter that is an options dataclass is replaced by its options.

    The command then calls `function` with objects of these dataclasses.
    """
    options_classes: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    # Not get_type_hints: before Python 3.11 it wraps the hint of a parameter whose default is None in Optional.
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        hint = parameter.annotation
        if is_dataclass(hint) and isinstance(hint, type):
            options_classes[parameter.name] = hint
            parameters += [option.parameter for option in declared_options(hint)]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(function)
    def command(**arguments: Any) -> None:
        for name, options_class in options_classes.items():
            settings = {}
            for option in declared_options(options_class):
                setting = arguments.pop(option.field)
                if option.is_repeated:
                    setting = tuple(setting or ())
                settings[option.field] = setting
            arguments[name] = options_class(**settings)
        function(**arguments)

    # Typer reads both.
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def words(options: Any, always: Collection[str] = ()) -> list[str]:
    """The options of a dataclass as words of a command line, `--name=value`; options at their default are left out.

    Name and value are one word, so that a value may begin with a dash. `always`: the names of options that are
    written even at their default.
    """
    command_line: list[str] = []
    for option in declared_options(type(options)):
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
    """Raise FlagbenchError (USAGE) for a number outside the `min` and `max` of its declaration."""
    for option in declared_options(type(options)):
        setting = getattr(options, option.field)
        if setting is None or option.info.min is None:
            continue
        if isinstance(setting, tuple):
            for number in setting:
                _check_range(option, number)
        else:
            _check_range(option, setting)


def _check_range(option: DeclaredOption, number: float) -> None:
    """Raise FlagbenchError (USAGE) if one number is out of range. An option with a maximum has a minimum, too."""
    least = option.info.min
    most = option.info.max
    assert least is not None
    limit = f"from {least} on"
    in_range = number >= least
    if most is not None:
        limit = f"from {least} to {most}"
        in_range = least <= number <= most
    if not in_range:
        raise FlagbenchError(f"{option.name} {number} is out of range", remedy=f"give a number {limit}")


def text_fault(text: str) -> str | None:
    """Why `text` cannot be passed to a process unchanged; None if it can."""
    for character in text:
        if unicodedata.category(character) in _UNPASSABLE:
            return f"contains the control character {character!r}"
    return None
