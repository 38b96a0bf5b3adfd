"""The images that a Dockerfile takes from outside: by FROM, COPY --from, RUN --mount and the syntax directive."""

from __future__ import annotations

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
_SYNTAX = re.compile(r"#\s*syntax\s*=\s*(\S+)", re.IGNORECASE)


def pinned_image(dockerfile: Dockerfile) -> Iterator[tuple[int, str]]:
    """A tag moves, and the image with it. What a Dockerfile takes from outside has its digest, is built here, or says
    in the comment above that it is unresolved."""
    # BuildKit reads a directive in the first lines only, before anything else.
    for number, line in enumerate(takewhile(_is_comment, dockerfile.text.splitlines()), 1):
        if (syntax := _SYNTAX.match(line)) and not _DIGEST.search(syntax[1]):
            yield number, f"the frontend {syntax[1]} has no digest"
    excused = _excused(dockerfile)
    for stage in dockerfile.stages:
        for instruction, image in _taken(stage):
            if instruction.line not in excused and not _is_known(image, stage, dockerfile, excused):
                yield instruction.line, f"{expand(image, dockerfile.defaults) or 'FROM'} has no digest"


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


def _is_known(image: str, stage: Stage, dockerfile: Dockerfile, excused: set[int]) -> bool:
    """Whether an image is fixed: by a digest, by being built here, by its build argument."""
    if variable := _VARIABLE.fullmatch(image):
        name = variable[1] or variable[2]
        argument = dockerfile.global_arguments.get(name)
        # An argument without a default is given when the image is built.
        if argument is not None and (argument.line in excused or dict(argument.assigned)[name] is None):
            return True
    resolved = expand(image, dockerfile.defaults)
    return (
        resolved == "scratch"
        or dockerfile.earlier(stage, resolved) is not None
        or resolved.startswith(OUR_IMAGES)
        or bool(_DIGEST.search(resolved) or _GIVEN_DIGEST.search(resolved))
    )


def _excused(dockerfile: Dockerfile) -> set[int]:
    """The lines of instructions right below a comment `# unresolved: REASON`: one comment excuses one image."""
    lines = dockerfile.text.splitlines()
    found = set()
    for instruction in dockerfile.instructions:
        above = takewhile(_is_comment, reversed(lines[: instruction.line - 1]))
        if any(line.lstrip("# \t").startswith("unresolved:") for line in above):
            found.add(instruction.line)
    return found


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")
