"""What tests of rendering share: the catalog, a stack with every feature, made-up locks, and evil values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from flagbench.images.lockfile import Lock, LockEntry, Unresolved, canonical, inputs_digest, read_toolkit
from flagbench.images.render.directory import BuildDirectory
from flagbench.images.render.stack import render_stack
from flagbench.images.render.templates import Templates, shipped_images
from flagbench.manifests.load import load_catalog
from flagbench.manifests.model import Catalog
from flagbench.manifests.stack import Stack

Render = Callable[..., BuildDirectory]
HASH = "sha256:" + "a" * 64
DIGEST = "sha256:" + "d" * 64


def in_build(stack: Stack, **changes: Any) -> Stack:
    """The stack with other values in `build`."""
    return replace(stack, build=replace(stack.build, **changes))


class Instruction(NamedTuple):
    """One instruction of a Dockerfile, its lines joined, without the comments between them."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """As a shell splits them."""
        return shlex.split(self.text)


def instructions(rendered: BuildDirectory, *names: str) -> list[Instruction]:
    """Its instructions, or those of some names, without the digest of the lock, which changes with any value."""
    lines = re.sub(r'(LOCK_DIGEST=)"[^"]*"', r"\1", rendered.dockerfile).split("\n")
    kept = "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))
    joined = re.sub(r"\\[ \t]*\n", "", kept).split("\n")
    # A word that begins so would make the following lines a heredoc.
    assert not any(re.search(r"(?<!\S)\d*<<-?[^<\s]", text) for text in joined if not text.startswith("ENV"))
    every = [Instruction(text.split()[0], text) for text in joined]
    return [i for i in every if not names or i.name in names]


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The shipped manifests."""
    return load_catalog()


@pytest.fixture(scope="session")
def templates() -> Templates:
    """The shipped templates and files."""
    return Templates(shipped_images())


@pytest.fixture(scope="session")
def full(catalog: Catalog) -> Stack:
    """A stack that uses every feature of the template at once."""
    return in_build(
        catalog.stacks["a100-cuda11.8"],
        apt=("libaio-dev",),
        left_out={"apex": "its kernels are in torch by now"},
        env={"NCCL_DEBUG": "WARN"},
        indexes=("https://download.pytorch.org/whl/cu118",),
    )


def lock_of(
    stack: Stack, *, digest: str | None = DIGEST, unresolved: tuple[str, ...] = (), extra: tuple[str, ...] = ()
) -> Lock:
    """A lock of what a stack's manifest names, without what that needs in turn."""
    pins = dict(
        re.sub(r"\[.*\]", "", pin).split("==") for pin in (*stack.build.packages, *stack.build.optional, *extra)
    )
    pins |= {package.name: package.version for package in (*stack.build.compiled, *stack.build.other_python)}
    pins = {canonical(name): version for name, version in sorted(pins.items(), key=lambda pin: canonical(pin[0]))}
    return Lock(
        stack.name,
        stack.python,
        stack.base_image,
        digest,
        inputs_digest(stack),
        tuple(LockEntry(name, version, (HASH,)) for name, version in pins.items() if name not in unresolved),
        tuple(Unresolved(name, pins[name], reason="its index could not be reached") for name in unresolved),
        toolkit=read_toolkit(stack),
    )


@pytest.fixture(scope="session")
def stack_image(templates: Templates) -> Render:
    """Renders a stack, with a lock made up for it."""

    def render(stack: Stack, **lock: Any) -> BuildDirectory:
        return render_stack(stack, lock_of(stack, **lock), templates)

    return render
