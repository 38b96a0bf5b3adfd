"""The lock of a stack: its types, its file, and the requirements files that pip installs from.

A lock fixes every package of a stack's image by version and hashes, and the digest of the image's base. `flagbench
lock` makes it (`lock.py`); rendering and building read it. The file is a pylock.toml (PEP 751) with the packages as
uv wrote them, and a table `[tool.flagbench]` of ours. Most versions of pip cannot read it, so images get requirements
files. The file is read strictly: values end up in a Dockerfile and on pip's command line.
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
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec.toml
from packaging.utils import canonicalize_name

from flagbench.errors import FlagbenchError
from flagbench.image_reference import DIGEST, try_parse_reference
from flagbench.system.files import read_text, reason, write_atomically

if TYPE_CHECKING:
    from flagbench.manifests.stack import Stack


NO_BASE = "none"
"""Written in place of the base's name if a stack has no public base."""
UNKNOWN_SOURCE = "not known"
"""Written as the source of a digest if the person who gave it named none."""
SHA256 = re.compile(DIGEST)
_PACKAGES_TABLE = re.compile(r"(?ms)^\[\[packages\]\]$.*?(?=^\[|\Z)")
"""The text of one `[[packages]]` table, up to the next table."""
_Digest = Annotated[str, msgspec.Meta(pattern=rf"^{DIGEST}\Z")]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*\Z")]
_Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9][0-9A-Za-z.!+]*\Z")]
_Line = Annotated[str, msgspec.Meta(pattern=r"^[^\r\n]+\Z")]


