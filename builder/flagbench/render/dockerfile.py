"""A Dockerfile read into its instructions, for the rules that look at them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]

_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_ASSIGNED = re.compile(r"(?:^|\s)([A-Za-z_][A-Za-z0-9_]*)=")


@dataclass(frozen=True)
class Instruction:
    """One instruction, its continuation lines joined."""

    name: str
    """In capitals; COMMENT for a comment."""
    value: str
    line: int
    """Where it begins, from 1."""

    @cached_property
    def unquoted(self) -> str:
        """The value with every quoted piece emptied: what a shell would expand or interpret."""
        return _QUOTED.sub("''", self.value)

    @property
    def variables(self) -> list[str]:
        """The names that an ENV or an ARG sets."""
        if self.name == "ARG":
            return [self.value.partition("=")[0].strip()]
        # `ENV NAME value`, the form without an equals sign, sets one name.
        return _ASSIGNED.findall(self.unquoted) or self.value.split(maxsplit=1)[:1]


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile to be checked, and what it may do that others may not."""

    text: str
    hosts: frozenset[str] = field(default=frozenset())
    """The hosts that it may name: those of the package indexes in the manifests."""
    root: bool = False
    """Whether its stack's device demands uid 0."""

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction and comment, in order."""
        structure: list[Mapping[str, str | int]] = DockerfileParser(
            fileobj=io.BytesIO(self.text.encode()), env_replace=False
        ).structure
        return tuple(
            sorted(
                (
                    Instruction(str(entry["instruction"]), str(entry["value"]), int(entry["startline"]) + 1)
                    for entry in structure
                ),
                key=lambda instruction: instruction.line,
            )
        )

    def named(self, *names: str) -> Iterator[Instruction]:
        """The instructions of these names, in order."""
        return (instruction for instruction in self.instructions if instruction.name in names)

    @property
    def stages(self) -> frozenset[str]:
        """The names that its stages were given."""
        words = (instruction.value.split() for instruction in self.named("FROM"))
        return frozenset(stage[2] for stage in words if len(stage) == 3 and stage[1].upper() == "AS")
