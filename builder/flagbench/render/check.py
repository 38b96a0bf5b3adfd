"""The committed Dockerfiles against what the templates and manifests say: written again, or compared."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flagbench.render.model import Rendered

FOLDER = "rendered"


@dataclass(frozen=True)
class Difference:
    """A committed Dockerfile that is not what is rendered today."""

    path: str
    """Relative to images/."""
    diff: str
    """Unified: from the committed file to today's; of a missing or a left-over file, the whole."""


def committed_path(rendered: Rendered) -> str:
    """Where an image's Dockerfile is committed, relative to images/: `rendered/STACK/stack|CASE/Dockerfile`."""
    tier, _, stack = rendered.name.partition("/")
    if tier == "stack":
        return f"{FOLDER}/{stack}/stack/Dockerfile"
    return f"{FOLDER}/{stack}/{tier}/Dockerfile"


def differences(matrix: Iterable[Rendered], images: Path) -> list[Difference]:
    """Every committed Dockerfile under `images` that differs from the matrix, is missing or has no image, by path."""
    wanted = {committed_path(rendered): rendered.dockerfile for rendered in matrix}
    found = {path.relative_to(images).as_posix() for path in (images / FOLDER).glob("*/*/Dockerfile")}
    return [
        Difference(path, diff)
        for path in sorted({*wanted, *found})
        if (diff := _diff(path, _text(images / path), wanted.get(path, "")))
    ]


def refresh(matrix: Iterable[Rendered], images: Path) -> list[str]:
    """Bring the committed Dockerfiles up to date; returns the paths that were written or removed."""
    wanted = {committed_path(rendered): rendered.dockerfile for rendered in matrix}
    changed = [
        path for path in sorted(wanted) if _text(images / path) != wanted[path] or not (images / path).is_file()
    ]
    for name in changed:
        path = images / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(".Dockerfile.new")
        scratch.write_text(wanted[name], encoding="utf-8")
        scratch.replace(path)
    for path in sorted((images / FOLDER).glob("*/*/Dockerfile")):
        name = path.relative_to(images).as_posix()
        if name not in wanted:
            path.unlink()
            changed.append(name)
            for folder in (path.parent, path.parent.parent):
                if not any(folder.iterdir()):
                    folder.rmdir()
    return changed


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"committed/{path}", f"rendered/{path}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
