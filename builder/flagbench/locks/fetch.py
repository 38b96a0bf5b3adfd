"""Fetches one package of a lock into an empty folder: a wheel with pip, a source archive by its URL."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from requests import Session

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.metadata import Tables
from flagbench.locks.model import LockEntry, canonical
from flagbench.locks.platforms import pip_platforms, uv_platform
from flagbench.locks.session import REFUSED, REMEDY, TIMEOUT, IndexSession, refusing_indexes
from flagbench.locks.sources import Sources
from flagbench.locks.uv import IndexUnreachable, NoSolution, Request, resolve
from flagbench.redaction import redact

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

_BLOCK = 1 << 20


def fetch_wheel(stack: Stack, entry: LockEntry, folder: Path, sources: Sources) -> None:
    """Download the wheel of an entry that fits the stack into `folder`; pip checks its hash, if one is locked.

    Raises FlagbenchError: it could not be fetched (engine), or is not the file that was locked (data).
    """
    requirements, log = folder.with_name(f"{folder.name}.txt"), folder.with_name(f"{folder.name}.log")
    hashes = "".join(f" --hash={digest}" for digest in entry.hashes)
    requirements.write_text(f"{entry.pin}{hashes}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--progress-bar", "off", "--dest", str(folder), "--requirement", str(requirements)]
    command += ["--log", str(log)]
    others = {canonical(package.name): package.python for package in stack.build.other_python}
    python = others.get(entry.name, stack.python)
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    command += [f"--platform={tag}" for tag in pip_platforms(stack)]
    command += ["--require-hashes"] if entry.hashes else []
    further = [] if sources.further else stack.build.indexes
    beside = [f"--extra-index-url={index}" for index in further]
    # Most packages are where pip looks by itself: an index beside it, which may be out of reach, is a second try.
    for more in [[], ["--retries=2", *beside]] if beside else [[]]:
        ended = subprocess.run(
            [*command, *more], env=sources.pip_environment(), capture_output=True, text=True, check=False
        )
        if ended.returncode == 0:
            return
    # pip does not fail when an index cannot be reached: it prints why on stdout, and a refusal only in its log.
    raise diagnosed(entry, _refusals(log) + ended.stdout + ended.stderr)


def _refusals(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return "".join(f"{line}\n" for line in lines if "Could not fetch URL" in line)


def fetch_source(stack: Stack, entry: LockEntry, folder: Path, sources: Sources, tables: Tables) -> None:
    """Download the source archive of a compiled package into `folder`; the caller checks its hash.

    Not with pip, which runs a source's setup.py to download it: that needs the torch of the image.

    Raises FlagbenchError: uv is not installed (usage), or the archive could not be fetched (engine).
    """
    url = _source_url(stack, entry, sources, tables)
    # uv asks its indexes with their accounts, and names the file without.
    session = IndexSession(sources.uv_environment(stack.build.indexes), sources.ca_bundle)
    try:
        _download(url, folder, session)
    except (OSError, ValueError) as error:
        raise diagnosed(entry, str(error) or type(error).__name__) from None


def _download(url: str, folder: Path, session: Session) -> None:
    """Download a file into a folder, under its own name. Raises OSError, also for errors of requests."""
    parts = urlsplit(url)
    path = folder / Path(unquote(parts.path)).name
    if parts.scheme == "file":
        shutil.copyfile(url2pathname(parts.path), path)
        return
    with session, session.get(url, timeout=TIMEOUT, stream=True) as answer:
        answer.raise_for_status()
        with path.open("wb") as file:
            file.writelines(answer.iter_content(_BLOCK))


def _source_url(stack: Stack, entry: LockEntry, sources: Sources, tables: Tables) -> str:
    pin = (entry.name, entry.version)
    request = Request(
        requirements=(entry.pin,),
        python=stack.python,
        platform=uv_platform(stack),
        compiled=frozenset({entry.name}),
        tables={pin: tables[pin]} if pin in tables else {},
        alone=True,
    )
    cause = ""
    # The stack's indexes, which may be out of reach, are a second try.
    for indexes in ((), stack.build.indexes):
        environment = sources.uv_environment(indexes)
        try:
            (found,) = resolve(request, environment)
        except IndexUnreachable as error:
            cause = str(error)
        except NoSolution as error:
            refused = refusing_indexes(stack, environment, sources.ca_bundle).values()
            cause = ", ".join(f"HTTP Error {status}" for status in refused) or str(error)
        else:
            if found.source:
                return found.source
            cause = "no index has its source"
    raise diagnosed(entry, cause)


_RETRY = "run the command again; files that are complete are kept"


class _Cause(NamedTuple):
    """What a message of pip, uv or the network means."""

    pattern: str
    text: str
    remedy: str
    code: ExitCode = ExitCode.ENGINE


# The first pattern that matches counts, because one message hides another: pip reports an untrusted certificate and
# an unknown host as "No matching distribution found" too. It says "after connection broken by" of every retry,
# whatever the reason; only urllib3's own "Connection broken:" means an incomplete file. Case is ignored.
_CAUSES = (
    _Cause(
        r"No space left on device|Errno 28",
        "the disk is full",
        "free some space, or name a folder on another disk; files that are complete are kept",
        ExitCode.USAGE,
    ),
    _Cause(
        r"DO NOT MATCH THE HASHES",
        "the index has another file than the one that was locked",
        "find out which of the two is right before `flagbench lock`: a released file does not change",
        ExitCode.DATA,
    ),
    _Cause(
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|invalid peer certificate",
        "the index's certificate is not trusted here",
        "name the certificates of this network with --ca-bundle",
    ),
    _Cause(
        r"IncompleteRead|Connection broken:|Remote end closed connection",
        "the connection ended before the file did",
        _RETRY,
    ),
    _Cause(
        r"Name or service not known|dns error|Temporary failure in name resolution|Connection refused"
        r"|Network is unreachable|NewConnectionError|ProxyError|timed out|Connection reset",
        "its index could not be reached",
        "check the network and the proxy, or name another index with --pip-source; files that are complete are kept",
    ),
    _Cause(
        r"\b(401|403|407)(?: Client)? Error\b|HTTP Error (401|403|407)|\b(401 Unauthorized|403 Forbidden)\b",
        f"its index {REFUSED}",
        REMEDY,
    ),
    _Cause(r"No module named pip", "this Python has no pip", "install it: `python3 -m ensurepip`", ExitCode.USAGE),
    _Cause(
        r"No matching distribution found|no versions? of|no index has",
        "no index has it for this stack's Python and platform",
        "name an index that has it with --pip-source",
    ),
)


def diagnosed(entry: LockEntry, said: str) -> FlagbenchError:
    """The error for a package that could not be fetched, from what pip or the network said."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    unknown = _Cause("", redact(lines[-1]) if lines else "no reason was given", _RETRY)
    found = next((cause for cause in _CAUSES if re.search(cause.pattern, said, re.IGNORECASE)), unknown)
    return FlagbenchError(f"{entry.pin} could not be fetched: {found.text}", remedy=found.remedy, code=found.code)
