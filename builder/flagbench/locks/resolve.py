"""Makes the lock of a stack: packages from their indexes, the base's digest from its registry.

What cannot be found out is locked as unresolved, with the reason. Hashes that an earlier lock has for the same
version are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.files import stated_base
from flagbench.locks.metadata import Tables
from flagbench.locks.model import Lock, LockEntry, Unresolved, canonical, inputs_digest
from flagbench.locks.platforms import uv_platform
from flagbench.locks.pylock import PIN
from flagbench.locks.registry import base_digest
from flagbench.locks.registry_login import RegistryError
from flagbench.locks.session import REFUSED, REMEDY, refusing_indexes
from flagbench.locks.sources import Sources
from flagbench.locks.uv import Found, IndexUnreachable, NoSolution, Request, resolve

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

Report = Callable[[str], None]
"""Receives progress, a line at a time."""


@dataclass(frozen=True)
class LockOptions:
    """How a lock is made."""

    sources: Sources
    tables: Tables
    previous: Lock | None = None
    """An earlier lock of the stack, whose versions are kept where they still fit. None: everything is new."""
    upgrade: bool = False
    """Whether to take the newest versions and ask for the base again."""
    base_digest: str | None = None
    """The base's digest set by hand."""


def make_lock(stack: Stack, options: LockOptions, report: Report) -> Lock:
    """The lock of a stack.

    Raises FlagbenchError: the manifest's packages do not go together (usage), or an index cannot be asked (engine).
    """
    report(f"{stack.name}: packages for Python {stack.python}")
    entries, unresolved = _Packages(stack, options, report).resolve()
    return Lock(
        stack=stack.name,
        python=stack.python,
        base_image=stated_base(stack)[0],
        base_digest=_base(stack, options, report),
        inputs=inputs_digest(stack),
        entries=entries,
        unresolved=unresolved,
    )


def _base(stack: Stack, options: LockOptions, report: Report) -> str | None:
    image, stated = stated_base(stack)
    if chosen := options.base_digest or stated:
        return chosen
    previous = options.previous
    known = previous.base_digest if previous and previous.base_image == image else None
    if image is None or (known and not options.upgrade):
        return known
    report(f"{stack.name}: the base {image}")
    try:
        return base_digest(image, options.sources.ca_bundle)
    except RegistryError as error:
        report(f"{stack.name}: the base stays {'as it was' if known else 'unresolved'}: {error}")
        return known


