"""A group of commands that imports a command only when it is run, helped for or completed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command


@dataclass(frozen=True)
class Entry:
    """Where a command is and what it is for, which is all that the list of commands shows."""

    where: str
    """`module:attribute` of a command function or of a Typer app with commands of its own."""
    summary: str
    """The first line of the command's docstring."""
    hidden: bool = False


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, in the order they were given; each is imported when it is first asked for."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = dict(entries)
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self.entries[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        raise TypeError("commands are named in the table of flagbench.cli.app")

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands are named in the table of flagbench.cli.app")

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _load(name: str, entry: Entry) -> Any:
    module, _, attribute = entry.where.partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        # A Typer with one command becomes that command. Only the root offers to install completion.
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, hidden=entry.hidden)(found)
        found = alone
    command = get_command(found)
    command.name = name
    command.hidden = entry.hidden
    return command


def lazy_group(entries: Mapping[str, Entry]) -> type[TyperGroup]:
    """The class of a group with these commands, for `typer.Typer(cls=...)`."""

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = LazyCommands(entries)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(entries)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            rows = [(name, entry.summary) for name, entry in entries.items() if not entry.hidden]
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    return LazyGroup
