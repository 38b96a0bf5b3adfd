"""Resolves the lock of a stack: its packages with `uv pip compile`, its base's digest with `docker manifest inspect`.

A lock names every package of a stack's image by version and hashes, and the digest of the image's base; its types and
its file are in `lockfile.py`. The command `flagbench lock` calls `update_lock`, or `require_platform` with --check. A
package that cannot be resolved is written to the lock as unresolved, with the reason. The entry of an earlier lock is
kept while the package's version stays the same.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec.toml
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from flagbench.errors import FlagbenchError
from flagbench.image_reference import parse_reference
from flagbench.images.docker_process import DOCKER_VARIABLE
from flagbench.images.lockfile import (
    DigestOf,
    Lock,
    LockEntry,
    Unresolved,
    canonical,
    explain_staleness,
    inputs_digest,
    load_lock,
    lock_path,
    parse_packages,
    read_base,
    read_toolkit,
    write_lock,
)
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact

if TYPE_CHECKING:
    from flagbench.manifests.stack import Stack


_INSPECT_SECONDS = 120
"""Time limit for the digest of a base: a registry may be slow to log in to, and the lock waits for the answer."""
_CHECK_SECONDS = 20
"""Time limit where the answer is only an additional check, which is skipped without one."""
_OTHER_DIGEST = "give the digest of an image for the platform: `flagbench lock {} --base-digest sha256:...`"
Report = Callable[[str], None]
"""Receives progress, one line a call."""
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
"""The machine in the tags of wheels, by docker's name of the platform."""
_GLIBC = "2_35"
"""The glibc of Ubuntu 22.04, the oldest base of stacks with Python 3.9 or later."""
_GLIBC_OF_PYTHON_38 = "2_31"
"""The glibc of Ubuntu 20.04, the oldest base of stacks with Python 3.8."""
_LOCAL_FILE = re.compile(r'\b(?:url = "file://|path = ")[^"]*?([^"/]+)"')
"""The address of a file that only this machine has; the group is the file's name."""
_NOT_FOUND = r"\b{0} was not found|no versions? of {0}=="
"""How uv says that no index it could ask has a package; the field is the package's canonical name."""
_CONFLICT = "No solution found"
"""How uv says that the requirements contradict each other."""


class BaseUnknown(Exception):
    """The digest of a base could not be found out; the message says why."""


class PlatformMissing(BaseUnknown):
    """The registry has the base, but not for the platform that was asked for."""


@dataclass(frozen=True)
class GivenDigest:
    """A digest that a person gives on the command line."""

    digest: str
    """`sha256:<64 hex>`."""
    source: str
    """The address of a page that states the digest, or UNKNOWN_SOURCE."""


@dataclass(frozen=True)
class GivenWheel:
    """A package's wheel and its digest, which a person gives on the command line."""

    url: str
    """The address from which the wheel can be downloaded."""
    digest: GivenDigest


@dataclass(frozen=True)
class GivenDigests:
    """The digests that a person gives because a registry or an index cannot be reached."""

    base: GivenDigest | None = None
    base_of: DigestOf | None = None
    """Whether the base's digest is of one image or of an index of images; None if the person did not say."""
    wheels: tuple[GivenWheel, ...] = ()


def find_digest(image: str, platform: str, seconds: float = _INSPECT_SECONDS) -> str:
    """Ask a registry for the digest of an image's manifest for one platform, such as linux/amd64.

    Args:
        image: a reference with a tag or a digest, which may name an index of images.
        platform: `os/arch`.
        seconds: how long the registry may take.

    Returns `sha256:<64 hex>`. Raises PlatformMissing if the image is only for other platforms, and BaseUnknown if the
    registry gives no answer.
    """
    command = [os.environ.get(DOCKER_VARIABLE) or "docker", "manifest", "inspect", "--verbose"]
    host, _, _ = parse_reference(image).host.partition(":")
    if host in ("localhost", "127.0.0.1"):
        command.append("--insecure")  # An engine, too, pulls from its own machine without TLS.
    try:
        ended = subprocess.run([*command, image], capture_output=True, text=True, timeout=seconds, check=True)
        answer = json.loads(ended.stdout)
        # The answer is a list if the image has several platforms. The digest of the index itself is not in it.
        manifests = answer if isinstance(answer, list) else [answer]
        digests = {}
        for manifest in manifests:
            descriptor = manifest["Descriptor"]
            described = descriptor["platform"]
            digests[f"{described['os']}/{described['architecture']}"] = str(descriptor["digest"])
    except subprocess.CalledProcessError as error:
        raise BaseUnknown(redact(" ".join(error.stderr.split()))) from None
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
        raise BaseUnknown(f"`docker manifest inspect` failed: {error}") from None
    if platform not in digests:
        raise PlatformMissing(f"{image} is not for {platform}, but for {', '.join(digests)}")
    return digests[platform]


