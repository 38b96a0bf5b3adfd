"""A document under examination, and what is wrong with it; safe on documents of any shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.schema import FieldPath, field_name

EACH = "*"
"""In a pattern: every item of a list, or every value of a mapping."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: in which document, at which field, and what to do."""

    document: str
    path: FieldPath
    message: str
    remedy: str

    @property
    def what(self) -> str:
        """Field and message as one."""
        field = field_name(self.path)
        return f"{field}: {self.message}" if field else self.message

    def __str__(self) -> str:
        return f"{self.document}: {self.what}; {self.remedy}"


@dataclass(frozen=True)
class Document:
    """One Kubernetes document. Nothing is known of its shape: a field of another type than expected is absent."""

    data: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """What it is; empty where it does not say so."""
        kind = self.data.get("kind")
        return kind if isinstance(kind, str) else ""

    @property
    def name(self) -> str:
        """Its name; empty where it has none."""
        name = self.at("metadata", "name")
        return name if isinstance(name, str) else ""

    @property
    def namespace(self) -> Any:
        """Its namespace; None is the one that kubectl is pointed at."""
        return self.at("metadata", "namespace")

    @property
    def shown(self) -> str:
        """Kind and name, for messages."""
        return f"{self.kind or 'a document without a kind'} {self.name}".rstrip()

    def at(self, *path: str | int) -> Any:
        """The value at a path; None where there is none."""
        value: Any = self.data
        for step in path:
            if isinstance(value, Mapping):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def mapping(self, *path: str | int) -> Mapping[str, Any]:
        """The mapping at a path; an empty one where something else stands."""
        return as_mapping(self.at(*path))

    def each(self, *pattern: str | int) -> Iterator[tuple[FieldPath, Any]]:
        """Every value that a pattern fits, with its path."""
        yield from _each(self.data, pattern, ())

    def problem(self, path: FieldPath, message: str, remedy: str) -> Problem:
        """A problem at a field of this document."""
        return Problem(self.shown, path, message, remedy)


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def is_count(value: Any, least: int = 0) -> bool:
    """Whether it is a whole number of at least that much; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def shown(value: Any) -> str:
    """A value as it stands in a message, short."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _each(value: Any, pattern: tuple[str | int, ...], path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    if not pattern:
        yield path, value
        return
    step, rest = pattern[0], pattern[1:]
    if step == EACH:
        steps: Iterator[tuple[str | int, Any]] = iter(())
        if isinstance(value, list):
            steps = iter(enumerate(value))
        elif isinstance(value, Mapping):
            steps = iter(value.items())
        for key, item in steps:
            yield from _each(item, rest, (*path, key))
    elif isinstance(value, Mapping) and step in value:
        yield from _each(value[str(step)], rest, (*path, step))
