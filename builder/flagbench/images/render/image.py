"""Renders images: one of them, or all stacks with their cases, and compares them with the committed files.

An image has a tier of its stack and, unless it is the stack's image, a tier of its case on it; each has a build
directory. `flagbench render` and `flagbench build` use `ImageRenderer`. The Dockerfile of every image is committed
under images/rendered, so that a review shows what a change does to images.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.images.lockfile import Lock, read_lock, requirements_file
from flagbench.images.render.case import read_code, render_case
from flagbench.images.render.directory import BuildDirectory
from flagbench.images.render.stack import render_stack
from flagbench.images.render.templates import Templates, image_packages, images_root
from flagbench.manifests.compile import committed_text, find_stale, write_stale
from flagbench.manifests.lookup import get_stack, missing_module, require_base, require_image, resolve_image
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import Stack

_COMMITTED_PATTERNS = ("rendered/*/requirements.txt", "rendered/*/*/Dockerfile")
"""Patterns of the committed files, below images/."""


@dataclass(frozen=True)
class ImageTarget:
    """An image to render: a case on a stack, or the stack alone."""

    case: Case | None
    """None: the image of the stack alone."""
    stack: Stack

    @property
    def name(self) -> str:
        """`case:stack`, or the stack's name."""
        if self.case is None:
            return self.stack.name
        return f"{self.case.name}:{self.stack.name}"


def find_target(name: str, catalog: Catalog) -> ImageTarget:
    """Find the image that `case:stack`, or a stack's name or alias, names.

    Raises UnknownNameError (USAGE) if there is none, or if the stack has no images.
    """
    # A case alone is not the name of an image either; `resolve_image` raises the error that says how to write one.
    if ":" in name or name in catalog.cases:
        case, stack = resolve_image(name, catalog)
        require_image(case, stack)
        return ImageTarget(case, stack)
    stack = get_stack(name, catalog)
    require_base(stack)
    return ImageTarget(None, stack)


class ImageRenderer:
    """Renders the images of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        """Read the code that images contain."""
        self.catalog = catalog
        self._images = images_root(catalog)
        self._templates = Templates(self._images)
        self._code = read_code(*image_packages(catalog))
        self._locks: dict[str, Lock] = {}

    def find_lock(self, stack: Stack) -> Lock:
        """Return the stack's lock, which is read the first time.

        Raises FlagbenchError (USAGE) if it is missing, malformed or stale.
        """
        if stack.name not in self._locks:
            self._locks[stack.name] = read_lock(stack, self._images)
        return self._locks[stack.name]

    def render_stack(self, stack: Stack) -> BuildDirectory:
        """Render the tier of a stack."""
        return render_stack(stack, self.find_lock(stack), self._templates)

    def render_case(self, case: Case, stack: Stack, stack_directory: BuildDirectory) -> BuildDirectory:
        """Render the tier of a case on a stack, whose tier is rendered already."""
        return render_case(case, stack, stack_directory, self.find_lock(stack), self._code, self._templates)

    def render_tiers(self, target: ImageTarget) -> dict[str, BuildDirectory]:
        """Render the tiers of an image, by the folder that each is written to."""
        stack_directory = self.render_stack(target.stack)
        tiers = {"stack": stack_directory}
        if target.case is not None:
            tiers[target.case.name] = self.render_case(target.case, target.stack, stack_directory)
        return tiers

    def render_matrix(self) -> Iterator[BuildDirectory]:
        """Render every stack that has images, by name, each followed by the cases that have an image on it."""
        for _, stack in sorted(self.catalog.stacks.items()):
            if stack.base is None:
                continue
            stack_directory = self.render_stack(stack)
            yield stack_directory
            for name in stack.runs:
                case = self.catalog.cases[name]
                if missing_module(case, stack) is None:
                    yield self.render_case(case, stack, stack_directory)

    def find_differences(self) -> dict[str, str]:
        """Find committed files that differ from those that are rendered now, are missing or left over.

        Returns a unified diff from the committed file to the rendered one, by path relative to images/.

        Raises FlagbenchError (USAGE) outside a checkout.
        """
        images = self.committed_folder()
        stale = find_stale(images, self._render_committed(), _COMMITTED_PATTERNS)
        return {path: _diff(path, committed_text(images / path) or "", text or "") for path, text in stale.items()}

    def refresh(self) -> list[str]:
        """Bring the committed files up to date; returns the paths that were written or removed.

        Raises FlagbenchError (USAGE) outside a checkout.
        """
        images = self.committed_folder()
        return write_stale(images, find_stale(images, self._render_committed(), _COMMITTED_PATTERNS))

    def committed_folder(self) -> Path:
        """Return the images/ folder next to the manifests. Raises FlagbenchError (USAGE) outside a checkout."""
        images = self.catalog.root.parent / "images"
        if not images.is_dir():
            raise FlagbenchError(
                f"{self.catalog.root} is not in a checkout: there is no {images}",
                remedy="run this in a checkout of flagbench, or write the images elsewhere with -o DIR",
            )
        return images

    def _render_committed(self) -> dict[str, str]:
        """Render every committed file, by path: a Dockerfile for each image, a requirements file for each stack."""
        files: dict[str, str] = {}
        for stack in self.catalog.stacks.values():
            if stack.base is not None:
                path = f"rendered/{stack.name}/requirements.txt"
                files[path] = requirements_file(stack, self.find_lock(stack))
        for directory in self.render_matrix():
            files[f"rendered/{directory.folder}/Dockerfile"] = directory.dockerfile
        return files


def _diff(path: str, old: str, new: str) -> str:
    """Format a unified diff of two texts of one file."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"committed/{path}", f"rendered/{path}"
    )
    # A file may end without a newline; its last line gets one, so that the next diff starts on a line of its own.
    return "".join(line.removesuffix("\n") + "\n" for line in lines)
