"""Makes the lock of a stack: `uv pip compile` resolves the packages, the base's registry gives its digest.

A package that cannot be resolved is locked as unresolved, with the reason. The entry of an earlier lock is kept while
the version stays the same.
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
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec.toml
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from flagbench.errors import FlagbenchError
from flagbench.image_reference import parse_reference
from flagbench.images.lockfile import (
    DigestOf,
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


_INSPECT_SECONDS, _CHECK_SECONDS = 120, 20
_OTHER_DIGEST = "give the digest of an image for the platform: `flagbench lock {} --base-digest sha256:...`"
Report = Callable[[str], None]
"""Receives progress, a line at a time."""
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
# The glibc of the oldest base: Ubuntu 20.04 for Python 3.8, Ubuntu 22.04 for the others.
_OLD_GLIBC, _GLIBC = "2_31", "2_35"
# The address of a file that is on this machine alone.
_LOCAL = re.compile(r'\b(?:url = "file://|path = ")[^"]*?([^"/]+)"')


class BaseUnknown(Exception):
    """Why the digest of a base could not be found out."""


class PlatformMissing(BaseUnknown):
    """The registry answered, and the base is for other platforms."""


@dataclass(frozen=True)
class StatedDigest:
    """A digest that a person gives."""

    digest: str
    """`sha256:<64 hex>`."""
    source: str
    """The address of who states it, or UNKNOWN_SOURCE."""


@dataclass(frozen=True)
class StatedWheel:
    """The digest of a package's wheel that a person gives."""

    url: str
    """Where the wheel is."""
    digest: StatedDigest


@dataclass(frozen=True)
class Stated:
    """What a person gives because neither registry nor index can be asked."""

    base: StatedDigest | None = None
    base_of: DigestOf | None = None
    """What the base's digest is of; None: not known."""
    wheels: tuple[StatedWheel, ...] = ()


def find_digest(image: str, platform: str, seconds: float = _INSPECT_SECONDS) -> str:
    """`sha256:<64 hex>` of the manifest that a tag or digest names for a platform such as linux/amd64.

    Raises BaseUnknown, and PlatformMissing where the image is for other platforms.
    """
    command = [os.environ.get("FLAGBENCH_DOCKER") or "docker", "manifest", "inspect", "--verbose"]
    if parse_reference(image).host.partition(":")[0] in ("localhost", "127.0.0.1"):
        command.append("--insecure")  # without TLS, as an engine pulls from its own machine
    try:
        ended = subprocess.run([*command, image], capture_output=True, text=True, timeout=seconds, check=True)
        answer = json.loads(ended.stdout)
        # A list for a tag with several platforms. It does not include the list's own digest.
        manifests = answer if isinstance(answer, list) else [answer]
        digests = {}
        for manifest in manifests:
            descriptor = manifest["Descriptor"]
            digests["{os}/{architecture}".format(**descriptor["platform"])] = str(descriptor["digest"])
    except subprocess.CalledProcessError as error:
        raise BaseUnknown(redact(" ".join(error.stderr.split()))) from None
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
        raise BaseUnknown(f"`docker manifest inspect` failed: {error}") from None
    if platform not in digests:
        raise PlatformMissing(f"{image} is not for {platform}, but for {', '.join(digests)}")
    return digests[platform]


def require_platform(stack: Stack, lock: Lock) -> None:
    """Ask the base's registry whether the locked digest is for the stack's platform, if it may be that of an index.

    Raises FlagbenchError (usage) if it is for another platform. A registry that does not answer is not an error.
    """
    if lock.base_image is None or lock.base_digest is None or lock.base_digest_of is DigestOf.IMAGE:
        return
    try:
        find_digest(f"{parse_reference(lock.base_image).name}@{lock.base_digest}", stack.platform, _CHECK_SECONDS)
    except PlatformMissing as error:
        raise FlagbenchError(
            f"the base in the lock of {stack.name} does not fit: {error}", remedy=_OTHER_DIGEST.format(stack.name)
        ) from None
    except BaseUnknown:
        return