def require_platform(stack: Stack, lock: Lock) -> None:
    """Check with the base's registry that the locked digest is for the stack's platform.

    Nothing is asked if the digest is known to be of one image: then `update_lock` has checked it.

    Raises FlagbenchError (USAGE) if it is for another platform. A registry that does not answer is not an error.
    """
    if lock.base_image is None or lock.base_digest is None or lock.base_digest_of is DigestOf.IMAGE:
        return
    name = parse_reference(lock.base_image).name
    try:
        find_digest(f"{name}@{lock.base_digest}", stack.platform, _CHECK_SECONDS)
    except PlatformMissing as error:
        raise FlagbenchError(
            f"the base in the lock of {stack.name} does not fit: {error}", remedy=_OTHER_DIGEST.format(stack.name)
        ) from None
    except BaseUnknown:
        return


def update_lock(
    stack: Stack, images: Path, report: Report, *, upgrade: bool, digests: GivenDigests = GivenDigests()
) -> tuple[Lock, bool]:
    """Lock a stack again, and write its file; returns the lock, and whether the file changed.

    Versions of an earlier lock, even of a stale one, are kept where they still fit.

    Args:
        images: the folder with locks/; its uv.toml declares the dependencies of packages that uv would have to build.
        upgrade: take the newest versions, and ask for the base's digest again.
        digests: those that replace those of registries and indexes.

    Raises FlagbenchError: uv is not installed, the manifest's packages conflict, or a given digest does not fit
    (USAGE); an index cannot be asked (ENGINE).
    """
    try:
        previous = load_lock(stack, images)
    except FlagbenchError as error:
        if not upgrade:
            raise
        report(f"{stack.name}: nothing is taken from the earlier lock: {error.message}")
        previous = None
    report(f"{stack.name}: packages for Python {stack.python}")
    settings = lock_path(stack.name, images).parent / "uv.toml"
    packages = _PackageSearch(stack, settings, previous, report, upgrade, digests.wheels).resolve()
    base = _find_base(stack, previous, report, upgrade, digests)
    by_name = attrgetter("name")
    lock = Lock(
        stack=stack.name,
        python=stack.python,
        base_image=read_base(stack).image,
        base_digest=base.digest,
        base_digest_of=base.digest_of,
        base_digest_source=base.source,
        toolkit=read_toolkit(stack),
        inputs=inputs_digest(stack),
        entries=tuple(sorted(packages.locked, key=by_name)),
        unresolved=tuple(sorted(packages.unresolved, key=by_name)),
    )
    staleness = explain_staleness(lock, stack)
    if staleness is not None:
        raise FlagbenchError(
            f"the new lock of {stack.name} does not fit: {staleness}", remedy="leave --base-digest out"
        )
    return lock, write_lock(lock, images)


@dataclass(frozen=True)
class _BaseDigest:
    """The digest of a base, for the fields `base_digest`, `base_digest_of` and `base_digest_source` of a Lock."""

    digest: str | None = None
    digest_of: DigestOf | None = None
    source: str | None = None


