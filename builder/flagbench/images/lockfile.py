"""A stack's lock as data, its file, and the requirements files for pip, which mostly cannot read pylock.toml.

The file has the packages as uv wrote them (pylock.toml, PEP 751), and a table of ours. It is read strictly: values
end up in a Dockerfile and on pip's command line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec.toml
from packaging.utils import canonicalize_name

from flagbench.errors import FlagbenchError
from flagbench.image_reference import DIGEST, find_reference
from flagbench.system.files import read_text, reason, write_atomically

if TYPE_CHECKING:
    from flagbench.manifests.stack import Stack


NO_BASE = "none"
"""The name of the base in a stack without a public one."""
UNKNOWN_SOURCE = "not known"
"""The source of a digest that a person gave without naming its source."""
SHA256 = re.compile(DIGEST)
_TABLE = re.compile(r"(?ms)^\[\[packages\]\]$.*?(?=^\[|\Z)")
_Digest = Annotated[str, msgspec.Meta(pattern=rf"^{DIGEST}\Z")]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*\Z")]
_Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9][0-9A-Za-z.!+]*\Z")]
_Line = Annotated[str, msgspec.Meta(pattern=r"^[^\r\n]+\Z")]


def canonical(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return canonicalize_name(name)


class DigestOf(str, Enum):
    """What the digest of a base is of."""

    IMAGE = "image"
    """The manifest of one image."""
    INDEX = "index"
    """A list of images, one for each platform."""


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
    base_digest_of: DigestOf | None = None
    """None: not known, or no digest."""
    base_digest_source: str | None = None
    """The address of who states the base's digest, or UNKNOWN_SOURCE. None: its registry, or the stack's manifest."""

    @property
    def digest(self) -> str:
        """`sha256:<64 hex>` of the locked packages, independent of the format of the lock file."""
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


def select_packages(lock: Lock, names: Collection[str]) -> Lock:
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
    wheels = select_packages(lock, {entry.name for entry in lock.entries} - apart.keys()).hashed_requirements()
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
        packages = build.other_python
        inputs["other_python"] = sorted(
            f"{package.name}=={package.version}, {package.python}" for package in packages
        )
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class _File(msgspec.Struct):
    hashes: dict[str, str] = {}


class _Package(msgspec.Struct):
    name: _Name
    version: _Version
    wheels: list[_File] = []
    sdist: _File | None = None


class _Packages(msgspec.Struct):
    packages: list[_Package] = []


class _Unresolved(msgspec.Struct):
    name: _Name
    version: _Version
    reason: _Line


class _Own(msgspec.Struct, rename="kebab"):
    """`[tool.flagbench]`: what a pylock.toml has no place for."""

    inputs: _Digest
    base: str | None = None
    base_digest: _Digest | None = None
    base_digest_of: DigestOf | None = None
    base_digest_source: _Line | None = None
    unresolved: list[_Unresolved] = []


class _Tool(msgspec.Struct):
    flagbench: _Own


class _Pylock(msgspec.Struct):
    tool: _Tool


def lock_path(stack: str, images: Path) -> Path:
    """The lock file of a stack in an images folder; NAME of pylock.NAME.toml has dashes for dots."""
    return images / "locks" / f"pylock.{stack.replace('.', '-')}.toml"


def read_lock(stack: Stack, images: Path) -> Lock:
    """The lock of a stack, checked against the stack's manifest.

    Raises FlagbenchError (usage): it is missing, malformed, or made for another manifest.
    """
    path, remedy = lock_path(stack.name, images), f"lock the stack with `flagbench lock {stack.name}`"
    lock = load_lock(stack, images)
    if lock is None:
        raise FlagbenchError(f"the stack {stack.name} has no lock: there is no {path}", remedy=remedy)
    if stale := is_stale(lock, stack):
        raise FlagbenchError(f"the lock {path} is stale: {stale}", remedy=remedy)
    return lock


def load_lock(stack: Stack, images: Path) -> Lock | None:
    """The lock of a stack, even if it is stale; None if there is no file.

    Raises FlagbenchError (usage): the file cannot be read, or is malformed.
    """
    path = lock_path(stack.name, images)
    try:
        return parse_lock(read_text(path), stack)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FlagbenchError(
            f"the lock {path} cannot be read: {error}",
            remedy="a lock is not edited by hand: `git checkout` it, or write a new one with `flagbench lock "
            f"{stack.name} --upgrade`",
        ) from None


def parse_lock(text: str, stack: Stack) -> Lock:
    """The lock of a stack in the text of its file. Raises ValueError."""
    table = msgspec.toml.decode(text, type=_Pylock).tool.flagbench
    return Lock(
        stack=stack.name,
        python=stack.python,
        base_image=table.base,
        base_digest=table.base_digest,
        inputs=table.inputs,
        entries=parse_packages(text),
        unresolved=tuple(Unresolved(pin.name, pin.version, reason=pin.reason) for pin in table.unresolved),
        base_digest_of=table.base_digest_of,
        base_digest_source=table.base_digest_source,
    )


def parse_packages(text: str) -> tuple[LockEntry, ...]:
    """The packages of a pylock.toml, sorted by name. Raises ValueError."""
    packages = msgspec.toml.decode(text, type=_Packages).packages
    entries = []
    for package, table in zip(packages, _TABLE.findall(text), strict=True):
        digests = {f"sha256:{file.hashes.get('sha256')}" for file in (*package.wheels, package.sdist) if file}
        if not digests or not all(map(SHA256.fullmatch, digests)):
            raise ValueError(f"not every file of {package.name} has its sha256")
        entries.append(LockEntry(package.name, package.version, tuple(sorted(digests)), table.strip()))
    return tuple(sorted(entries, key=attrgetter("name")))


def is_stale(lock: Lock, stack: Stack) -> str | None:
    """Why a lock no longer fits a stack's manifest, or None if it fits."""
    image, digest = stated_base(stack)
    if lock.base_image != image:
        return f"its base is {lock.base_image or NO_BASE}, the manifest says {image or NO_BASE}"
    if digest not in (None, lock.base_digest):
        return f"its base has the digest {lock.base_digest or 'unresolved'}, the manifest says {digest}"
    if lock.inputs != inputs_digest(stack):
        return "Python, platform, packages or indexes in the manifest changed since it was made"
    return None


