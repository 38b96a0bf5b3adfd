"""Images with both tiers: one of them, or every stack with the cases that it runs, and the committed Dockerfiles."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.images.lockfile import Lock, read_lock, requirements_file
from flagbench.images.render.case import read_code, render_case
from flagbench.images.render.directory import Rendered
from flagbench.images.render.stack import render_stack
from flagbench.images.render.templates import Templates, image_packages, images_root
from flagbench.manifests.compile import committed_text, find_stale, write_stale
from flagbench.manifests.lookup import get_stack, require_base, resolve_image
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import Stack

_FILES = ("rendered/*/requirements.txt", "rendered/*/*/Dockerfile")


@dataclass(frozen=True)
class ImageTarget:
    """An image: a case on a stack, or the stack alone."""

    case: Case | None
    stack: Stack

    @property
    def name(self) -> str:
        """`case:stack`, or the stack's name."""
        return self.stack.name if self.case is None else f"{self.case.name}:{self.stack.name}"


def find_target(name: str, catalog: Catalog) -> ImageTarget:
    """What `case:stack`, or a stack's name or alias, stands for. Raises UnknownNameError (usage)."""
    if name in catalog.cases:
        resolve_image(name, catalog)  # says how an image is written
    target = (
        ImageTarget(*resolve_image(name, catalog)) if ":" in name else ImageTarget(None, get_stack(name, catalog))
    )
    require_base(target.stack)
    return target


class ImageRenderer:
    """Renders the images of a catalog; a user's template goes to the tier that it extends."""

    def __init__(self, catalog: Catalog, template: Path | None = None) -> None:
        """Raises FlagbenchError (usage, or build failed) for a template that cannot be used."""
        self.catalog = catalog
        self._template = template
        self._images = images_root(catalog)
        self._templates = Templates(self._images, template)
        self._code = read_code(*image_packages(catalog))
        self._locks: dict[str, Lock] = {}

    def lock(self, stack: Stack) -> Lock:
        """The stack's lock, read once. Raises FlagbenchError (usage) where it is missing, malformed or stale."""
        if stack.name not in self._locks:
            self._locks[stack.name] = read_lock(stack, self._images)
        return self._locks[stack.name]

    def stack(self, stack: Stack) -> Rendered:
        """The heavy tier."""
        return render_stack(stack, self.lock(stack), self._templates)

    def case(self, case: Case, stack: Stack, stack_rendered: Rendered) -> Rendered:
        """The thin tier, on a stack's."""
        return render_case(case, stack, stack_rendered, self.lock(stack), self._code, self._templates)

    def tiers(self, target: ImageTarget) -> dict[str, Rendered]:
        """The tiers of an image, by the folder that each is written to."""
        heavy = self.stack(target.stack)
        if target.case is None:
            return {"stack": heavy}
        return {"stack": heavy, target.case.name: self.case(target.case, target.stack, heavy)}

    def matrix(self) -> Iterator[Rendered]:
        """Every stack, each followed by the cases it runs, by name."""
        for _, stack in sorted((name, stack) for name, stack in self.catalog.stacks.items() if stack.base):
            heavy = self.stack(stack)
            yield heavy
            for name in stack.runs:
                yield self.case(self.catalog.cases[name], stack, heavy)

    def differences(self) -> dict[str, str]:
        """Committed files that differ from today's, are missing or left over: by path a unified diff.

        Paths are relative to images/; the diff is from the committed file to today's. Raises FlagbenchError (usage)
        outside a checkout.
        """
        images = self.committed_images
        stale = find_stale(images, self._committed(), _FILES)
        return {path: _diff(path, committed_text(images / path) or "", text or "") for path, text in stale.items()}

    def refresh(self) -> list[str]:
        """Bring the committed files up to date; returns the paths that were written or removed.

        Raises FlagbenchError (usage) outside a checkout, or with a user's template.
        """
        if self._template is not None:
            raise FlagbenchError(
                "a template of your own is not what is committed", remedy="write its images elsewhere with -o DIR"
            )
        images = self.committed_images
        return write_stale(images, find_stale(images, self._committed(), _FILES))

    @property
    def committed_images(self) -> Path:
        """The images/ folder beside the manifests. Raises FlagbenchError (usage) outside a checkout."""
        images = self.catalog.root.parent / "images"
        if not images.is_dir():
            raise FlagbenchError(
                f"{self.catalog.root} is not in a checkout: there is no {images}",
                remedy="run this in a checkout of flagbench, or write the images elsewhere with -o DIR",
            )
        return images

    def _committed(self) -> dict[str, str]:
        """Every file by path: of each stack the lock as a requirements file, of each image the Dockerfile."""
        stacks = [stack for stack in self.catalog.stacks.values() if stack.base]
        files = {
            f"rendered/{stack.name}/requirements.txt": requirements_file(stack, self.lock(stack)) for stack in stacks
        }
        return files | {f"rendered/{image.folder}/Dockerfile": image.dockerfile for image in self.matrix()}


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"committed/{path}", f"rendered/{path}"
    )
    # The last line of a file may end without a newline.
    return "".join(line.removesuffix("\n") + "\n" for line in lines)