def _find_base(
    stack: Stack, previous: Lock | None, report: Report, upgrade: bool, digests: GivenDigests
) -> _BaseDigest:
    """Find the digest of a stack's base: as a person gave it, from the manifest, the earlier lock or the registry.

    Raises FlagbenchError (USAGE) if the given digest is for another platform.
    """
    if digests.base is not None:
        return _check_given_base(stack, digests.base, digests.base_of, report)
    base = read_base(stack)
    if base.digest is not None:
        return _BaseDigest(base.digest)
    earlier = _BaseDigest()
    if previous is not None and previous.base_image == base.image:
        earlier = _BaseDigest(previous.base_digest, previous.base_digest_of, previous.base_digest_source)
    if base.image is None:
        return earlier
    if earlier.digest is not None and not upgrade:
        return earlier
    try:
        digest = find_digest(base.image, stack.platform)
    except BaseUnknown as error:
        state = "unresolved" if earlier.digest is None else "as it was"
        report(f"{stack.name}: the base stays {state}: {error}")
        return earlier
    return _BaseDigest(digest, DigestOf.IMAGE)


def _check_given_base(
    stack: Stack, given_digest: GivenDigest, digest_of: DigestOf | None, report: Report
) -> _BaseDigest:
    """Compare a given digest of the base with its registry, if that can be reached.

    For the digest of an index, the result is the digest of the image for the stack's platform.

    Raises FlagbenchError (USAGE) if the registry has no such image.
    """
    base = read_base(stack)
    if base.image is None:
        return _BaseDigest(given_digest.digest, None, given_digest.source)
    name = parse_reference(base.image).name
    try:
        digest = find_digest(f"{name}@{given_digest.digest}", stack.platform)
    except PlatformMissing as error:
        raise FlagbenchError(
            f"--base-digest does not fit {stack.name}: {error}", remedy=_OTHER_DIGEST.format(stack.name)
        ) from None
    except BaseUnknown as error:
        report(f"{stack.name}: the base's digest is taken as it was given: {error}")
        return _BaseDigest(given_digest.digest, digest_of, given_digest.source)
    if digest == given_digest.digest:
        return _BaseDigest(digest, DigestOf.IMAGE, given_digest.source)
    report(f"{stack.name}: {given_digest.digest} is an index; its image for {stack.platform} is locked, {digest}")
    return _BaseDigest(digest, DigestOf.IMAGE)


class _UvFailed(Exception):
    """The error that uv printed, in one line."""


class _Packages(NamedTuple):
    """The result of a search for packages."""

    locked: list[LockEntry]
    unresolved: list[Unresolved]


