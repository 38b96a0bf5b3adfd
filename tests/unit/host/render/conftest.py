"""What tests of rendering share: the catalog, a stack with every feature, and locks made up for a stack."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Catalog, Stack
from flagbench.locks.model import Lock, LockEntry, Unresolved, canonical, inputs_digest
from flagbench.render.model import Rendered
from flagbench.render.roots import shipped_images
from flagbench.render.stack import render_stack
from flagbench.render.templates import Templates

HASH = "sha256:" + "a" * 64
DIGEST = "sha256:" + "d" * 64


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The shipped manifests."""
    return load_catalog()


@pytest.fixture(scope="session")
def images() -> Path:
    """The shipped images/ folder."""
    return shipped_images()


@pytest.fixture(scope="session")
def full(catalog: Catalog) -> Stack:
    """A stack that uses every feature of the template at once."""
    stack = catalog.stacks["a100-cuda11.8"]
    build = replace(
        stack.build,
        apt=("libaio-dev",),
        left_out={"apex": "its kernels are in torch by now"},
        env={"NCCL_DEBUG": "WARN"},
        indexes=("https://download.pytorch.org/whl/cu118",),
    )
    return replace(stack, build=build)


def lock_of(
    stack: Stack, *, digest: str | None = DIGEST, unresolved: tuple[str, ...] = (), extra: tuple[str, ...] = ()
) -> Lock:
    """A lock of what a stack's manifest names, without what that needs in turn."""
    pins = dict(
        re.sub(r"\[.*\]", "", pin).split("==") for pin in (*stack.build.packages, *stack.build.optional, *extra)
    )
    pins |= {package.name: package.version for package in stack.build.compiled}
    pins = {canonical(name): version for name, version in sorted(pins.items(), key=lambda pin: canonical(pin[0]))}
    return Lock(
        stack.name,
        stack.python,
        stack.base_image,
        digest,
        inputs_digest(stack),
        tuple(LockEntry(name, version, (HASH,)) for name, version in pins.items() if name not in unresolved),
        tuple(Unresolved(name, pins[name], reason="its index could not be reached") for name in unresolved),
    )


@pytest.fixture(scope="session")
def make_lock() -> Callable[..., Lock]:
    """Makes a lock up for a stack."""
    return lock_of


@pytest.fixture(scope="session")
def stack_image(images: Path) -> Callable[..., Rendered]:
    """Renders a stack, with a lock made up for it and perhaps a template."""

    def render(stack: Stack, template: Path | None = None, **lock: Any) -> Rendered:
        return render_stack(stack, lock_of(stack, **lock), Templates(images, template))

    return render
