"""The committed Dockerfiles and requirements against what templates, manifests and locks say."""

from __future__ import annotations

import difflib
from pathlib import Path

from flagbench.files import write_atomically
from flagbench.render.image import ImageRenderer
from flagbench.render.model import Rendered

FOLDER = "rendered"
_FILES = ("*/requirements.txt", "*/*/Dockerfile")


def committed_path(rendered: Rendered) -> str:
    """Where an image's Dockerfile is committed, relative to images/: `rendered/STACK/stack|CASE/Dockerfile`."""
    tier, _, stack = rendered.name.partition("/")
    return f"{FOLDER}/{stack}/{tier}/Dockerfile"


def differences(renderer: ImageRenderer, images: Path) -> dict[str, str]:
    """Committed files under `images` that differ from today's, are missing or are left over: by path a unified diff.

    Paths are relative to `images`; the diff is from the committed file to today's.
    """
    return {
        path: _diff(path, _text(images / path) or "", text or "") for path, text in _stale(renderer, images).items()
    }


def refresh(renderer: ImageRenderer, images: Path) -> list[str]:
    """Bring the committed files up to date; returns the paths that were written or removed."""
    stale = _stale(renderer, images)
    for name, text in stale.items():
        path = images / name
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
            continue
        path.unlink()
        for folder in path.relative_to(images / FOLDER).parents[:-1]:
            if not any((images / FOLDER / folder).iterdir()):
                (images / FOLDER / folder).rmdir()
    return list(stale)


def _stale(renderer: ImageRenderer, images: Path) -> dict[str, str | None]:
    """The files that are not what is rendered today, by path, with what they should be: None for a left-over file."""
    wanted = _wanted(renderer)
    found = (path.relative_to(images).as_posix() for pattern in _FILES for path in (images / FOLDER).glob(pattern))
    paths = sorted({*wanted, *found})
    return {path: wanted.get(path) for path in paths if _text(images / path) != wanted.get(path)}


def _wanted(renderer: ImageRenderer) -> dict[str, str]:
    """Every file by path: of each stack the lock as a requirements file, of each image the Dockerfile."""
    requirements = {
        f"{FOLDER}/{stack.name}/requirements.txt": renderer.lock(stack).requirements
        for stack in renderer.catalog.stacks.values()
    }
    return requirements | {committed_path(image): image.dockerfile for image in renderer.matrix()}


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"committed/{path}", f"rendered/{path}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
