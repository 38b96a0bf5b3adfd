"""The images that a Dockerfile takes from outside: by FROM, COPY --from, RUN --mount and the syntax directive."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import takewhile

from flagbench.images import DIGEST, LOCAL
from flagbench.render.dockerfile import Dockerfile, Instruction, Stage
from flagbench.render.shell import expand

OUR_IMAGES = f"{LOCAL}/"
_DIGEST = re.compile(rf"@{DIGEST}$")
# A digest that is given when the image is built.
_GIVEN_DIGEST = re.compile(r"@\$(?:\w+|\{\w+\})$|@sha256:\$(?:\w+|\{\w+\})$")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_SYNTAX = re.compile(r"(?:#|//)\s*syntax\s*=\s*(\S+)", re.IGNORECASE)
_REASON = re.compile(r"[#\s]*unresolved:\s*\S")


def pinned_image(dockerfile: Dockerfile) -> Iterator[tuple[int, str]]:
    """A tag moves, and the image with it. What a Dockerfile takes from outside has its digest, is built here, or says
    in the comment above that it is unresolved."""
    for line, frontend in _frontends(dockerfile.text):
        if not _DIGEST.search(frontend):
            yield line, f"the frontend {frontend} has no digest"
    excuses = _Excuses(dockerfile)
    for stage in dockerfile.stages:
        for instruction, image in _taken(stage):
            resolved = expand(image, dockerfile.values(stage, instruction))
            if _is_known(resolved, stage, dockerfile):
                continue
            setter = _setter(image, stage, instruction, dockerfile)
            if setter and setter[1] is None:
                continue  # An argument without a default is given when the image is built.
            if not any(excuses.take(line, resolved) for line in (instruction.line, setter[0] if setter else 0)):
                yield instruction.line, f"{resolved or 'FROM'} has no digest"


def _frontends(text: str) -> Iterator[tuple[int, str]]:
    """The image that a syntax directive names, with its line: after `#`, after `//` or as JSON.

    BuildKit reads it in the first lines only, before anything else (DetectSyntax in its parser/directives.go).
    """
    lines = text.removeprefix("\ufeff").splitlines()
    for number, line in enumerate(takewhile(lambda line: line.lstrip().startswith(("#", "//")), lines), 1):
        if syntax := _SYNTAX.match(line):
            yield number, syntax[1]
    shebang = bool(lines) and lines[0].startswith("#!")
    try:
        document, _ = json.JSONDecoder().raw_decode("\n".join(lines[shebang:]).lstrip())
    except ValueError:
        return
    if isinstance(document, dict) and isinstance(document.get("syntax"), str):
        yield 1 + shebang, document["syntax"]


def _taken(stage: Stage) -> Iterator[tuple[Instruction, str]]:
    """The images that a stage names, without the stages that it names by number."""
    yield stage.start, stage.image
    for instruction in stage.instructions:
        sources = [mount.get("from") for mount in instruction.mounts()]
        if instruction.name in ("COPY", "ADD"):
            sources.append(instruction.flag("from"))
        for source in filter(None, sources):
            if not (source.isdigit() and int(source) < stage.number):
                yield instruction, source


def _setter(image: str, stage: Stage, at: Instruction, dockerfile: Dockerfile) -> tuple[int, str | None] | None:
    """The line and the value of the ARG or ENV that an image is taken from whole."""
    variable = _VARIABLE.fullmatch(image)
    name = variable[1] or variable[2] if variable else ""
    instruction = dockerfile.setters(stage, at).get(name)
    return (instruction.line, dict(instruction.assigned)[name]) if instruction else None


def _is_known(resolved: str, stage: Stage, dockerfile: Dockerfile) -> bool:
    """Whether an image is fixed: by a digest, or by being built here."""
    return (
        resolved == "scratch"
        or dockerfile.earlier(stage, resolved) is not None
        or resolved.startswith(OUR_IMAGES)
        or bool(_DIGEST.search(resolved) or _GIVEN_DIGEST.search(resolved))
    )


class _Excuses:
    """The comments `# unresolved: REASON` right above an instruction: each excuses one image."""

    def __init__(self, dockerfile: Dockerfile) -> None:
        self._lines = dockerfile.text.splitlines()
        self._taken: dict[int, str] = {}

    def take(self, line: int, image: str) -> bool:
        """Whether the comment above a line excuses an image, and no other one yet."""
        above = takewhile(_is_comment, reversed(self._lines[: max(line - 1, 0)]))
        return any(map(_REASON.match, above)) and self._taken.setdefault(line, image) == image


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")