def canonical(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return canonicalize_name(name)


class DigestOf(str, Enum):
    """The kind of document that a base's digest identifies."""

    IMAGE = "image"
    """The manifest of one image for one platform."""
    INDEX = "index"
    """A list of images, one for each platform."""


@dataclass(frozen=True)
class LockEntry:
    """One package at one version, with the hashes of the files that may be installed."""

    name: str
    """The canonical name (PEP 503)."""
    version: str
    hashes: tuple[str, ...] = ()
    """`sha256:<64 hex>` of each file, sorted."""
    table: str = field(default="", compare=False, repr=False)
    """The `[[packages]]` table that uv wrote, with the addresses of the files."""

    @property
    def pin(self) -> str:
        """The requirement `name==version`."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Unresolved(LockEntry):
    """A package whose files could not be listed when the lock was made, so that their hashes are unknown."""

    reason: str = field(kw_only=True)
    """Why its files could not be listed, in one line."""


@dataclass(frozen=True)
class Lock:
    """Every package of a stack's image that is not part of its base, and the base itself."""

    stack: str
    python: str
    """The minor version, such as 3.11."""
    base_image: str | None
    """The base's reference without a digest. None: no public base exists, and a build names one with --base."""
    base_digest: str | None
    """`sha256:<64 hex>` of the base's manifest, or of the image itself if `base_image` is None. None: unresolved."""
    inputs: str
    """`sha256:<64 hex>` of the part of the stack's manifest that was locked, see `inputs_digest`."""
    entries: tuple[LockEntry, ...]
    """The packages with known hashes, sorted by name. A package to compile has the hash of its source archive."""
    unresolved: tuple[Unresolved, ...] = ()
    """The packages with unknown hashes, sorted by name."""
    base_digest_of: DigestOf | None = None
    """What `base_digest` identifies; None if that is not known, or if there is no digest."""
    base_digest_source: str | None = None
    """The address of a page that states the base's digest, or UNKNOWN_SOURCE. None: it is from the base's registry or
    the stack's manifest."""
    toolkit: str | None = None
    """The image of the stack's toolkit, with its digest; None if the stack has none."""

    @property
    def digest(self) -> str:
        """`sha256:<64 hex>` of the locked packages, independent of the format of the lock file."""
        text = self.header + self.hashed_requirements() + self.comments
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    @property
    def header(self) -> str:
        """The first lines of a requirements file, all comments."""
        lines = [
            f"# Made by `flagbench lock {self.stack}`. Do not edit.",
            f"# stack: {self.stack}",
            f"# python: {self.python}",
            f"# base: {self.base_image or NO_BASE}@{self.base_digest or 'unresolved'}",
            f"# inputs: {self.inputs}",
        ]
        if self.toolkit is not None:
            lines.insert(4, f"# toolkit: {self.toolkit}")
        return "\n".join(lines) + "\n"

    @property
    def comments(self) -> str:
        """The last lines of a requirements file: a comment for each unresolved package."""
        return "".join(f"# unresolved: {entry.pin} ({entry.reason})\n" for entry in self.unresolved)

    def hashed_requirements(self) -> str:
        """Format the locked packages as a file for `pip install --no-deps --require-hashes -r`."""
        text = ""
        for entry in self.entries:
            hashes = [f"--hash={digest}" for digest in entry.hashes]
            text += " \\\n    ".join([entry.pin, *hashes]) + "\n"
        return text

    def unhashed_requirements(self) -> str:
        """Format the unresolved packages as a file for `pip install --no-deps -r`."""
        return "".join(f"{entry.pin}\n" for entry in self.unresolved)


def select_packages(lock: Lock, names: Collection[str]) -> Lock:
    """Reduce a lock to the packages with these canonical names, such as those that one image installs."""
    return replace(
        lock,
        entries=tuple(entry for entry in lock.entries if entry.name in names),
        unresolved=tuple(entry for entry in lock.unresolved if entry.name in names),
    )


def requirements_file(stack: Stack, lock: Lock) -> str:
    """Format a lock as a file for `pip download --require-hashes -r`, which downloads wheels for the stack's Python.

    Packages that this command cannot download are listed in comments: those to compile, those for another Python, and
    the unresolved ones.
    """
    reasons = {canonical(package.name): "to compile" for package in stack.build.compiled}
    reasons |= {canonical(package.name): f"for Python {package.python}" for package in stack.build.other_python}
    downloadable: set[str] = set()
    excluded = ""
    for entry in lock.entries:
        if entry.name in reasons:
            excluded += f"# {reasons[entry.name]}: {entry.pin}\n"
        else:
            downloadable.add(entry.name)
    wheels = select_packages(lock, downloadable).hashed_requirements()
    return lock.header + wheels + excluded + lock.comments


def inputs_digest(stack: Stack) -> str:
    """Compute the digest of the part of a stack's manifest that determines its lock, without the base.

    Returns `sha256:<64 hex>`. It does not change with the order of packages or the environment of a compilation.
    """
    build = stack.build
    inputs: dict[str, object] = {
        "python": stack.python,
        "platform": stack.platform,
        # One lock has every package that any image of the stack may install.
        "packages": sorted((*build.packages, *build.optional)),
        "compiled": sorted(f"{package.name}=={package.version}" for package in build.compiled),
        "from_base": sorted(build.from_base),
        # Not sorted: uv asks the indexes in this order.
        "indexes": list(build.indexes),
    }
    if build.other_python:
        # Left out if empty, so that the key does not change the digest of stacks without such packages.
        inputs["other_python"] = sorted(
            f"{package.name}=={package.version}, {package.python}" for package in build.other_python
        )
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class _File(msgspec.Struct):
    """A wheel or a source archive in a pylock.toml."""

    hashes: dict[str, str] = {}


class _Package(msgspec.Struct):
    """A `[[packages]]` table, as far as it is read."""

    name: _Name
    version: _Version
    wheels: list[_File] = []
    sdist: _File | None = None


class _PackagesOfPylock(msgspec.Struct):
    """The packages of a pylock.toml, by us or as uv wrote it."""

    packages: list[_Package] = []


class _UnresolvedTable(msgspec.Struct):
    """A `[[tool.flagbench.unresolved]]` table."""

    name: _Name
    version: _Version
    reason: _Line


class _FlagbenchTable(msgspec.Struct, rename="kebab"):
    """The table `[tool.flagbench]`: the fields of a Lock that a pylock.toml has no place for."""

    inputs: _Digest
    base: str | None = None
    base_digest: _Digest | None = None
    base_digest_of: DigestOf | None = None
    base_digest_source: _Line | None = None
    toolkit: _Line | None = None
    unresolved: list[_UnresolvedTable] = []


class _Tool(msgspec.Struct):
    flagbench: _FlagbenchTable


class _Pylock(msgspec.Struct):
    tool: _Tool


def lock_path(stack: str, images: Path) -> Path:
    """Build the path of a stack's lock file in an images folder.

    NAME in pylock.NAME.toml must not have dots (PEP 751), so dashes replace them.
    """
    return images / "locks" / f"pylock.{stack.replace('.', '-')}.toml"


def read_lock(stack: Stack, images: Path) -> Lock:
    """Read the lock of a stack, and check that it fits the stack's manifest.

    Raises FlagbenchError (USAGE) if it is missing, malformed, or made for another state of the manifest.
    """
    path = lock_path(stack.name, images)
    remedy = f"lock the stack with `flagbench lock {stack.name}`"
    lock = load_lock(stack, images)
    if lock is None:
        raise FlagbenchError(f"the stack {stack.name} has no lock: there is no {path}", remedy=remedy)
    staleness = explain_staleness(lock, stack)
    if staleness is not None:
        raise FlagbenchError(f"the lock {path} is stale: {staleness}", remedy=remedy)
    return lock


def load_lock(stack: Stack, images: Path) -> Lock | None:
    """Read the lock of a stack, even if it no longer fits the manifest; None if there is no file.

    Raises FlagbenchError (USAGE) if the file cannot be read, or is malformed.
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
    """Parse the text of a stack's lock file. Raises ValueError if it is malformed."""
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
        toolkit=table.toolkit,
    )