def update_lock(
    stack: Stack, images: Path, report: Report, *, upgrade: bool, digests: Stated = Stated()
) -> tuple[Lock, bool]:
    """Lock a stack again, and write its file; returns the lock, and whether the file changed.

    Versions of an earlier lock, even of a stale one, are kept where they still fit.

    Args:
        images: the folder with locks/; its uv.toml declares what packages need that uv would have to build.
        upgrade: take the newest versions, and ask for the base again.
        digests: those set by hand.

    Raises FlagbenchError: uv is not installed, the manifest's packages do not go together, or what was stated does
    not fit (usage); an index cannot be asked (engine).
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
    entries, unresolved = _PackageSearch(stack, folder, previous, report, upgrade, digests.wheels).resolve()
    base = _find_base(stack, previous, report, upgrade, digests)
    lock = Lock(
        stack=stack.name,
        python=stack.python,
        base_image=stated_base(stack)[0],
        base_digest=base.digest,
        base_digest_of=base.digest_of,
        base_digest_source=base.source,
        inputs=inputs_digest(stack),
        entries=tuple(sorted(entries, key=attrgetter("name"))),
        unresolved=tuple(sorted(unresolved, key=attrgetter("name"))),
    )
    if wrong := is_stale(lock, stack):
        raise FlagbenchError(f"the new lock of {stack.name} does not fit: {wrong}", remedy="leave --base-digest out")
    return lock, write_lock(lock, images)


@dataclass(frozen=True)
class _Base:
    """The base's part of a lock."""

    digest: str | None = None
    digest_of: DigestOf | None = None
    source: str | None = None


def _find_base(stack: Stack, previous: Lock | None, report: Report, upgrade: bool, digests: Stated) -> _Base:
    if digests.base is not None:
        return _check_stated_base(stack, digests.base, digests.base_of, report)
    image, digest = stated_base(stack)
    if digest is not None:
        return _Base(digest)
    earlier = _Base()
    if previous is not None and previous.base_image == image:
        earlier = _Base(previous.base_digest, previous.base_digest_of, previous.base_digest_source)
    if image is None or (earlier.digest is not None and not upgrade):
        return earlier
    try:
        return _Base(find_digest(image, stack.platform), DigestOf.IMAGE)
    except BaseUnknown as error:
        state = "unresolved" if earlier.digest is None else "as it was"
        report(f"{stack.name}: the base stays {state}: {error}")
        return earlier


def _check_stated_base(stack: Stack, by_hand: StatedDigest, digest_of: DigestOf | None, report: Report) -> _Base:
    """The base by a digest that a person gave; of an index, where its registry can be asked, the platform's image.

    Raises FlagbenchError (usage) where the registry says that it is for other platforms.
    """
    image, _ = stated_base(stack)
    if image is None:
        return _Base(by_hand.digest, None, by_hand.source)
    try:
        digest = find_digest(f"{parse_reference(image).name}@{by_hand.digest}", stack.platform)
    except PlatformMissing as error:
        raise FlagbenchError(
            f"--base-digest does not fit {stack.name}: {error}", remedy=_OTHER_DIGEST.format(stack.name)
        ) from None
    except BaseUnknown as error:
        report(f"{stack.name}: the base's digest is taken as it was given: {error}")
        return _Base(by_hand.digest, digest_of, by_hand.source)
    if digest == by_hand.digest:
        return _Base(digest, DigestOf.IMAGE, by_hand.source)
    report(f"{stack.name}: {by_hand.digest} is an index; its image for {stack.platform} is locked, {digest}")
    return _Base(digest, DigestOf.IMAGE)


class _UvFailed(Exception):
    """The error that uv printed, in one line."""


