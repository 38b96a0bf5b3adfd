"""A stack's lock as data, and the requirements files for pip, which mostly cannot read pylock.toml."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from flagbench.manifests.model import Stack

NO_BASE = "none"
"""The name of the base in a stack without a public one."""


def canonical(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return canonicalize_name(name)


@dataclass(frozen=True)
class LockEntry:
    """One package at one version, and the files of it that may be installed."""

    name: str
    """Canonical."""
    version: str
    hashes: tuple[str, ...] = ()
    """`sha256:<64 hex>` of each file, sorted."""
    table: str = field(default="", compare=False, repr=False)
    """The `[[packages]]` table that uv wrote, with the addresses of the files."""

    @property
    def pin(self) -> str:
        """`name==version`."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Unresolved(LockEntry):
    """A package whose files could not be listed when the lock was made, so that their hashes are unknown."""

    reason: str = field(kw_only=True)


@dataclass(frozen=True)
class Lock:
    """Every package of a stack's image that is not part of its base, and the base itself."""

    stack: str
    python: str
    """Minor version, such as 3.11."""
    base_image: str | None
    """Without a digest. None: no public base exists; it is named with --base."""
    base_digest: str | None
    """`sha256:<64 hex>` of the base's manifest; of the image itself where `base_image` is None. None: unresolved."""
    inputs: str
    """`sha256:<64 hex>` of what was locked, see `inputs_digest`."""
    entries: tuple[LockEntry, ...]
    """Sorted by name; the packages to compile are among them, with the hash of their source."""
    unresolved: tuple[Unresolved, ...] = ()

    @property
    def digest(self) -> str:
        """`sha256:<64 hex>` of what is locked, however the lock file writes it."""
        text = self.header + self.hashed_requirements() + self.comments
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    @property
    def header(self) -> str:
        """What a requirements file says first, in comments."""
        lines = [
            f"# Made by `flagbench lock {self.stack}`. Do not edit.",
            f"# stack: {self.stack}",
            f"# python: {self.python}",
            f"# base: {self.base_image or NO_BASE}@{self.base_digest or 'unresolved'}",
            f"# inputs: {self.inputs}",
        ]
        return "\n".join(lines) + "\n"

    @property
    def comments(self) -> str:
        """What a requirements file says last: the unresolved packages."""
        return "".join(f"# unresolved: {entry.pin} ({entry.reason})\n" for entry in self.unresolved)

    def hashed_requirements(self) -> str:
        """For `pip install --no-deps --require-hashes -r`: the locked packages."""
        return "".join(
            " \\\n    ".join([entry.pin, *(f"--hash={digest}" for digest in entry.hashes)]) + "\n"
            for entry in self.entries
        )

    def unhashed_requirements(self) -> str:
        """For `pip install --no-deps -r`: the unresolved packages."""
        return "".join(f"{entry.pin}\n" for entry in self.unresolved)


def part_of(lock: Lock, names: Collection[str]) -> Lock:
    """The lock with only the packages of these canonical names: what one tier of an image installs."""
    return replace(
        lock,
        entries=tuple(entry for entry in lock.entries if entry.name in names),
        unresolved=tuple(entry for entry in lock.unresolved if entry.name in names),
    )


def requirements_file(stack: Stack, lock: Lock) -> str:
    """The lock for `pip download --require-hashes -r`: the wheels for the stack's Python.

    In comments stand the packages that this command cannot take along, and the unresolved ones.
    """
    apart = {canonical(package.name): "to compile" for package in stack.build.compiled}
    apart |= {canonical(package.name): f"for Python {package.python}" for package in stack.build.other_python}
    wheels = part_of(lock, {entry.name for entry in lock.entries} - apart.keys()).hashed_requirements()
    others = "".join(f"# {apart[entry.name]}: {entry.pin}\n" for entry in lock.entries if entry.name in apart)
    return lock.header + wheels + others + lock.comments


def inputs_digest(stack: Stack) -> str:
    """`sha256:<64 hex>` over the part of a stack's manifest that determines its lock, except the base.

    Neither the order of packages nor the environment of a compilation counts.
    """
    build = stack.build
    inputs: dict[str, object] = {
        "python": stack.python,
        "platform": stack.platform,
        # One lock has every package that any image of the stack may install.
        "packages": sorted((*build.packages, *build.optional)),
        "compiled": sorted(f"{package.name}=={package.version}" for package in build.compiled),
        "from_base": sorted(build.from_base),
        # Their order counts: indexes are asked in it.
        "indexes": list(build.indexes),
    }
    if build.other_python:
        inputs["other_python"] = sorted(f"{each.name}=={each.version}, {each.python}" for each in build.other_python)
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