class _Packages:
    """The search for a stack's packages; continues without an index of the manifest that does not answer."""

    def __init__(self, stack: Stack, options: LockOptions, report: Report) -> None:
        self.stack = stack
        self.options = options
        self.report = report
        self.compiled = dict(_pin(f"{package.name}=={package.version}") for package in stack.build.compiled)
        self.pins = dict(_pin(line) for line in (*stack.build.packages, *stack.build.optional))
        # A mirror given instead of them has to answer, or the command fails.
        self.indexes = [] if options.sources.further else list(stack.build.indexes)
        self.silent: dict[str, str] = {}
        """Indexes of the manifest that did not answer, each with what happened instead."""
        self.lost: dict[str, str] = {}
        """Direct requirements that only such an index has: canonical name to version."""
        self.keep = options.previous is not None and not options.upgrade

    def resolve(self) -> tuple[tuple[LockEntry, ...], tuple[Unresolved, ...]]:
        """Locked and unresolved packages, both sorted by name."""
        while True:
            environment = self.options.sources.uv_environment(self.indexes)
            try:
                found = [package for request in self._requests() for package in resolve(request, environment)]
            except IndexUnreachable as error:
                self._unreachable(error)
            except NoSolution as error:
                if not self._refused(environment):
                    self._drop_missing(error)
            else:
                return self._sorted(found)

    def _requests(self) -> Iterator[Request]:
        yield self._request()
        others: dict[str, list[str]] = {}
        for package in self.stack.build.other_python:
            name, version = _pin(f"{package.name}=={package.version}")
            others.setdefault(package.python, []).append(f"{name}=={version}")
        for python, lines in others.items():
            yield Request(tuple(lines), python, uv_platform(self.stack), compiled=frozenset(), alone=True)

    def _request(self) -> Request:
        wanted = self.pins | self.compiled
        lines = [f"{name}=={version}" for name, version in wanted.items() if name not in self.lost]
        for name, version in self.lost.items():
            lines += self.options.tables.get((name, version), ())
        earlier = self.options.previous.entries if self.options.previous and self.keep else ()
        return Request(
            requirements=tuple(lines),
            python=self.stack.python,
            platform=uv_platform(self.stack),
            compiled=frozenset(self.compiled),
            absent=frozenset({canonical(name) for name in self.stack.build.from_base} | set(self.lost)),
            tables={pin: self._table(*pin) for pin in self.compiled.items()},
            kept={entry.name: entry.version for entry in earlier if entry.name not in wanted},
        )

    def _table(self, name: str, version: str) -> tuple[str, ...]:
        try:
            return self.options.tables[(name, version)]
        except KeyError:
            raise FlagbenchError(
                f"{name}=={version} is compiled for {self.stack.name}, but what it needs in turn is not declared",
                remedy="add its table to images/locks/metadata.toml, from the PKG-INFO or setup.py of its source",
            ) from None

    def _unreachable(self, error: IndexUnreachable) -> None:
        """Continue without the index, if it is one of the manifest."""
        index = next((url for url in self.indexes if error.url.startswith(url.rstrip("/") + "/")), None)
        if index is None:
            raise FlagbenchError(
                f"a package index could not be reached: {error.cause}",
                remedy="check the network and the proxy; name another index with --pip-source, or the certificates "
                "of this network with --ca-bundle",
                code=ExitCode.ENGINE,
            ) from None
        self._without_index(index, "could not be reached", f" ({error.cause})")

    def _refused(self, environment: Mapping[str, str]) -> bool:
        """Whether there was no solution because indexes refuse access; the manifest's are then left out."""
        found = refusing_indexes(self.stack, environment, self.options.sources.ca_bundle)
        for index, status in found.items():
            if index not in self.indexes:
                raise FlagbenchError(
                    f"a package index {REFUSED} (HTTP {status})", remedy=REMEDY, code=ExitCode.ENGINE
                ) from None
            self._without_index(index, f"refused (HTTP {status})")
        return bool(found)

    def _without_index(self, index: str, why: str, cause: str = "") -> None:
        self.report(f"{self.stack.name}: {index} {why}{cause}")
        self.indexes.remove(index)
        self.silent[index] = why

    def _drop_missing(self, error: NoSolution) -> None:
        """Drop packages that only a silent index may have; if there are none, the versions of the earlier lock."""
        named = {canonical(pin.partition("==")[0]) for pin in error.missing}
        gone = {name: version for name, version in self.pins.items() if name in named and name not in self.lost}
        if self.silent and gone:
            for name, version in gone.items():
                self.report(f"{self.stack.name}: {name}=={version} stays unresolved")
            self.lost |= gone
        elif self.keep:
            self.report(f"{self.stack.name}: versions of the earlier lock no longer fit; all are looked up again")
            self.keep = False
        else:
            raise FlagbenchError(
                f"the packages of {self.stack.name} do not go together: {error}",
                remedy=f"correct `build` in {self.stack.path}",
            ) from None

    def _sorted(self, found: list[Found]) -> tuple[tuple[LockEntry, ...], tuple[Unresolved, ...]]:
        entries = [LockEntry(package.name, package.version, package.hashes, package.files) for package in found]
        entries += [LockEntry(name, version) for name, version in self.lost.items()]
        known = sorted(map(self._as_known, entries), key=attrgetter("name"))
        missing = [Unresolved(e.name, e.version, reason=self._reason(e)) for e in known if not e.hashes]
        return tuple(entry for entry in known if entry.hashes), tuple(missing)

    def _as_known(self, entry: LockEntry) -> LockEntry:
        """The entry, with the hashes of an earlier lock where there are none now."""
        earlier = self.options.previous.entries if self.options.previous else ()
        same = next((old for old in earlier if old.pin == entry.pin), None)
        if same is None or entry.hashes:
            return entry
        # A lock of the old format knows the hash, and the index the file's name.
        files = same.files or entry.files
        return replace(same, files=files) if len(files) == len(same.hashes) else entry

    def _reason(self, entry: LockEntry) -> str:
        if entry.name not in self.lost:
            return "its index states no sha256"
        # Only public addresses from the manifest, never a configured one.
        reason = ", ".join(f"{index} {why}" for index, why in self.silent.items())
        declared = (entry.name, entry.version) in self.options.tables
        return reason if declared else f"{reason}; what it needs in turn is not known"


def _pin(line: str) -> tuple[str, str]:
    name, _, version = line.partition("==")
    name = canonical(name.strip())
    if not PIN.fullmatch(f"{name}=={version.strip()}"):
        raise FlagbenchError(
            f"{line!r} does not pin a package as name==version",
            remedy="correct `build` in the manifest of the stack",
        )
    return name, version.strip()
