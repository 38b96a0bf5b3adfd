"""The committed Dockerfiles and requirements against what templates, manifests and locks say."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from flagbench.render.image import ImageRenderer
from flagbench.render.model import Rendered

FOLDER = "rendered"
_FILES = ("*/requirements.txt", "*/*/Dockerfile")


@dataclass(frozen=True)
class Difference:
    """A committed file that is not what is rendered today."""

    path: str
    """Relative to images/."""
    diff: str
    """Unified: from the committed file to today's; of a missing or a left-over file, the whole."""


def committed_path(rendered: Rendered) -> str:
    """Where an image's Dockerfile is committed, relative to images/: `rendered/STACK/stack|CASE/Dockerfile`."""
    tier, _, stack = rendered.name.partition("/")
    return f"{FOLDER}/{stack}/{tier}/Dockerfile"


def differences(renderer: ImageRenderer, images: Path) -> list[Difference]:
    """Every committed file under `images` that differs from today's, is missing or is left over, by path."""
    wanted = _wanted(renderer)
    return [
        Difference(path, diff)
        for path in sorted({*wanted, *_found(images)})
        if (diff := _diff(path, _text(images / path), wanted.get(path, "")))
    ]


def refresh(renderer: ImageRenderer, images: Path) -> list[str]:
    """Bring the committed files up to date; returns the paths that were written or removed."""
    wanted = _wanted(renderer)
    changed = [
        path for path in sorted(wanted) if _text(images / path) != wanted[path] or not (images / path).is_file()
    ]
    for name in changed:
        path = images / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.new")
        scratch.write_text(wanted[name], encoding="utf-8")
        scratch.replace(path)
    for name in sorted(_found(images) - wanted.keys()):
        path = images / name
        path.unlink()
        changed.append(name)
        for folder in path.relative_to(images / FOLDER).parents[:-1]:
            if not any((images / FOLDER / folder).iterdir()):
                (images / FOLDER / folder).rmdir()
    return changed


def _wanted(renderer: ImageRenderer) -> dict[str, str]:
    """Every file by path: of each stack the lock as a requirements file, of each image the Dockerfile."""
    requirements = {
        f"{FOLDER}/{stack.name}/requirements.txt": renderer.lock(stack).requirements
        for stack in renderer.catalog.stacks.values()
    }
    return requirements | {committed_path(image): image.dockerfile for image in renderer.matrix()}


def _found(images: Path) -> set[str]:
    found = (path for pattern in _FILES for path in (images / FOLDER).glob(pattern))
    return {path.relative_to(images).as_posix() for path in found}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"committed/{path}", f"rendered/{path}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
