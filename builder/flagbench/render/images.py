"""The images that a Dockerfile takes from outside: by FROM, COPY --from, RUN --mount and the syntax directive."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flagbench.images import LOCAL
from flagbench.render.dockerfile import Dockerfile, Instruction, Stage
from flagbench.render.shell import expand

OUR_IMAGES = f"{LOCAL}/"
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
# A digest that is given when the image is built.
_GIVEN_DIGEST = re.compile(r"@\$(?:\w+|\{\w+\})$|@sha256:\$(?:\w+|\{\w+\})$")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_SYNTAX = re.compile(r"#\s*syntax\s*=\s*(\S+)", re.IGNORECASE)


def foreign_images(dockerfile: Dockerfile) -> Iterator[tuple[int, str]]:
    """The line and the name of each image from outside that has no digest and is not said to be unresolved."""
    # BuildKit reads a directive in the first lines only, before anything else.
    for number, line in enumerate(dockerfile.text.splitlines(), 1):
        if not line.startswith("#"):
            break
        if (syntax := _SYNTAX.match(line)) and not _DIGEST.search(syntax[1]):
            yield number, f"the frontend {syntax[1]} has no digest"
    excused = _excused(dockerfile)
    for stage in dockerfile.stages:
        if not stage.image:
            yield stage.start.line, "FROM names no image"
        elif not _is_known(stage.image, stage, dockerfile, excused) and stage.start.line not in excused:
            yield stage.start.line, f"{expand(stage.image, dockerfile.defaults)} has no digest"
        for instruction in stage.instructions:
            for source in _sources(instruction):
                if _is_earlier(source, stage, dockerfile) or instruction.line in excused:
                    continue
                if not _is_known(source, stage, dockerfile, excused):
                    yield instruction.line, f"{expand(source, dockerfile.defaults)} has no digest"


def _sources(instruction: Instruction) -> Iterator[str]:
    if instruction.name in ("COPY", "ADD") and (source := instruction.flag("from")):
        yield source
    if instruction.name == "RUN":
        yield from (mount["from"] for mount in instruction.mounts() if mount.get("from"))


def _is_earlier(source: str, stage: Stage, dockerfile: Dockerfile) -> bool:
    """Whether --from names a stage before this one, by name or by number."""
    by_number = source.isdigit() and int(source) < stage.number
    return by_number or dockerfile.earlier(stage, source) is not None


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
    found = set()
    for instruction in dockerfile.instructions:
        line = instruction.line - 1
        while line in dockerfile.comments:
            if dockerfile.comments[line].startswith("unresolved:"):
                found.add(instruction.line)
            line -= 1
    return found
