"""The images that a Dockerfile takes from outside: by FROM, COPY --from, RUN --mount and the syntax directive."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import takewhile

from flagbench.images import DIGEST, LOCAL
from flagbench.render.dockerfile import Dockerfile, Instruction
from flagbench.render.shell import expand

OUR_IMAGES = f"{LOCAL}/"
_DIGEST = re.compile(rf"@{DIGEST}$")
# A digest that is given when the image is built.
_GIVEN_DIGEST = re.compile(r"@(?:sha256:)?\$(?:\w+|\{\w+\})$")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_SYNTAX = re.compile(r"(?:#|//)\s*syntax\s*=\s*(\S+)", re.IGNORECASE)
_REASON = re.compile(r"[#\s]*unresolved:\s*\S")


def pinned_image(dockerfile: Dockerfile) -> Iterator[tuple[int, str]]:
    """A tag moves, and the image with it. What a Dockerfile takes from outside has its digest, is built here, or says
    in the comment above that it is unresolved."""
    for line, frontend in _frontends(dockerfile.text):
        if not _DIGEST.search(frontend):
            yield line, f"the frontend {frontend} has no digest"
    above = dockerfile.text.splitlines()
    excused: dict[int, str] = {}
    for instruction, image in _taken(dockerfile):
        resolved = expand(image, instruction.variables)
        if _is_known(resolved, instruction, dockerfile):
            continue
        variable = _VARIABLE.fullmatch(image)
        name = variable[1] if variable else ""
        if name in instruction.variables and instruction.variables[name] is None:
            continue  # An argument without a default is given when the image is built.
        for line in (instruction.line, instruction.setters.get(name, 0)):
            comments = takewhile(lambda text: text.lstrip().startswith("#"), reversed(above[: max(line - 1, 0)]))
            # One comment excuses one image.
            if any(map(_REASON.match, comments)) and excused.setdefault(line, resolved) == resolved:
                break
        else:
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


def _taken(dockerfile: Dockerfile) -> Iterator[tuple[Instruction, str]]:
    """The images that instructions name, without the stages that they name by number."""
    for instruction in dockerfile.instructions:
        if instruction.name == "FROM":
            yield instruction, "".join(instruction.words[:1])
        sources = [mount.get("from") for mount in instruction.mounts()]
        if instruction.name in ("COPY", "ADD"):
            sources.append(instruction.flag("from"))
        for source in filter(None, sources):
            if not (source.isdigit() and int(source) < instruction.stage):
                yield instruction, source


def _is_known(resolved: str, instruction: Instruction, dockerfile: Dockerfile) -> bool:
    """Whether an image is fixed: by a digest, or by being built here."""
    return (
        resolved == "scratch"
        or dockerfile.earlier(instruction.stage, resolved) is not None
        or resolved.startswith(OUR_IMAGES)
        or bool(_DIGEST.search(resolved) or _GIVEN_DIGEST.search(resolved))
    )
