"""Fills a wheelhouse: a folder with the files of a lock, for building images without a network.

A file gets its name in the folder only once it is complete and its sha256 is verified, so an interrupted run can be
resumed and a damaged file is fetched again. Files of other stacks stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import reason
from flagbench.locks.fetch import fetch_source, fetch_wheel
from flagbench.locks.metadata import Tables
from flagbench.locks.model import Lock, LockEntry, Unresolved, canonical
from flagbench.locks.packages import package_files, sha256_of
from flagbench.locks.sources import Sources
from flagbench.locks.uv import find_uv

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

AT_ONCE = 4
"""Packages fetched at the same time: enough to hide an index's latency, few enough to be polite to it."""
_UNFINISHED = ".flagbench-"
Report = Callable[[str], None]
Fetch = Callable[[LockEntry, Path], None]
"""Puts the file of an entry into a folder."""


@dataclass(frozen=True)
class WheelhouseFile:
    """One file of a wheelhouse."""

    name: str
    """Of the package, canonical."""
    version: str
    file: str
    sha256: str
    """64 hexadecimal digits."""
    size: int
    """Bytes."""
    fetched: bool
    """Whether this run brought it."""
    locked: bool
    """Whether the lock knows its hash."""


def fill_wheelhouse(
    stack: Stack,
    lock: Lock,
    folder: Path,
    *,
    sources: Sources,
    tables: Tables,
    allow_unlocked: bool = False,
    report: Report,
) -> list[WheelhouseFile]:
    """Fetch the files of a lock that `folder` lacks; returns all of them, sorted by package.

    Raises:
        FlagbenchError: packages are unresolved and `allow_unlocked` is not given (usage), the folder cannot be
            written, another run is filling it, or a file could not be fetched.
    """
    if lock.unresolved and not allow_unlocked:
        names = ", ".join(entry.pin for entry in lock.unresolved)
        raise FlagbenchError(
            f"unresolved in the lock of {stack.name}: {names}",
            remedy=f"run `flagbench lock {stack.name}` where their index can be reached, or give --allow-unlocked to "
            "take what the index offers today",
        )
    with _exclusive(folder):
        files = package_files(folder)
        kept = {entry.name: file for entry in lock.entries if (file := _locked_file(entry, files))}
        missing = [entry for entry in (*lock.entries, *lock.unresolved) if entry.name not in kept]
        report(f"{stack.name}: {len(kept)} files are there, {len(missing)} are to be fetched")
        compiled = {canonical(package.name) for package in stack.build.compiled}
        if any(entry.name in compiled for entry in missing):
            find_uv()  # finds sources: its absence is reported now, not after the wheels

        def fetch(entry: LockEntry, into: Path) -> None:
            if entry.name in compiled:
                fetch_source(stack, entry, into, sources, tables)
            else:
                fetch_wheel(stack, entry, into, sources)

        return sorted([*kept.values(), *_fetch_all(missing, folder, fetch, report)], key=attrgetter("name"))


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Create and lock the folder, and remove what an interrupted run left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The folder itself is locked: no lock file stays behind, and the lock of a killed process is released.
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise FlagbenchError(
            f"the wheelhouse {folder} cannot be created: {reason(error)}",
            remedy="name a folder that can be written with --out",
        ) from None
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FlagbenchError(
                f"another `flagbench wheels` is filling {folder}", remedy="wait for it, or name another folder"
            ) from None
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(held)


def _locked_file(entry: LockEntry, files: Mapping[tuple[str, Version], Sequence[Path]]) -> WheelhouseFile | None:
    """The file of an entry with one of its hashes, if there is one."""
    for path in files.get((entry.name, Version(entry.version)), ()):
        digest = sha256_of(path)
        if digest in entry.hashes:
            return _wheelhouse_file(entry, path, digest, fetched=False)
    return None


def _wheelhouse_file(entry: LockEntry, path: Path, digest: str, *, fetched: bool) -> WheelhouseFile:
    return WheelhouseFile(
        name=entry.name,
        version=entry.version,
        file=path.name,
        sha256=digest.removeprefix("sha256:"),
        size=path.stat().st_size,
        fetched=fetched,
        locked=not isinstance(entry, Unresolved),
    )


def _fetch_all(entries: Sequence[LockEntry], folder: Path, fetch: Fetch, report: Report) -> list[WheelhouseFile]:
    """Fetch a file for each entry. The first failure ends the run; files that are complete stay."""
    files = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(_fetch_one, entry, folder, fetch) for entry in entries]
        try:
            for future in as_completed(futures):
                file = future.result()
                files.append(file)
                report(f"  {len(files)}/{len(entries)} {file.file} ({file.size / 1e6:.1f} MB)")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return files


def _fetch_one(entry: LockEntry, folder: Path, fetch: Fetch) -> WheelhouseFile:
    """Fetch a file into a temporary folder, and move it into `folder` once its hash is verified."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED) as temporary:
            into = Path(temporary, "file")
            into.mkdir()
            fetch(entry, into)
            (path,) = into.iterdir()
            digest = sha256_of(path)
            if entry.hashes and digest not in entry.hashes:
                raise FlagbenchError(
                    f"{path.name} is not the file that was locked: its hash is {digest}",
                    remedy="find out which of the two is right before `flagbench lock`: a released file does not "
                    "change",
                    code=ExitCode.DATA,
                )
            return _wheelhouse_file(entry, path.replace(folder / path.name), digest, fetched=True)
    except OSError as error:
        raise FlagbenchError(
            f"{entry.pin} could not be written to {folder}: {reason(error)}",
            remedy="make room there, or name another folder; what is there already is kept",
        ) from None