class _PackageSearch:
    """The search for a stack's packages, which continues without an index of the manifest that cannot be reached."""

    def __init__(
        self,
        stack: Stack,
        folder: Path,
        previous: Lock | None,
        report: Report,
        upgrade: bool,
        wheels: Iterable[StatedWheel] = (),
    ) -> None:
        self.stack = stack
        self.build = stack.build
        self.settings = folder / "uv.toml"
        self.report = report
        self.upgrade = upgrade
        self.pins = {_name(line): line.partition("==")[2] for line in (*self.build.packages, *self.build.optional)}
        self.compiled = {canonical(package.name): package.version for package in self.build.compiled}
        self.earlier = {entry.pin: entry for entry in previous.entries} if previous else {}
        self.kept: list[str] = []
        if not upgrade:
            self.kept = [entry.pin for entry in self.earlier.values() if entry.name not in self.pins]
        self.stated: dict[str, LockEntry] = {}
        for wheel in wheels:
            entry = _wheel_entry(wheel, stack)
            self.stated[entry.pin] = entry
        self.indexes = list(self.build.indexes)
        self.silent: list[str] = []
        """Indexes of the manifest that could not be reached."""
        self.lost: dict[str, str] = {}
        """Direct requirements that only such an index has: canonical name to the reason."""

    def resolve(self) -> tuple[list[LockEntry], list[Unresolved]]:
        """What is locked, and what stays unresolved."""
        while True:
            try:
                entries = [*self._compile(self._requirements(), self.stack.python), *self._for_other_pythons()]
                break
            except _UvFailed as error:
                self._continue_without(str(error))
        if not self.upgrade:
            entries = [self.earlier.get(entry.pin, entry) for entry in entries]
        lost = [Unresolved(name, self.pins[name], reason=reason) for name, reason in self.lost.items()]
        if others := sorted(self.stated.keys() - {entry.pin for entry in lost}):
            raise FlagbenchError(
                f"--wheel-digest names {', '.join(others)}, which {self.stack.name} does not lack",
                remedy="leave it out: an index lists the files of its packages, with their hashes",
            )
        kept = self.earlier | self.stated
        entries += [kept[entry.pin] for entry in lost if entry.pin in kept]
        return entries, [entry for entry in lost if entry.pin not in kept]

    def _requirements(self) -> list[str]:
        lines = [line for line in (*self.build.packages, *self.build.optional) if _name(line) not in self.lost]
        for name, version in self.compiled.items():
            self._declared(name, version)  # or uv would run its setup.py
            lines.append(f"{name}=={version}")
        for name in self.lost:
            lines += self._declared(name, self.pins[name])
        return lines

    def _declared(self, name: str, version: str) -> list[str]:
        """The dependencies of a package that uv's settings declare."""
        text = self.settings.read_bytes() if self.settings.is_file() else b""
        for table in msgspec.toml.decode(text).get("dependency-metadata", ()):
            if (canonical(table["name"]), table["version"]) == (name, version):
                return list(table["requires-dist"])
        raise FlagbenchError(
            f"{self.settings} does not declare what {name}=={version} needs in turn",
            remedy="add its table, from the METADATA, PKG-INFO or setup.py of that version",
        )

    def _for_other_pythons(self) -> Iterator[LockEntry]:
        # Without dependencies: those would be resolved for the other Python, too.
        for package in self.build.other_python:
            yield from self._compile([f"{package.name}=={package.version}"], package.python, "--no-deps")

    def _continue_without(self, error: str) -> None:
        """Drop an index that cannot be reached, then what only it has, then the versions of the earlier lock."""
        index = next((url for url in self.indexes if f"{url.rstrip('/')}/" in error), None)
        absent = r"\b{0} was not found|no versions? of {0}=="
        missing = [name for name in self.pins.keys() - self.lost if re.search(absent.format(name), error)]
        conflict = "No solution found" in error
        code = ExitCode.ENGINE
        if conflict:
            code = ExitCode.USAGE
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
                code=code,
            ) from None

    def _compile(self, requirements: Iterable[str], python: str, *options: str) -> tuple[LockEntry, ...]:
        """The packages that fit the stack's platform: wheels, except for packages that the image compiles."""
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


def _wheel_entry(wheel: StatedWheel, stack: Stack) -> LockEntry:
    """The entry of a wheel whose digest a person gave. Raises FlagbenchError (usage) where it does not fit."""
    file = unquote(urlsplit(wheel.url).path).rpartition("/")[2]
    try:
        name, version, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        raise FlagbenchError(f"--wheel-digest: {error}", remedy="write the address of a wheel") from None
    python, machine = f"cp{stack.python.replace('.', '')}", _MACHINES[stack.platform]
    pythons = [tag for tag in tags if tag.interpreter in (python, "py3") or tag.abi == "abi3"]
    if not any(tag.platform.endswith((machine, "any")) for tag in pythons):
        raise FlagbenchError(
            f"--wheel-digest: {file} is not for Python {stack.python} on {stack.platform}",
            remedy=f"name the wheel for {python} and {machine}",
        )
    hashes = f'hashes = {{ sha256 = "{wheel.digest.digest.removeprefix("sha256:")}" }}'
    (entry,) = parse_packages(
        "[[packages]]\n"
        f"name = {json.dumps(name)}\n"
        f"version = {json.dumps(str(version))}\n"
        f"wheels = [{{ url = {json.dumps(wheel.url)}, {hashes} }}]\n"
        f"tool = {{ flagbench = {{ hash-source = {json.dumps(wheel.digest.source)} }} }}\n"
    )
    return entry


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
