"""Asks uv which packages a stack needs, with the hashes of the files that fit it.

uv resolves for any Python and platform, from metadata alone, and gives the sha256 of every file. pip would have to
download the files, and resolves only for an installed Python.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec.toml

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.metadata import Tables, uv_settings
from flagbench.locks.model import LockEntry, canonical

OLDEST = (0, 13)
"""The release of uv that this was written against."""
_OUTPUT = "pylock.toml"
_INPUT = "requirements.in"
_ABSENT = "overrides.txt"
_KEPT = "constraints.txt"


@dataclass(frozen=True)
class Request:
    """What to resolve, and for what."""

    requirements: tuple[str, ...]
    python: str
    platform: str
    """As uv names it, see `platforms`."""
    compiled: frozenset[str]
    """Canonical names of packages taken as source; everything else is taken as a wheel."""
    absent: frozenset[str] = frozenset()
    """Canonical names of packages that are never asked for, also where others need them."""
    tables: Tables = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    """Versions to keep, by canonical name."""
    alone: bool = False
    """Whether to leave out what the requirements need in turn."""


@dataclass(frozen=True)
class Found(LockEntry):
    """One package of the answer, with the files that fit; with all their names if the index states no hash."""

    source: str | None = None
    """URL of the source archive, for a package that is compiled."""


class IndexUnreachable(Exception):
    """A package index did not answer; `url` is the requested page, `cause` the last reason given."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(f"{url}: {cause}")
        self.url = url
        self.cause = cause


class NoSolution(Exception):
    """No set of packages satisfies the request; `missing` are the pins that uv could not find."""

    def __init__(self, text: str, missing: frozenset[str]) -> None:
        super().__init__(text)
        self.missing = missing