class _PackageSearch:
    """The search for a stack's packages with uv.

    uv stops at the first index that it cannot reach. So it is run again, each time with fewer demands, until it
    succeeds: see `_relax`.
    """

    def __init__(
        self,
        stack: Stack,
        settings: Path,
        previous: Lock | None,
        report: Report,
        upgrade: bool,
        wheels: Iterable[GivenWheel] = (),
    ) -> None:
        self.stack = stack
        self.build = stack.build
        self.settings = settings
        """The file uv.toml with the declared dependencies of packages; it need not exist."""
        self.report = report
        self.upgrade = upgrade
        self.pins: dict[str, str] = {}
        """Versions of the manifest's direct requirements, by canonical name."""
        for requirement in (*self.build.packages, *self.build.optional):
            self.pins[_name(requirement)] = requirement.partition("==")[2]
        self.compiled = {canonical(package.name): package.version for package in self.build.compiled}
        """Versions of the packages that the image compiles, by canonical name."""
        self.earlier: dict[str, LockEntry] = {}
        """Entries of the earlier lock, by `name==version`."""
        if previous is not None:
            self.earlier = {entry.pin: entry for entry in previous.entries}
        self.kept_pins: list[str] = []
        """Indirect requirements at the version of the earlier lock, `name==version`."""
        if not upgrade:
            self.kept_pins = [pin for pin, entry in self.earlier.items() if entry.name not in self.pins]
        self.given_entries: dict[str, LockEntry] = {}
        """Entries of the wheels that a person gave, by `name==version`."""
        for wheel in wheels:
            entry = _wheel_entry(wheel, stack)
            self.given_entries[entry.pin] = entry
        self.indexes = list(self.build.indexes)
        """Indexes of the manifest that are still asked."""
        self.unreachable: list[str] = []
        """Indexes of the manifest that could not be reached."""
        self.unavailable: dict[str, str] = {}
        """Direct requirements that no reachable index has: canonical name to the reason."""

    def resolve(self) -> _Packages:
        """Run uv until it succeeds, and return the packages that are locked and those that stay unresolved.

        Raises FlagbenchError if uv fails for good, or if a given wheel is of a package that is not unresolved.
        """
        while True:
            try:
                entries = [*self._compile(self._requirements(), self.stack.python), *self._for_other_pythons()]
                break
            except _UvFailed as error:
                self._relax(str(error))
        if not self.upgrade:
            # The same version may have more files by now; those that were reviewed stay.
            entries = [self.earlier.get(entry.pin, entry) for entry in entries]
        unavailable = [Unresolved(name, self.pins[name], reason=reason) for name, reason in self.unavailable.items()]
        surplus = sorted(self.given_entries.keys() - {entry.pin for entry in unavailable})
        if surplus:
            raise FlagbenchError(
                f"--wheel-digest names {', '.join(surplus)}, which {self.stack.name} does not lack",
                remedy="leave it out: an index lists the files of its packages, with their hashes",
            )
        by_pin = self.earlier | self.given_entries
        unresolved: list[Unresolved] = []
        for missing in unavailable:
            if missing.pin in by_pin:
                entries.append(by_pin[missing.pin])
            else:
                unresolved.append(missing)
        return _Packages(entries, unresolved)

    def _requirements(self) -> list[str]:
        """List the requirements that uv resolves, `name==version` or names alone.

        A package that no index has is replaced by its declared dependencies.
        """
        lines = [line for line in (*self.build.packages, *self.build.optional) if _name(line) not in self.unavailable]
        for name, version in self.compiled.items():
            self._declared_dependencies(name, version)  # Raises if they are missing: uv would run the setup.py.
            lines.append(f"{name}=={version}")
        for name in self.unavailable:
            lines += self._declared_dependencies(name, self.pins[name])
        return lines

    def _declared_dependencies(self, name: str, version: str) -> list[str]:
        """Read the dependencies of a package from uv's settings. Raises FlagbenchError (USAGE) without them."""
        text = b""
        if self.settings.is_file():
            text = self.settings.read_bytes()
        for table in msgspec.toml.decode(text).get("dependency-metadata", ()):
            if (canonical(table["name"]), table["version"]) == (name, version):
                return list(table["requires-dist"])
        raise FlagbenchError(
            f"{self.settings} does not declare what {name}=={version} needs in turn",
            remedy="add its table, from the METADATA, PKG-INFO or setup.py of that version",
        )

    def _for_other_pythons(self) -> Iterator[LockEntry]:
        """Resolve the packages that the manifest takes as wheels for another Python."""
        # Without dependencies: those would be resolved for the other Python, too.
        for package in self.build.other_python:
            yield from self._compile([f"{package.name}=={package.version}"], package.python, "--no-deps")

    def _relax(self, error: str) -> None:
        """Give up one demand after uv failed with an error, so that it can be run again.

        The first of these that the error allows is given up: an index that cannot be reached; packages that no other
        index has; versions of the earlier lock that conflict with the manifest.

        Raises FlagbenchError if none of them explains the error: usage for a conflict, else engine.
        """
        for index in self.indexes:
            if f"{index.rstrip('/')}/" in error:
                self.report(f"{self.stack.name}: {index} could not be reached")
                self.indexes.remove(index)
                self.unreachable.append(index)
                return
        missing = []
        for name in self.pins.keys() - self.unavailable:
            if re.search(_NOT_FOUND.format(name), error):
                missing.append(name)
        if missing and self.build.indexes:
            reason = ", ".join(f"{url} could not be reached" for url in self.unreachable) or "no index has it"
            self.unavailable |= dict.fromkeys(missing, reason)
            return
        is_conflict = _CONFLICT in error
        if is_conflict and self.kept_pins:
            self.report(f"{self.stack.name}: versions of the earlier lock no longer fit; all are looked up again")
            self.kept_pins = []
            return
        raise FlagbenchError(
            f"uv cannot resolve the packages of {self.stack.name}: {error}",
            remedy=f"correct `build` in {self.stack.path}, or uv's settings (UV_DEFAULT_INDEX, UV_INDEX, "
            "SSL_CERT_FILE); an index that refuses access looks like one without the packages",
            code=ExitCode.USAGE if is_conflict else ExitCode.ENGINE,
        ) from None

    def _compile(self, requirements: Iterable[str], python: str, *options: str) -> tuple[LockEntry, ...]:
        """Run `uv pip compile` in a temporary folder, and read the pylock.toml that it writes.

        Raises _UvFailed if it fails, or if the file lacks hashes.
        """
        with tempfile.TemporaryDirectory(prefix="flagbench-lock-") as name:
            scratch = Path(name)
            if self.settings.is_file():
                shutil.copy(self.settings, scratch)
            _write_lines(scratch / "asked.in", requirements)
            _write_lines(scratch / "absent.txt", [*self.build.from_base, *self.unavailable])
            _write_lines(scratch / "kept.txt", self.kept_pins)
            ended = subprocess.run(
                [*self._uv_command(python), *options],
                cwd=scratch,
                env=self._uv_environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode != 0:
                raise _UvFailed(redact(" ".join(ended.stderr.split())))
            text = (scratch / "pylock.toml").read_text(encoding="utf-8")
        try:
            return parse_packages(_LOCAL_FILE.sub(r'path = "\1"', text))
        except ValueError as error:
            raise _UvFailed(f"its pylock.toml: {error}") from None

    def _uv_command(self, python: str) -> list[str]:
        """Build the command that resolves for the stack's platform: wheels, except for packages to compile."""
        glibc = _GLIBC_OF_PYTHON_38 if self.stack.python == "3.8" else _GLIBC
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
        return command

    def _uv_environment(self) -> dict[str, str]:
        """Build the environment of uv: this process's, with the manifest's indexes before those of UV_INDEX."""
        environment = dict(os.environ)
        # Both keep uv from reading the uv.toml in its working directory.
        environment.pop("UV_CONFIG_FILE", None)
        environment.pop("UV_NO_CONFIG", None)
        environment["UV_INDEX"] = " ".join([*self.indexes, os.environ.get("UV_INDEX", "")]).strip()
        return environment


def _wheel_entry(wheel: GivenWheel, stack: Stack) -> LockEntry:
    """Build the lock's entry of a wheel whose digest a person gave.

    Raises FlagbenchError (USAGE) if the wheel is not for the stack's Python and platform.
    """
    path = unquote(urlsplit(wheel.url).path)
    file = path.rpartition("/")[2]
    try:
        name, version, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        raise FlagbenchError(f"--wheel-digest: {error}", remedy="write the address of a wheel") from None
    python = f"cp{stack.python.replace('.', '')}"
    machine = _MACHINES[stack.platform]
    tags_for_python = [tag for tag in tags if tag.interpreter in (python, "py3") or tag.abi == "abi3"]
    if not any(tag.platform.endswith((machine, "any")) for tag in tags_for_python):
        raise FlagbenchError(
            f"--wheel-digest: {file} is not for Python {stack.python} on {stack.platform}",
            remedy=f"name the wheel for {python} and {machine}",
        )
    sha256 = wheel.digest.digest.removeprefix("sha256:")
    # An entry keeps its table as text, so the table is written as uv would write it.
    (entry,) = parse_packages(
        "[[packages]]\n"
        f"name = {json.dumps(name)}\n"
        f"version = {json.dumps(str(version))}\n"
        f'wheels = [{{ url = {json.dumps(wheel.url)}, hashes = {{ sha256 = "{sha256}" }} }}]\n'
        f"tool = {{ flagbench = {{ hash-source = {json.dumps(wheel.digest.source)} }} }}\n"
    )
    return entry


def _find_uv() -> str:
    """Find the uv of this Python environment, else the one on PATH. Raises FlagbenchError (USAGE) without one."""
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
    """The canonical name in `name[extras]==version`."""
    return canonical(requirement.partition("==")[0].partition("[")[0])


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
