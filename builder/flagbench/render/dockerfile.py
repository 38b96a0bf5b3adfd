"""A Dockerfile read into its instructions, for the rules that look at them.

Parsed by BuildKit's own parser (the package `dockerfile`): dockerfile-parse knows no heredocs and no flags.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import dockerfile

from flagbench.errors import FlagbenchError
from flagbench.render.shell import SHELLS, Call, Variables, calls, expand

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
    stage: int = -1
    """Number of the stage, from 0; -1 before the first FROM."""
    variables: Variables = field(default_factory=dict)
    """What ENV and ARG have set where it stands; None for an ARG before the first FROM that has no default."""
    setters: Mapping[str, int] = field(default_factory=dict)
    """The line that each variable has its value from."""

    def flag(self, name: str) -> str | None:
        """The value of a flag; None where it is not there."""
        return next((value for key, value in self.flags if key == name), None)

    def mounts(self) -> list[dict[str, str]]:
        """The options of each --mount."""
        parts = [value.split(",") for key, value in self.flags if key == "mount"]
        return [{key.lower(): value for key, _, value in (part.partition("=") for part in mount)} for mount in parts]

    @property
    def image(self) -> str:
        """What a FROM names, with the variables that are known."""
        return expand("".join(self.words[:1]), self.variables)

    @property
    def assigned(self) -> list[tuple[str, str | None]]:
        """The names that an ENV, an ARG or a LABEL sets, with their values; None for an ARG without a default."""
        if self.name in ("ENV", "LABEL"):
            return [(key, _unquoted(value)) for key, value in zip(self.words[::2], self.words[1::2], strict=False)]
        parts = (word.partition("=") for word in self.words if self.name == "ARG")
        return [(name, _unquoted(value) if equals else None) for name, equals, value in parts]

    @cached_property
    def calls(self) -> list[Call]:
        """Every command of a RUN."""
        if self.name != "RUN":
            return []
        if self.exec_form:
            # `["sh", "-c", SCRIPT]` is a command whose words need no quotes any more.
            return calls(shlex.join(self.words), self.variables)
        script = " ".join(self.words)
        found = calls(_HEREDOC.sub("", script) if self.heredocs else script, self.variables)
        if {call.name for call in found} & SHELLS:
            scripts = list(self.heredocs)
        else:
            scripts = [text for text in self.heredocs if _HEREDOC.fullmatch(script.strip()) and _is_shell(text)]
        return found + [call for text in scripts for call in calls(text, self.variables)]


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
        found: list[Instruction] = []
        stage = -1
        variables: dict[str, str | None] = {}
        setters: dict[str, int] = {}
        before = variables, setters
        for instruction in _parse(self.text):
            if instruction.name == "FROM":
                if stage < 0:
                    before = variables, setters
                stage += 1
                variables, setters = before
            found.append(replace(instruction, stage=stage, variables=variables, setters=setters))
            if instruction.name in ("ENV", "ARG"):
                # An ARG without a default keeps the value that there is, in a stage that from before the first FROM.
                given = [
                    (name, value)
                    for name, value in instruction.assigned
                    if value is not None or (stage < 0 and name not in variables)
                ]
                setters = setters | {name: instruction.line for name, _ in given}
                variables = variables | {name: value and expand(value, variables) for name, value in given}
        return tuple(found)

    def named(self, *names: str) -> Iterator[Instruction]:
        """The instructions of these names, in order."""
        return (instruction for instruction in self.instructions if instruction.name in names)

    def calls(self) -> Iterator[tuple[Instruction, Call]]:
        """Every command of every RUN."""
        return ((instruction, call) for instruction in self.instructions for call in instruction.calls)

    def earlier(self, stage: int, name: str) -> Instruction | None:
        """The FROM of the stage of this name before stage number `stage`."""
        named = {i.words[2].lower(): i for i in self.named("FROM") if i.stage < stage and len(i.words) == 3}
        return named.get(name.lower())

    @cached_property
    def lineage(self) -> list[Instruction]:
        """The instructions that the image is made of: the last stage's, after those of the stages it stands on."""
        found: list[Instruction] = []
        start = next((i for i in reversed(self.instructions) if i.name == "FROM"), None)
        while start:
            found = [i for i in self.instructions if i.stage == start.stage] + found
            start = self.earlier(start.stage, start.image)
        return found

    def variables(self) -> Iterator[tuple[Instruction, str]]:
        """The name of every variable that an ENV or an ARG sets."""
        return ((instruction, name) for instruction in self.named("ENV", "ARG") for name, _ in instruction.assigned)


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