def stated_base(stack: Stack) -> tuple[str | None, str | None]:
    """The name and the digest of the base in a stack's manifest; None for what it does not say.

    Raises FlagbenchError (usage) if it is not an image reference.
    """
    if stack.base_image is None:
        return None, None
    reference = find_reference(stack.base_image)
    if reference is None:
        raise FlagbenchError(
            f"base.image of {stack.name}, {stack.base_image!r}, is not an image reference",
            remedy=f"correct {stack.path}; write it like registry.example/base:1",
        )
    return reference.tagged, reference.digest


def write_lock(lock: Lock, images: Path) -> bool:
    """Write a lock atomically where `read_lock` looks for it; returns whether the file changed.

    Raises FlagbenchError (usage) if the folder cannot be written.
    """
    path, content = lock_path(lock.stack, images), _dump(lock).encode()
    try:
        if path.is_file() and path.read_bytes() == content:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise FlagbenchError(
            f"the lock {path} cannot be written: {reason(error)}",
            remedy="run the command where flagbench's images folder can be written, for example in a checkout",
        ) from None
    return True


def _dump(lock: Lock) -> str:
    head = [
        f"# Made by `flagbench lock {lock.stack}` with `uv pip compile`. Do not edit.",
        'lock-version = "1.0"',
        'created-by = "uv"',
        f'requires-python = "=={lock.python}.*"',
    ]
    settings = {
        "inputs": lock.inputs,
        "base": lock.base_image,
        "base-digest": lock.base_digest,
        "base-digest-of": lock.base_digest_of,
        "base-digest-source": lock.base_digest_source,
    }
    tables = [_table("[tool.flagbench]", settings)]
    for pin in lock.unresolved:
        keys = {"name": pin.name, "version": pin.version, "reason": pin.reason}
        tables.append(_table("[[tool.flagbench.unresolved]]", keys))
    return "\n\n".join(["\n".join(head), *(entry.table for entry in lock.entries), *tables]) + "\n"


def _table(header: str, values: Mapping[str, str | None]) -> str:
    lines = [header]
    for key, value in values.items():
        if value:
            # A JSON string of ASCII is a TOML basic string.
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines)
