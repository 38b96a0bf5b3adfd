"""A Dockerfile read into its instructions and stages, for the rules that look at them.

Parsed by BuildKit's own parser (the package `dockerfile`): dockerfile-parse knows no heredocs and no flags.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile

import dockerfile

from flagbench.errors import FlagbenchError
from flagbench.render.shell import SHELLS, Call, calls, expand

_HEREDOC = re.compile(r"<<-?\s*[\"']?\w+[\"']?")
_SHEBANG = re.compile(r"#!\s*\S*?(?:env\s+)?(\w+)\s")


@dataclass(frozen=True)
class Instruction:
    """One instruction, its continuation lines joined; of `ONBUILD RUN`, the RUN."""

    name: str
    """In capitals."""
    words: tuple[str, ...]
    """What follows its flags, as BuildKit takes it apart: one text for RUN in its shell form."""
    flags: tuple[tuple[str, str], ...]
    """`("from", "base")` of `--from=base`."""
    line: int
    """Where it begins, from 1."""
    text: str
    """With its flags and heredocs, lines joined."""
    exec_form: bool = False
    heredocs: tuple[str, ...] = ()
    onbuild: bool = False
    """Whether it runs where another image is built on this one, not here."""

    def flag(self, name: str) -> str | None:
        """The value of a flag; None where it is not there."""
        return next((value for key, value in self.flags if key == name), None)

    def mounts(self) -> list[dict[str, str]]:
        """The options of each --mount."""
        parts = [value.split(",") for key, value in self.flags if key == "mount"]
        return [{key.lower(): value for key, _, value in (part.partition("=") for part in mount)} for mount in parts]

    @property
    def assigned(self) -> list[tuple[str, str | None]]:
        """The names that an ENV, an ARG or a LABEL sets, with their values; None for an ARG without a default."""
        if self.name in ("ENV", "LABEL"):
            return [(key, _unquoted(value)) for key, value in zip(self.words[::2], self.words[1::2], strict=False)]
        if self.name == "ARG":
            return [
                (name, _unquoted(value) if equals else None)
                for name, equals, value in (word.partition("=") for word in self.words)
            ]
        return []


@dataclass
class Stage:
    """What one FROM begins."""

    number: int
    name: str
    """Lower case; empty where it has none."""
    image: str
    """As written."""
    start: Instruction
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile to be checked."""

    text: str
    required: Mapping[str, str] = field(default_factory=dict)
    """Pieces of Dockerfile that it has to hold, by the name of the template's block that makes them."""
    inherited: str = ""
    """The ENV instructions of the image below, whose values it has to keep."""

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction, in order. Raises FlagbenchError (usage) where BuildKit could not read it."""
        return tuple(_parse(self.text))

    def named(self, *names: str) -> Iterator[Instruction]:
        """The instructions of these names, in order."""
        return (instruction for instruction in self.instructions if instruction.name in names)

    @cached_property
    def global_arguments(self) -> Mapping[str, Instruction]:
        """The ARG instructions before the first FROM, which every FROM sees, by name."""
        before = takewhile(lambda instruction: instruction.name != "FROM", self.instructions)
        return {name: instruction for instruction in before for name, _ in instruction.assigned}

    @cached_property
    def defaults(self) -> Mapping[str, str]:
        """The defaults of these arguments, as far as there are some."""
        found: dict[str, str] = {}
        for instruction in self.global_arguments.values():
            found |= {name: expand(value, found) for name, value in instruction.assigned if value is not None}
        return found

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in order."""
        found: list[Stage] = []
        for instruction in self.instructions:
            if instruction.name == "FROM":
                image, *alias = instruction.words or ("",)
                found.append(Stage(len(found), alias[1].lower() if len(alias) == 2 else "", image, instruction))
            elif found:
                found[-1].instructions.append(instruction)
        return tuple(found)

    def earlier(self, stage: Stage, name: str) -> Stage | None:
        """The stage of this name before `stage`."""
        named = {found.name: found for found in self.stages[: stage.number] if found.name}
        return named.get(name.lower())

    @cached_property
    def lineage(self) -> tuple[Stage, ...]:
        """The stages that the image is made of: the one that the last stands on first, the last one last."""
        found = list(self.stages[-1:])
        while found and (parent := self.earlier(found[0], expand(found[0].image, self.defaults))):
            found.insert(0, parent)
        return tuple(found)

    def variables(self) -> Iterator[tuple[Instruction, str]]:
        """The name of every variable that an ENV or an ARG sets."""
        return ((instruction, name) for instruction in self.named("ENV", "ARG") for name, _ in instruction.assigned)

    def setters(self, stage: Stage, at: Instruction) -> Mapping[str, Instruction]:
        """The ARG or ENV that a variable has its value from, at an instruction of a stage, by name."""
        found = dict(self.global_arguments)
        for instruction in _before(stage, at):
            found |= {name: instruction for name, value in instruction.assigned if value is not None}
        return found

    def values(self, stage: Stage, at: Instruction) -> Mapping[str, str]:
        """What is known of the variables at an instruction of a stage."""
        found = dict(self.defaults)
        for instruction in _before(stage, at):
            found |= {name: expand(value, found) for name, value in instruction.assigned if value is not None}
        return found

    def calls(self) -> Iterator[tuple[Instruction, Call]]:
        """Every command of every RUN."""
        for stage in self.stages:
            for instruction in stage.instructions:
                if instruction.name == "RUN":
                    variables = self.values(stage, instruction)
                    yield from ((instruction, call) for call in _calls(instruction, variables))


def _before(stage: Stage, at: Instruction) -> Iterator[Instruction]:
    """The ENV and ARG instructions of a stage that stand before one of its own."""
    return (i for i in stage.instructions if i.name in ("ENV", "ARG") and i.line < at.line)


def _calls(instruction: Instruction, variables: Mapping[str, str]) -> list[Call]:
    if instruction.exec_form:
        # `["sh", "-c", SCRIPT]` is a command whose words need no quotes any more.
        return calls(shlex.join(instruction.words), variables)
    script = " ".join(instruction.words)
    if _HEREDOC.fullmatch(script.strip()):
        return [call for text in instruction.heredocs if _is_shell(text) for call in calls(text, variables)]
    found = calls(_HEREDOC.sub("", script) if instruction.heredocs else script, variables)
    if {call.name for call in found} & SHELLS:
        found += [call for text in instruction.heredocs for call in calls(text, variables)]
    return found


def _is_shell(script: str) -> bool:
    first = _SHEBANG.match(script)
    return first is None or first[1] in SHELLS


def _parse(text: str, offset: int = 0) -> Iterator[Instruction]:
    try:
        commands = dockerfile.parse_string(text)
    except dockerfile.GoParseError as error:
        raise FlagbenchError(f"not a Dockerfile: {error}", remedy="correct it: BuildKit cannot read it") from None
    for command in commands:
        if command.cmd.upper() == "ONBUILD" and command.sub_cmd:
            later = _parse(command.original.split(maxsplit=1)[1], offset + command.start_line - 1)
            yield from (replace(instruction, onbuild=True) for instruction in later)
            continue
        yield Instruction(
            name=command.cmd.upper(),
            words=tuple(command.value),
            flags=tuple((key, value) for key, _, value in (flag[2:].partition("=") for flag in command.flags)),
            line=offset + command.start_line,
            text=command.original,
            exec_form=command.json,
            heredocs=tuple(heredoc.content for heredoc in command.heredocs),
        )


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