def parse_packages(text: str) -> tuple[LockEntry, ...]:
    """Parse the packages of a pylock.toml; the result is sorted by name.

    Raises ValueError if the text is malformed, or if a file of a package has no sha256.
    """
    packages = msgspec.toml.decode(text, type=_PackagesOfPylock).packages
    entries = []
    for package, table in zip(packages, _PACKAGES_TABLE.findall(text), strict=True):
        files = [*package.wheels]
        if package.sdist is not None:
            files.append(package.sdist)
        digests = {f"sha256:{file.hashes.get('sha256')}" for file in files}
        if not digests or not all(SHA256.fullmatch(digest) for digest in digests):
            raise ValueError(f"not every file of {package.name} has its sha256")
        entries.append(LockEntry(package.name, package.version, tuple(sorted(digests)), table.strip()))
    return tuple(sorted(entries, key=attrgetter("name")))


def explain_staleness(lock: Lock, stack: Stack) -> str | None:
    """Say how a stack's manifest differs from the one that was locked; None if the lock fits."""
    base = read_base(stack)
    if lock.base_image != base.image:
        return f"its base is {lock.base_image or NO_BASE}, the manifest says {base.image or NO_BASE}"
    if base.digest not in (None, lock.base_digest):
        return f"its base has the digest {lock.base_digest or 'unresolved'}, the manifest says {base.digest}"
    if lock.toolkit != read_toolkit(stack):
        return f"its toolkit is from {lock.toolkit}, the manifest says {read_toolkit(stack)}"
    if lock.inputs != inputs_digest(stack):
        return "Python, platform, packages or indexes in the manifest changed since it was made"
    return None


class ManifestBase(NamedTuple):
    """The base of a stack as its manifest names it."""

    image: str | None
    """The reference without a digest; None if the stack has no public base."""
    digest: str | None
    """`sha256:<64 hex>`; None if the manifest does not fix one."""


def read_base(stack: Stack) -> ManifestBase:
    """Split the base's reference in a stack's manifest into name and digest.

    Raises FlagbenchError (USAGE) if it is not an image reference.
    """
    if stack.base_image is None:
        return ManifestBase(None, None)
    reference = try_parse_reference(stack.base_image)
    if reference is None:
        raise FlagbenchError(
            f"base.image of {stack.name}, {stack.base_image!r}, is not an image reference",
            remedy=f"correct {stack.path}; write it like registry.example/base:1",
        )
    return ManifestBase(reference.tagged, reference.digest)


def read_toolkit(stack: Stack) -> str | None:
    """The image of the toolkit in a stack's manifest, with its digest; None if the stack has none."""
    if stack.build.toolkit is None:
        return None
    return stack.build.toolkit.image


def write_lock(lock: Lock, images: Path) -> bool:
    """Write a lock atomically to the file that `read_lock` reads; returns whether the file changed.

    Raises FlagbenchError (USAGE) if the folder cannot be written.
    """
    path = lock_path(lock.stack, images)
    content = _format_lock(lock).encode()
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


def _format_lock(lock: Lock) -> str:
    """Format a lock as the text of its file, a pylock.toml."""
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
        "toolkit": lock.toolkit,
    }
    tables = [_format_table("[tool.flagbench]", settings)]
    for pin in lock.unresolved:
        keys = {"name": pin.name, "version": pin.version, "reason": pin.reason}
        tables.append(_format_table("[[tool.flagbench.unresolved]]", keys))
    return "\n\n".join(["\n".join(head), *(entry.table for entry in lock.entries), *tables]) + "\n"


def _format_table(header: str, values: Mapping[str, str | None]) -> str:
    """Format a TOML table of strings; keys without a value are left out."""
    lines = [header]
    for key, value in values.items():
        if value:
            # A JSON string of ASCII is a TOML basic string.
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines)