def resolve(request: Request, environment: Mapping[str, str]) -> list[Found]:
    """The packages of a request, sorted by name.

    Raises:
        IndexUnreachable, NoSolution: what the caller may have an answer for.
        FlagbenchError: uv is not installed (usage), or failed otherwise (engine).
    """
    program = find_uv()
    with tempfile.TemporaryDirectory(prefix="flagbench-lock-") as name:
        folder = Path(name)
        _write(folder / _INPUT, request.requirements)
        # An override whose marker never holds leaves a package out, even if others require it.
        _write(folder / _ABSENT, [f"{package} ; python_version < '0'" for package in sorted(request.absent)])
        # Constraints, not uv's preferences from an earlier output: with several indexes it takes a preferred version
        # from the first that has it, even if only another has a file that fits.
        _write(folder / _KEPT, [f"{package}=={version}" for package, version in request.kept.items()])
        ended = subprocess.run(
            [program, *_arguments(request)],
            cwd=folder,
            env={**_with_settings(request, folder, environment), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise _failure(ended.stderr)
        return _packages((folder / _OUTPUT).read_text(encoding="utf-8"), request.compiled)


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def find_uv() -> str:
    """The uv program: the one installed beside flagbench, else the one on PATH.

    Raises FlagbenchError (usage) if it is not installed, or so old that it lists the hashes of files that do not fit.
    """
    try:
        program: str | None = import_module("uv").find_uv_bin()
    except (ImportError, FileNotFoundError):
        program = shutil.which("uv")
    if program is None:
        raise FlagbenchError(
            "uv, which resolves packages, is not installed", remedy="install it with `pip install 'flagbench[lock]'`"
        )
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"uv (\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        raise FlagbenchError(
            f"{program} is {said.strip() or 'not uv'}, and uv {OLDEST[0]}.{OLDEST[1]} or newer is needed",
            remedy="install it with `pip install --upgrade 'flagbench[lock]'`",
        )
    return program


def _with_settings(request: Request, folder: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment in which uv reads the request's tables beside the user's own settings."""
    own = environment.get("UV_CONFIG_FILE")
    try:
        before = Path(own).read_text(encoding="utf-8") if own else ""
    except OSError as error:
        raise FlagbenchError(
            f"UV_CONFIG_FILE names {own}, which cannot be read: {error.strerror}", remedy="correct or unset it"
        ) from None
    settings = folder / "uv.toml"
    settings.write_text(f"{before}\n{uv_settings(request.tables)}", encoding="utf-8")
    if not environment.keys() & {"UV_CONFIG_FILE", "UV_NO_CONFIG"}:
        # uv reads the uv.toml of its working directory beside that of the user.
        return environment
    without = {key: value for key, value in environment.items() if key != "UV_NO_CONFIG"}
    return {**without, "UV_CONFIG_FILE": str(settings)}


def _arguments(request: Request) -> list[str]:
    arguments = ["pip", "compile", _INPUT, "--format", "pylock.toml", "--output-file", _OUTPUT, "--quiet"]
    arguments += ["--python-version", request.python, "--python-platform", request.platform]
    arguments += ["--overrides", _ABSENT, "--constraints", _KEPT, "--no-python-downloads", "--only-binary", ":all:"]
    for name in sorted(request.compiled):
        arguments += ["--no-binary", name]
    arguments += ["--no-deps"] if request.alone else []
    # As pip does in the image: the best version of all indexes, not the best of the first index that knows the
    # name. What may be installed is decided by the hashes, which a person reviews.
    return [*arguments, "--index-strategy", "unsafe-best-match"]


def _packages(text: str, compiled: frozenset[str]) -> list[Found]:
    """The packages of the pylock.toml that uv wrote, sorted by name.

    Not by packaging.pylock, which rejects the file of an index without hashes as a whole.
    """
    found = []
    for package in msgspec.toml.decode(text).get("packages", []):
        name = canonical(package["name"])
        source = package.get("sdist", {}) if name in compiled else {}
        files = [source] if source else package.get("wheels", [])
        sha256 = {_file_name(file): file.get("hashes", {}).get("sha256") for file in files}
        hashed = sorted((f"sha256:{digest}", file) for file, digest in sha256.items() if digest)
        hashes, names = zip(*hashed, strict=True) if hashed else ((), tuple(sorted(sha256)))
        found.append(Found(name, package["version"], hashes, names, source.get("url")))
    return sorted(found, key=attrgetter("name"))


def _file_name(file: Mapping[str, Any]) -> str:
    path: str = file.get("name") or file.get("path") or urlsplit(file["url"]).path
    return unquote(path.rsplit("/", 1)[-1])


# uv's words, of the releases that pyproject.toml names. A phrase that changes costs the finer message, not the error.
_UNREACHABLE = re.compile(r"Failed to fetch:? `?(?P<url>[a-z]+://[^\s`]+)`?")
_CAUSE = re.compile(r"(?m)^\s*(?:cause|Caused by): (?P<cause>.+)$")
_NO_SOLUTION = "No solution found"
_NO_VERSION = re.compile(r"no versions? of (?P<pin>[^\s=]+==[^\s,]+)")
_NOT_FOUND = re.compile(r"(?P<name>\S+) was not found in the")


def _failure(stderr: str) -> Exception:
    if fetch := _UNREACHABLE.search(stderr):
        causes = _CAUSE.findall(stderr)
        return IndexUnreachable(fetch["url"], causes[-1].strip() if causes else "no cause was given")
    # uv wraps its explanation to the width of the terminal.
    text = " ".join(stderr.split())
    if _NO_SOLUTION in text:
        pins = {match.rstrip(".") for match in _NO_VERSION.findall(text)}
        return NoSolution(text, frozenset(pins | set(_NOT_FOUND.findall(text))))
    return FlagbenchError(
        f"uv failed: {text or 'it said nothing'}",
        remedy="fix what it names; uv's own settings and pip's are honoured, --pip-source and --ca-bundle beat both",
        code=ExitCode.ENGINE,
    )
