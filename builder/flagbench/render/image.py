"""Whole images, both tiers: one of them, or the matrix of every stack and what it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flagbench.catalog.model import Case, Catalog, Stack
from flagbench.locks.files import read_lock
from flagbench.locks.model import Lock
from flagbench.render.case import read_code, render_case
from flagbench.render.environment import template_tier
from flagbench.render.model import Rendered
from flagbench.render.roots import case_package, images_root
from flagbench.render.stack import render_stack


class ImageRenderer:
    """Renders the images of a catalog; a user's template goes to the tier that it extends."""

    def __init__(self, catalog: Catalog, template: Path | None = None) -> None:
        """Raises FlagbenchError (usage, or build failed) for a template that cannot be used."""
        self.catalog = catalog
        self.images = images_root(catalog)
        self.code = read_code(case_package(catalog))
        self.tier = None if template is None else template_tier(template, self.images)
        self.template = template
        self._locks: dict[str, Lock] = {}

    def lock(self, stack: Stack) -> Lock:
        """The stack's lock, read once. Raises FlagbenchError (usage) where it is missing, malformed or stale."""
        if stack.name not in self._locks:
            self._locks[stack.name] = read_lock(stack, self.images)
        return self._locks[stack.name]

    def stack(self, stack: Stack) -> Rendered:
        """The heavy tier."""
        return render_stack(stack, self.lock(stack), self.images, self._template("stack"))

    def case(self, case: Case, stack: Stack, stack_rendered: Rendered) -> Rendered:
        """The thin tier, on a stack's."""
        return render_case(
            case, stack, stack_rendered, self.lock(stack), self.code, self.images, self._template("case")
        )

    def matrix(self) -> Iterator[Rendered]:
        """Every stack, each followed by the cases it runs, by name."""
        for _, stack in sorted(self.catalog.stacks.items()):
            heavy = self.stack(stack)
            yield heavy
            for name in stack.runs:
                yield self.case(self.catalog.cases[name], stack, heavy)

    def _template(self, tier: str) -> Path | None:
        return self.template if tier == self.tier else None
