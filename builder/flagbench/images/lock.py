"""Makes the lock of a stack: `uv pip compile` finds the packages, the base's registry its digest.

What cannot be found out is locked as unresolved, with the reason. What an earlier lock says of a package at the same
version is kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec.toml

from flagbench.errors import FlagbenchError
from flagbench.image_reference import parse_reference
from flagbench.images.lockfile import (
    Lock,
    LockEntry,
    Unresolved,
    canonical,
    inputs_digest,
    is_stale,
    load_lock,
    lock_path,
    parse_packages,
    stated_base,
    write_lock,
)
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact

if TYPE_CHECKING:
    from flagbench.manifests.stack import Stack


_INSPECT_SECONDS = 120
Report = Callable[[str], None]
"""Receives progress, a line at a time."""
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
# The glibc of the oldest base: Ubuntu 20.04 for Python 3.8, Ubuntu 22.04 for the others.
_OLD_GLIBC, _GLIBC = "2_31", "2_35"
# The address of a file that is on this machine alone.
_LOCAL = re.compile(r'\b(?:url = "file://|path = ")[^"]*?([^"/]+)"')


class BaseUnknown(Exception):
    """Why the digest of a base could not be found out."""


def find_digest(image: str, platform: str) -> str:
    """`sha256:<64 hex>` of the manifest that a tag names for a platform such as linux/amd64. Raises BaseUnknown."""
    command = [os.environ.get("FLAGBENCH_DOCKER") or "docker", "manifest", "inspect", "--verbose"]
    if parse_reference(image).host.partition(":")[0] in ("localhost", "127.0.0.1"):
        command.append("--insecure")  # without TLS, as an engine pulls from its own machine
    try:
        ended = subprocess.run(
            [*command, image], capture_output=True, text=True, timeout=_INSPECT_SECONDS, check=True
        )
        answer = json.loads(ended.stdout)
        # A list for a tag with several platforms. It does not include the list's own digest.
        descriptors = [each["Descriptor"] for each in (answer if isinstance(answer, list) else [answer])]
        offered = {"{os}/{architecture}".format(**each["platform"]): str(each["digest"]) for each in descriptors}
    except subprocess.CalledProcessError as error:
        raise BaseUnknown(redact(" ".join(error.stderr.split()))) from None
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
        raise BaseUnknown(f"`docker manifest inspect` failed: {error}") from None
    if platform not in offered:
        raise BaseUnknown(f"{image} is not for {platform}, but for {', '.join(offered)}")
    return offered[platform]


def update_lock(
    stack: Stack, images: Path, report: Report, *, upgrade: bool, base_digest: str | None
) -> tuple[Lock, bool]:
    """Lock a stack again, and write its file; returns the lock, and whether the file changed.

    Versions of an earlier lock, even of a stale one, are kept where they still fit.

    Args:
        images: the folder with locks/; its uv.toml declares what packages need that uv would have to build.
        upgrade: take the newest versions, and ask for the base again.
        base_digest: the base's digest set by hand.

    Raises FlagbenchError: uv is not installed, or the manifest's packages do not go together (usage); an index cannot
    be asked (engine).
    """
    try:
        previous = load_lock(stack, images)
    except FlagbenchError as error:
        if not upgrade:
            raise
        report(f"{stack.name}: nothing is taken from the earlier lock: {error.message}")
        previous = None
    report(f"{stack.name}: packages for Python {stack.python}")
    folder = lock_path(stack.name, images).parent
    entries, unresolved = _PackageSearch(stack, folder, previous, report, upgrade).resolve()
    lock = Lock(
        stack=stack.name,
        python=stack.python,
        base_image=stated_base(stack)[0],
        base_digest=base_digest or _base_digest(stack, previous, report, upgrade),
        inputs=inputs_digest(stack),
        entries=tuple(sorted(entries, key=attrgetter("name"))),
        unresolved=tuple(sorted(unresolved, key=attrgetter("name"))),
    )
    if wrong := is_stale(lock, stack):
        raise FlagbenchError(f"the new lock of {stack.name} does not fit: {wrong}", remedy="leave --base-digest out")
    return lock, write_lock(lock, images)


def _base_digest(stack: Stack, previous: Lock | None, report: Report, upgrade: bool) -> str | None:
    image, stated = stated_base(stack)
    known = previous.base_digest if previous and previous.base_image == image else None
    if stated or image is None or (known and not upgrade):
        return stated or known
    try:
        return find_digest(image, stack.platform)
    except BaseUnknown as error:
        report(f"{stack.name}: the base stays {'as it was' if known else 'unresolved'}: {error}")
        return known


class _UvFailed(Exception):
    """The error that uv printed, in one line."""


class _PackageSearch:
    """The search for a stack's packages, which continues without an index of the manifest that cannot be reached."""

    def __init__(self, stack: Stack, folder: Path, previous: Lock | None, report: Report, upgrade: bool) -> None:
        self.stack = stack
        self.build = stack.build
        self.settings = folder / "uv.toml"
        self.report = report
        self.upgrade = upgrade
        self.pins = {_name(line): line.partition("==")[2] for line in (*self.build.packages, *self.build.optional)}
        self.compiled = {canonical(package.name): package.version for package in self.build.compiled}
        self.earlier = {entry.pin: entry for entry in previous.entries} if previous else {}
        self.kept = [] if upgrade else [e.pin for e in self.earlier.values() if e.name not in self.pins]
        self.indexes = list(self.build.indexes)
        self.silent: list[str] = []
        """Indexes of the manifest that could not be reached."""
        self.lost: dict[str, str] = {}
        """Direct requirements that only such an index has: canonical name to the reason."""

    def resolve(self) -> tuple[list[LockEntry], list[Unresolved]]:
        """What is locked, and what stays unresolved."""
        while True:
            try:
                found = [*self._compile(self._requirements(), self.stack.python), *self._for_other_pythons()]
                break
            except _UvFailed as error:
                self._continue_without(str(error))
        entries = found if self.upgrade else [self.earlier.get(entry.pin, entry) for entry in found]
        lost = [Unresolved(name, self.pins[name], reason=reason) for name, reason in self.lost.items()]
        entries += [self.earlier[entry.pin] for entry in lost if entry.pin in self.earlier]
        return entries, [entry for entry in lost if entry.pin not in self.earlier]

    def _requirements(self) -> list[str]:
        lines = [line for line in (*self.build.packages, *self.build.optional) if _name(line) not in self.lost]
        for name, version in self.compiled.items():
            self._declared(name, version)  # or uv would run its setup.py
            lines.append(f"{name}=={version}")
        for name in self.lost:
            lines += self._declared(name, self.pins[name])
        return lines

    def _declared(self, name: str, version: str) -> list[str]:
        """What a package needs in turn, by uv's settings."""
        text = self.settings.read_bytes() if self.settings.is_file() else b""
        for table in msgspec.toml.decode(text).get("dependency-metadata", ()):
            if (canonical(table["name"]), table["version"]) == (name, version):
                return list(table["requires-dist"])
        raise FlagbenchError(
            f"{self.settings} does not declare what {name}=={version} needs in turn",
            remedy="add its table, from the METADATA, PKG-INFO or setup.py of that version",
        )

    def _for_other_pythons(self) -> Iterator[LockEntry]:
        # Alone: what they need in turn would be for the other Python, too.
        for package in self.build.other_python:
            yield from self._compile([f"{package.name}=={package.version}"], package.python, "--no-deps")

    def _continue_without(self, error: str) -> None:
        """Drop an index that cannot be reached, then what only it has, then the versions of the earlier lock."""
        index = next((url for url in self.indexes if f"{url.rstrip('/')}/" in error), None)
        absent = r"\b{0} was not found|no versions? of {0}=="
        missing = [name for name in self.pins.keys() - self.lost if re.search(absent.format(name), error)]
        conflict = "No solution found" in error
        if index is not None:
            self.report(f"{self.stack.name}: {index} could not be reached")
            self.indexes.remove(index)
            self.silent.append(index)
        elif self.build.indexes and missing:
            reason = ", ".join(f"{url} could not be reached" for url in self.silent)
            self.lost |= dict.fromkeys(missing, reason or "no index has it")
        elif self.kept and conflict:
            self.report(f"{self.stack.name}: versions of the earlier lock no longer fit; all are looked up again")
            self.kept = []
        else:
            raise FlagbenchError(
                f"uv cannot resolve the packages of {self.stack.name}: {error}",
                remedy=f"correct `build` in {self.stack.path}, or uv's settings (UV_DEFAULT_INDEX, UV_INDEX, "
                "SSL_CERT_FILE); an index that refuses access looks like one without the packages",
                code=ExitCode.USAGE if conflict else ExitCode.ENGINE,
            ) from None

    def _compile(self, requirements: Iterable[str], python: str, *options: str) -> tuple[LockEntry, ...]:
        """The packages that fit the stack's platform; everything but what is compiled is taken as a wheel."""
        glibc = _OLD_GLIBC if self.stack.python == "3.8" else _GLIBC
        command = [_find_uv(), "pip", "compile", "asked.in", "--format", "pylock.toml", "-o", "pylock.toml"]
        command += ["--quiet", "--no-python-downloads", "--python-version", python]
        command += ["--python-platform", f"{_MACHINES[self.stack.platform]}-manylinux_{glibc}"]
        # Constraints, not uv's preferences from an earlier output: with several indexes it takes a preferred version
        # from the first that has it, even if only another has a file that fits.
        command += ["--excludes", "absent.txt", "--constraints", "kept.txt"]
        # As pip does in the image: the best version of all indexes. What may be installed is decided by the hashes,
        # which a person reviews.
        command += ["--index-strategy", "unsafe-best-match", "--only-binary", ":all:"]
        command += [f"--no-binary={name}" for name in self.compiled]
        # Both keep uv from reading the settings of its working directory.
        environment = {k: v for k, v in os.environ.items() if k not in ("UV_CONFIG_FILE", "UV_NO_CONFIG")}
        environment["UV_INDEX"] = " ".join([*self.indexes, os.environ.get("UV_INDEX", "")]).strip()
        with tempfile.TemporaryDirectory(prefix="flagbench-lock-") as name:
            scratch = Path(name)
            if self.settings.is_file():
                shutil.copy(self.settings, scratch)
            _write(scratch / "asked.in", requirements)
            _write(scratch / "absent.txt", [*self.build.from_base, *self.lost])
            _write(scratch / "kept.txt", self.kept)
            ended = subprocess.run(
                [*command, *options], cwd=scratch, env=environment, capture_output=True, text=True, check=False
            )
            if ended.returncode != 0:
                raise _UvFailed(redact(" ".join(ended.stderr.split())))
            text = (scratch / "pylock.toml").read_text(encoding="utf-8")
        try:
            return parse_packages(_LOCAL.sub(r'path = "\1"', text))
        except ValueError as error:
            raise _UvFailed(f"its pylock.toml: {error}") from None


def _find_uv() -> str:
    """The uv that is installed beside flagbench, else the one on PATH."""
    try:
        program: str | None = import_module("uv").find_uv_bin()
    except (ImportError, FileNotFoundError):
        program = shutil.which("uv")
    if program is None:
        raise FlagbenchError(
            "uv, which resolves packages, is not installed", remedy="run `pip install -e '.[lock]'` in the checkout"
        )
    return program


def _name(requirement: str) -> str:
    return canonical(requirement.partition("==")[0].partition("[")[0])


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
