"""What a record's command line says of its run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

ANSWERS = frozenset({"--describe", "--version", "--help", "-h"})
"""Options of an image with which it runs nothing."""
_FLAGS = ANSWERS | {"--full"}
"""Those that take no value."""


_LONGEST = 20
"""Characters of an integer."""


class Arguments(Struct, frozen=True):
    """The options of a command line by name, each with all its values, and the other words."""

    options: dict[str, tuple[str, ...]]
    words: tuple[str, ...]

    def last(self, name: str) -> str | None:
        """The value of an option, the last if it is given more than once; None if it is not given."""
        values = self.options.get(name)
        return values[-1] if values else None

    def integer(self, name: str) -> int | None:
        """The value of an option as an integer; None if it is not given or not one."""
        text = self.last(name)
        try:
            return None if text is None or len(text) > _LONGEST else int(text)
        except ValueError:
            return None

    @property
    def settings(self) -> dict[str, str]:
        """The values of `--set NAME=VALUE` by name, the last of each."""
        pairs = (text.partition("=") for text in self.options.get("--set", ()))
        return {name: value for name, _, value in pairs}


def parse(argv: Sequence[str]) -> Arguments:
    """The arguments of an image, `--name value` or `--name=value`."""
    options: dict[str, list[str]] = {}
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        if not word.startswith("-"):
            words.append(word)
            continue
        name, equals, value = word.partition("=")
        if not equals and name not in _FLAGS:
            value = next(rest, "")
        options.setdefault(name, []).append(value)
    return Arguments({name: tuple(values) for name, values in options.items()}, tuple(words))
