"""A document under examination, and what is wrong with it; safe on documents of any shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flagbench.schema import FieldPath, field_name


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
    """One Kubernetes document. A field of another type than expected counts as missing."""

    data: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Its kind; empty where it has none."""
        return self._text("kind")

    @property
    def name(self) -> str:
        """Its name; empty where it has none."""
        return self._text("metadata", "name")

    def _text(self, *path: str) -> str:
        value = self.at(*path)
        return value if isinstance(value, str) else ""

    def at(self, *path: str | int) -> Any:
        """The value at a path; None if the path does not exist."""
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
        """The mapping at a path; empty if it is something else."""
        value = self.at(*path)
        return value if isinstance(value, Mapping) else {}

    def items(self, *path: str | int) -> Iterator[tuple[FieldPath, Mapping[str, Any]]]:
        """The mappings of the list at a path, each with its own path."""
        values = self.at(*path)
        for index, value in enumerate(values if isinstance(values, list) else []):
            if isinstance(value, Mapping):
                yield (*path, index), value

    def problem(self, path: FieldPath, message: str, remedy: str) -> Problem:
        """A problem at a field of this document."""
        return Problem(f"{self.kind or 'a document without kind'} {self.name}".rstrip(), path, message, remedy)


def is_count(value: Any, least: int = 0) -> bool:
    """Whether it is an integer of at least that much; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def shown(value: Any) -> str:
    """A value as shown in a message, at most 60 characters."""
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
