"""The committed Dockerfiles and requirements against what templates, manifests and locks say."""

from __future__ import annotations

import difflib
from pathlib import Path

from flagbench.catalog.compile import committed_text, find_stale, write_stale
from flagbench.render.image import ImageRenderer
from flagbench.render.model import Rendered

_FILES = ("rendered/*/requirements.txt", "rendered/*/*/Dockerfile")


def committed_path(rendered: Rendered) -> str:
    """Where an image's Dockerfile is committed, relative to images/: `rendered/STACK/stack|CASE/Dockerfile`."""
    tier, _, stack = rendered.name.partition("/")
    return f"rendered/{stack}/{tier}/Dockerfile"


def differences(renderer: ImageRenderer, images: Path) -> dict[str, str]:
    """Committed files under `images` that differ from today's, are missing or are left over: by path a unified diff.

    Paths are relative to `images`; the diff is from the committed file to today's.
    """
    stale = find_stale(images, _wanted(renderer), _FILES)
    return {path: _diff(path, committed_text(images / path) or "", text or "") for path, text in stale.items()}


def refresh(renderer: ImageRenderer, images: Path) -> list[str]:
    """Bring the committed files up to date; returns the paths that were written or removed."""
    return write_stale(images, find_stale(images, _wanted(renderer), _FILES))


def _wanted(renderer: ImageRenderer) -> dict[str, str]:
    """Every file by path: of each stack the lock as a requirements file, of each image the Dockerfile."""
    requirements = {
        f"rendered/{stack.name}/requirements.txt": renderer.lock(stack).requirements
        for stack in renderer.catalog.stacks.values()
    }
    return requirements | {committed_path(image): image.dockerfile for image in renderer.matrix()}


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"committed/{path}", f"rendered/{path}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
