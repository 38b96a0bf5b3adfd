"""Fetching one package of a lock into an empty folder: wheels by pip, sources by their address."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from requests import Session

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.index_access import CAUSE, REMEDY, refusing_indexes
from flagbench.locks.metadata import Tables
from flagbench.locks.model import LockEntry
from flagbench.locks.platforms import pip_platforms, uv_platform
from flagbench.locks.session import TIMEOUT, index_session
from flagbench.locks.sources import Sources, pip_configuration, pip_environment, uv_environment
from flagbench.locks.uv import IndexUnreachable, NoSolution, Request, resolve
from flagbench.redaction import redact

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

_BLOCK = 1 << 20


def fetch_wheel(stack: Stack, entry: LockEntry, folder: Path, sources: Sources) -> None:
    """Put the wheel of an entry that fits the stack into `folder`; pip checks the hashes, where there are any.

    Raises:
        FlagbenchError: it could not be fetched (engine), or is not the file that was locked (data).
    """
    requirements, log = folder.with_name(f"{folder.name}.txt"), folder.with_name(f"{folder.name}.log")
    hashes = "".join(f" --hash={digest}" for digest in entry.hashes)
    requirements.write_text(f"{entry.pin}{hashes}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--progress-bar", "off", "--dest", str(folder), "--requirement", str(requirements)]
    command += ["--log", str(log)]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", stack.python]
    command += [f"--platform={tag}" for tag in pip_platforms(stack)]
    command += ["--require-hashes"] if entry.hashes else []
    further = [] if sources.further else stack.build.indexes
    beside = [f"--extra-index-url={index}" for index in further]
    # Most packages are where pip looks by itself: an index beside it, which may be out of reach, is a second try.
    for more in [[], ["--retries=2", *beside]] if beside else [[]]:
        ended = subprocess.run(
            [*command, *more], env=pip_environment(sources), capture_output=True, text=True, check=False
        )
        if ended.returncode == 0:
            return
    # pip does not fail when an index cannot be reached: it prints why on stdout, and a refusal only in its log.
    raise diagnosed(entry, _refusals(log) + ended.stdout + ended.stderr)


def _refusals(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return "".join(f"{line}\n" for line in lines if "Could not fetch URL" in line)


def fetch_source(stack: Stack, entry: LockEntry, folder: Path, sources: Sources, tables: Tables) -> None:
    """Put the source archive of a compiled package into `folder`, unchecked: the caller compares its hash.

    Not by pip, which runs a source's setup.py to download it: that needs the torch of the image.

    Raises:
        FlagbenchError: uv is not installed (usage), or the archive could not be fetched (engine).
    """
    pip = pip_configuration(sources)
    url = _source_url(stack, entry, sources, pip, tables)
    # uv asks its indexes with their accounts, and names the file without.
    environment = uv_environment(sources, pip, stack.build.indexes)
    try:
        _download(url, folder, index_session(environment, sources.ca_bundle))
    except (OSError, ValueError) as error:
        raise diagnosed(entry, str(error) or type(error).__name__) from None


def _download(url: str, folder: Path, session: Session) -> None:
    """Put the file of an address into a folder, under its own name. Raises OSError, requests' errors among them."""
    parts = urlsplit(url)
    path = folder / Path(unquote(parts.path)).name
    if parts.scheme == "file":
        shutil.copyfile(url2pathname(parts.path), path)
        return
    with session, session.get(url, timeout=TIMEOUT, stream=True) as answer:
        answer.raise_for_status()
        with path.open("wb") as file:
            file.writelines(answer.iter_content(_BLOCK))


def _source_url(stack: Stack, entry: LockEntry, sources: Sources, pip: Mapping[str, str], tables: Tables) -> str:
    table = tables.get((entry.name, entry.version))
    request = Request(
        requirements=(entry.pin,),
        python=stack.python,
        platform=uv_platform(stack),
        compiled=frozenset({entry.name}),
        absent=frozenset(),
        tables=(table,) if table else (),
        alone=True,
    )
    cause = ""
    tries: tuple[tuple[str, ...], ...] = ((), stack.build.indexes)
    for indexes in tries:
        environment = uv_environment(sources, pip, indexes)
        try:
            found = resolve(request, environment)
        except IndexUnreachable as error:
            cause = str(error)
        except NoSolution as error:
            refused = refusing_indexes(stack, environment, sources.ca_bundle).values()
            cause = ", ".join(f"HTTP Error {status}" for status in refused) or str(error)
        else:
            url = found[0].source if found else None
            if url:
                return url
            cause = "no index has its source"
    raise diagnosed(entry, cause)


# What pip and the network say, in the order in which one hides another: a certificate that is not trusted and a
# name that does not resolve both end in "No matching distribution found". pip tells each retry as "after connection
# broken by" whatever it was; only urllib3's own "Connection broken:" is a file cut short.
_CAUSES = (
    (
        re.compile(r"No space left on device|Errno 28"),
        "the disk is full",
        "make room, or name a folder on another disk; what is there already is kept",
        ExitCode.USAGE,
    ),
    (
        re.compile(r"DO NOT MATCH THE HASHES", re.IGNORECASE),
        "the index has another file than the one that was locked",
        "find out which of the two is right before `flagbench lock`: a released file does not change",
        ExitCode.DATA,
    ),
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|invalid peer certificate", re.IGNORECASE),
        "the index's certificate is not trusted here",
        "name the certificates of this network with --ca-bundle",
        ExitCode.ENGINE,
    ),
    (
        re.compile(r"IncompleteRead|Connection broken:|Remote end closed connection", re.IGNORECASE),
        "the connection ended before the file did",
        "run the command again; what is there already is kept",
        ExitCode.ENGINE,
    ),
    (
        re.compile(
            r"Name or service not known|dns error|Temporary failure in name resolution|Connection refused"
            r"|Network is unreachable|NewConnectionError|ProxyError|timed out|Connection reset",
            re.IGNORECASE,
        ),
        "its index could not be reached",
        "check the network and the proxy, or name another index with --pip-source; what is there already is kept",
        ExitCode.ENGINE,
    ),
    (
        re.compile(
            r"\b(401|403|407)(?: Client)? Error\b|HTTP Error (401|403|407)|\b(401 Unauthorized|403 Forbidden)\b",
            re.IGNORECASE,
        ),
        f"its index {CAUSE}",
        REMEDY,
        ExitCode.ENGINE,
    ),
    (
        re.compile(r"No module named pip"),
        "this Python has no pip",
        "install it with `python3 -m ensurepip`",
        ExitCode.USAGE,
    ),
    (
        re.compile(r"No matching distribution found|no versions? of|no index has"),
        "no index has it for this stack's Python and platform",
        "name an index that has it with --pip-source",
        ExitCode.ENGINE,
    ),
)


def diagnosed(entry: LockEntry, said: str) -> FlagbenchError:
    """The error for a package that could not be fetched, from what pip or the network said."""
    for pattern, cause, remedy, code in _CAUSES:
        if pattern.search(said):
            return FlagbenchError(f"{entry.pin} could not be fetched: {cause}", remedy=remedy, code=code)
    lines = [line for line in said.splitlines() if line.strip()]
    last = redact(lines[-1].strip()) if lines else "nothing was said"
    return FlagbenchError(
        f"{entry.pin} could not be fetched: {last}",
        remedy="run the command again: what is there already is kept",
        code=ExitCode.ENGINE,
    )
