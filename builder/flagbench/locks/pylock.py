"""A lock as a pylock.toml (PEP 751), read strictly: its values end up in a Dockerfile and on pip's command line.

The standard requires a URL or a path for each file. Files are named by path: URLs would be those of the mirror behind
which a lock was made, and with its files in one folder (`flagbench wheels`) any installer of the standard can use the
lock. [tool.flagbench] has the values for which the standard has no place.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec.toml
from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock, PylockValidationError
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from flagbench.errors import FlagbenchError
from flagbench.images import DIGEST, find_reference
from flagbench.locks.model import Lock, LockEntry, Unresolved

SHA256 = re.compile(DIGEST)
PIN = re.compile(r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[0-9][0-9A-Za-z.!+]*)")
_STACK = re.compile(r"[a-z0-9][a-z0-9.-]*")
_PYTHON = re.compile(r"3\.\d+")
_REASON = re.compile(r"[^\r\n]+")
NOT_EDITED = (
    "a lock is not edited by hand: `git checkout` it, or write a new one with `flagbench lock STACK --upgrade`"
)


class _Base(msgspec.Struct, omit_defaults=True):
    image: str | None = None
    digest: str | None = None


class _Unresolved(msgspec.Struct):
    name: str
    version: str
    reason: str


class _ToolTable(msgspec.Struct, omit_defaults=True):
    """[tool.flagbench] of the file."""

    stack: str
    inputs: str
    base: _Base
    unresolved: list[_Unresolved] = []


def parse_pylock(text: str, source: Path) -> Lock:
    """The lock in the text of the file `source`.

    Raises FlagbenchError (usage): it is not TOML, not a pylock.toml, or not as `flagbench lock` writes it.
    """
    try:
        return checked(_lock(Pylock.from_dict(msgspec.toml.decode(text))))
    except (PylockValidationError, ValueError) as error:
        raise FlagbenchError(f"{source}: {error}", remedy=NOT_EDITED) from None


def dump_pylock(lock: Lock) -> str:
    """The file's text, a line for each file of a package as uv writes it, so that a difference is easy to read.

    Raises FlagbenchError (usage): it holds a value that a lock must not hold, or tomlkit is not installed.
    """
    data = dict(_data(lock))
    try:
        # Of the extra `lock`: only this command writes TOML.
        import tomlkit
    except ModuleNotFoundError:
        raise FlagbenchError(
            "tomlkit, which writes locks, is not installed", remedy="install it with `pip install 'flagbench[lock]'`"
        ) from None
    packages = tomlkit.aot()
    for package in data["packages"]:
        table = tomlkit.table()
        table.update({key: _inline(value) for key, value in package.items()})
        packages.append(table)
    document = tomlkit.document()
    document.add(tomlkit.comment(f"Made by `flagbench lock {lock.stack}`. Do not edit."))
    document.update({**data, "packages": packages})
    return tomlkit.dumps(document)


def _inline(value: Any) -> Any:
    import tomlkit

    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update({key: _inline(item) for key, item in value.items()})
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(_inline(item) for item in value)
        return array.multiline(len(value) > 1)
    return value


def _data(lock: Lock) -> Mapping[str, Any]:
    unresolved = [_Unresolved(entry.name, entry.version, entry.reason) for entry in lock.unresolved]
    own = _ToolTable(lock.stack, lock.inputs, _Base(lock.base_image, lock.base_digest), unresolved)
    try:
        pylock = Pylock(
            lock_version=Version("1.0"),
            requires_python=SpecifierSet(f"=={lock.python}.*"),
            created_by="flagbench",
            packages=[_package(entry) for entry in checked(lock).entries],
            tool={"flagbench": msgspec.to_builtins(own)},
        )
        pylock.validate()
        return pylock.to_dict()
    except (PylockValidationError, ValueError) as error:
        raise FlagbenchError(
            f"the new lock of {lock.stack}: {error}", remedy="correct `build` in the manifest of the stack"
        ) from None


def _package(entry: LockEntry) -> Package:
    if len(entry.files) != len(entry.hashes):
        raise ValueError(f"{entry.pin} lacks the names of its files")
    wheels: list[PackageWheel] = []
    sdist = None
    for file, digest in zip(entry.files, entry.hashes, strict=True):
        hashes = {"sha256": digest.removeprefix("sha256:")}
        if file.endswith(".whl"):
            wheels.append(PackageWheel(path=file, hashes=hashes))
        else:
            sdist = PackageSdist(path=file, hashes=hashes)
    return Package(
        name=canonicalize_name(entry.name), version=Version(entry.version), sdist=sdist, wheels=wheels or None
    )


def _lock(pylock: Pylock) -> Lock:
    try:
        own = msgspec.convert((pylock.tool or {}).get("flagbench"), _ToolTable)
    except msgspec.ValidationError as error:
        raise ValueError(f"tool.flagbench: {error}") from None
    python = str(pylock.requires_python or "")
    minor = re.fullmatch(r"==(\d+\.\d+)\.\*", python)
    return Lock(
        stack=own.stack,
        python=minor[1] if minor else python,
        base_image=own.base.image,
        base_digest=own.base.digest,
        inputs=own.inputs,
        entries=tuple(_entry(package) for package in pylock.packages),
        unresolved=tuple(Unresolved(entry.name, entry.version, reason=entry.reason) for entry in own.unresolved),
    )


def _entry(package: Package) -> LockEntry:
    if package.is_direct or package.marker is not None or package.version is None:
        raise ValueError(f"{package.name} is not a package of an index at one version")
    files: list[PackageWheel | PackageSdist] = [*(package.wheels or ()), *filter(None, [package.sdist])]
    for file in files:
        if set(file.hashes) != {"sha256"}:
            raise ValueError(f"{file.filename} has other hashes than its sha256")
    known = sorted((f"sha256:{file.hashes['sha256']}", file.filename) for file in files)
    hashes, names = zip(*known, strict=True)
    return LockEntry(package.name, str(package.version), hashes, names)


def checked(lock: Lock) -> Lock:
    """The lock, with values that are safe in a Dockerfile and on a command line, and packages sorted and unique.

    Raises ValueError naming the first value that `flagbench lock` does not write.
    """
    _require(lock.stack, _STACK, "tool.flagbench.stack")
    _require(lock.python, _PYTHON, "requires-python")
    _require(lock.inputs, SHA256, "tool.flagbench.inputs")
    if lock.base_digest is not None:
        _require(lock.base_digest, SHA256, "tool.flagbench.base.digest")
    base = None if lock.base_image is None else find_reference(lock.base_image)
    if lock.base_image != (base and base.tagged):
        raise ValueError(f"tool.flagbench.base.image is {lock.base_image!r}, not an image without a digest")
    for entries in (lock.entries, lock.unresolved):
        for entry in entries:
            _require(entry.pin, PIN, "a package")
            for digest in entry.hashes:
                _require(digest, SHA256, f"a hash of {entry.pin}")
        for before, after in itertools.pairwise(entry.name for entry in entries):
            if before >= after:
                raise ValueError(f"{after} follows {before}: names are sorted and unique")
    for entry in lock.unresolved:
        _require(entry.reason, _REASON, f"tool.flagbench.unresolved.reason of {entry.pin}")
    if both := {entry.name for entry in lock.entries} & {entry.name for entry in lock.unresolved}:
        raise ValueError(f"{min(both)} is both locked and unresolved")
    return lock


def _require(value: str, pattern: re.Pattern[str], what: str) -> None:
    if not pattern.fullmatch(value):
        raise ValueError(f"{what} is {value!r}, not like {pattern.pattern}")
