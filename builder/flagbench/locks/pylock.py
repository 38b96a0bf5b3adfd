"""A lock as a pylock.toml (PEP 751), read strictly: its values end in a Dockerfile and on pip's command line.

The standard wants a URL or a path for each file. A lock names files by path: a lock made behind a mirror would
otherwise hold the mirror's addresses, and with its files in one folder (`flagbench wheels`) any installer of the
standard can use it. [tool.flagbench] holds what the standard has no place for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock, PylockValidationError
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from flagbench.errors import FlagbenchError
from flagbench.locks.model import Lock, LockEntry, Unresolved
from flagbench.locks.toml import load_toml

STACK = re.compile(r"[a-z0-9][a-z0-9.-]*")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
PIN = re.compile(r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[0-9][0-9A-Za-z.!+]*)")
_PYTHON = re.compile(r"==(3\.\d+)\.\*")
_REASON = re.compile(r"[^\r\n]+")
NOT_EDITED = (
    "a lock is not edited by hand: `git checkout` it, or write a new one with `flagbench lock STACK --upgrade`"
)


class _Invalid(ValueError):
    """A value that `flagbench lock` does not write."""


def parse_pylock(text: str, source: str) -> Lock:
    """The lock that `text` is; `source` names it in errors.

    Raises:
        FlagbenchError: (usage) it is not TOML, not a pylock.toml, or not as `flagbench lock` writes it.
    """
    try:
        pylock = Pylock.from_dict(load_toml(text))
        return _checked(_lock(pylock))
    except (PylockValidationError, ValueError) as error:
        raise FlagbenchError(f"{source}: {error}", remedy=NOT_EDITED) from None


def dump_pylock(lock: Lock) -> str:
    """The file's text, a line for each file of a package as uv writes it, so that a difference is easy to read.

    Raises:
        FlagbenchError: (usage) it holds a value that a lock must not hold, or tomlkit is not installed.
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
    base = {"image": lock.base_image, "digest": lock.base_digest}
    own: dict[str, Any] = {
        "stack": lock.stack,
        "inputs": lock.inputs,
        "base": {key: value for key, value in base.items() if value is not None},
    }
    if lock.unresolved:
        own["unresolved"] = [{"name": e.name, "version": e.version, "reason": e.reason} for e in lock.unresolved]
    try:
        pylock = Pylock(
            lock_version=Version("1.0"),
            requires_python=SpecifierSet(f"=={lock.python}.*"),
            created_by="flagbench",
            packages=[_package(entry) for entry in _checked(lock).entries],
            tool={"flagbench": own},
        )
        pylock.validate()
        return pylock.to_dict()
    except (PylockValidationError, ValueError) as error:
        raise FlagbenchError(
            f"the new lock of {lock.stack}: {error}", remedy="correct build.packages in the manifest of the stack"
        ) from None


def _package(entry: LockEntry) -> Package:
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
    tool = (pylock.tool or {}).get("flagbench")
    own = _Table(tool, "tool.flagbench")
    base = _Table(own.get("base", {}), "tool.flagbench.base")
    unresolved = own.get("unresolved", [])
    python = str(pylock.requires_python or "")
    if not isinstance(unresolved, list):
        raise _Invalid("tool.flagbench.unresolved is not an array of tables")
    return Lock(
        stack=own.text("stack", STACK),
        python=_matching(python, _PYTHON, "requires-python").removeprefix("==").removesuffix(".*"),
        base_image=base.text("image", IMAGE) if "image" in base else None,
        base_digest=base.text("digest", SHA256) if "digest" in base else None,
        inputs=own.text("inputs", SHA256),
        entries=tuple(_entry(package) for package in pylock.packages),
        unresolved=tuple(_unresolved(_Table(raw, "tool.flagbench.unresolved")) for raw in unresolved),
    )


def _entry(package: Package) -> LockEntry:
    if package.is_direct or package.marker is not None or package.version is None:
        raise _Invalid(f"{package.name} is not a package of an index at one version")
    files: Sequence[PackageWheel | PackageSdist] = [
        *(package.wheels or ()),
        *([package.sdist] if package.sdist else ()),
    ]
    for file in files:
        if set(file.hashes) != {"sha256"}:
            raise _Invalid(f"{file.filename} has other hashes than its sha256")
    known = sorted((f"sha256:{file.hashes['sha256']}", file.filename) for file in files)
    hashes, names = zip(*known, strict=True)
    return LockEntry(package.name, str(package.version), hashes, names)


def _unresolved(raw: _Table) -> Unresolved:
    return Unresolved(raw.text("name", _REASON), raw.text("version", _REASON), reason=raw.text("reason", _REASON))


def _checked(lock: Lock) -> Lock:
    """The lock, whose packages are sorted, unique and safe on a command line; raises _Invalid."""
    for entries in (lock.entries, lock.unresolved):
        for entry in entries:
            _matching(entry.pin, PIN, "a package")
            if len(entry.files) != len(entry.hashes):
                raise _Invalid(f"{entry.pin} lacks the names of its files")
            for digest in entry.hashes:
                _matching(digest, SHA256, f"a hash of {entry.pin}")
        for before, after in itertools.pairwise(entry.name for entry in entries):
            if before >= after:
                raise _Invalid(f"{after} follows {before}: names are sorted and unique")
    if both := {entry.name for entry in lock.entries} & {entry.name for entry in lock.unresolved}:
        raise _Invalid(f"{min(both)} is both locked and unresolved")
    return lock


class _Table(dict[str, Any]):
    """A table of the file, with its place in it for errors."""

    def __init__(self, raw: object, place: str) -> None:
        if not isinstance(raw, Mapping):
            raise _Invalid(f"{place} is not a table, as `flagbench lock` writes it")
        super().__init__(raw)
        self.place = place

    def text(self, key: str, pattern: re.Pattern[str]) -> str:
        """A required text that matches a pattern."""
        return _matching(self.get(key), pattern, f"{self.place}.{key}")


def _matching(value: object, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _Invalid(f"{what} is {value!r}, not like {pattern.pattern}")
    return value
