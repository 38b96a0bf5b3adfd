"""Filling a wheelhouse: a folder with the files of a lock, for building images where there is no network.

A file comes into the folder under its name only when it is complete and its sha256 is right. So an interrupted run
can be resumed, and a damaged file is fetched again; files of other stacks stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.fetch import fetch_source, fetch_wheel
from flagbench.locks.metadata import Tables
from flagbench.locks.model import Lock, LockEntry, Unresolved, canonical
from flagbench.locks.packages import pin_of, sha256_of
from flagbench.locks.sources import Sources
from flagbench.locks.uv import find_uv

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

AT_ONCE = 4
"""Packages fetched at the same time: enough to hide an index's latency, few enough to be polite to it."""
_UNFINISHED = ".flagbench-"
Report = Callable[[str], None]


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
    """The files of a lock, all in `folder` when this returns, sorted by package.

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
        there = [file for entry in lock.entries if (file := _present(entry, folder))]
        kept = {file.name for file in there}
        missing = [entry for entry in (*lock.entries, *lock.unresolved) if entry.name not in kept]
        report(f"{stack.name}: {len(there)} files are there, {len(missing)} are to be fetched")
        if {entry.name for entry in missing} & {canonical(package.name) for package in stack.build.compiled}:
            find_uv()  # finds sources: better missed now than after the wheels
        fetch = _Fetch(stack, folder, sources, tables)
        return sorted([*there, *fetch.all(missing, report)], key=lambda file: file.name)


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Creates and locks the folder; removes what an earlier run left unfinished."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The folder itself is the lock: nothing is left in it, and a killed process lets go.
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise FlagbenchError(
            f"the wheelhouse {folder} cannot be made: {error.strerror}",
            remedy="name a folder that can be written with --output",
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


def _present(entry: LockEntry, folder: Path) -> WheelhouseFile | None:
    """The file of an entry that is there and right."""
    pin = (entry.name, Version(entry.version))
    for path in sorted(folder.iterdir()):
        if pin_of(path.name) == pin:
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


@dataclass(frozen=True)
class _Fetch:
    """Bringing missing files."""

    stack: Stack
    folder: Path
    sources: Sources
    tables: Tables

    def all(self, missing: list[LockEntry], report: Report) -> list[WheelhouseFile]:
        """Every missing file; the first failure ends the run; what was fetched before stays."""
        files = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = [pool.submit(self.one, entry) for entry in missing]
            try:
                for future in as_completed(futures):
                    file = future.result()
                    files.append(file)
                    report(f"  {len(files)}/{len(missing)} {file.file} ({file.size / 1e6:.1f} MB)")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return files

    def one(self, entry: LockEntry) -> WheelhouseFile:
        """One file, fetched beside its place and moved there when it is right."""
        compiled = {canonical(package.name) for package in self.stack.build.compiled}
        try:
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=_UNFINISHED) as temporary:
                place = Path(temporary, "file")
                place.mkdir()
                if entry.name in compiled:
                    fetch_source(self.stack, entry, place, self.sources, self.tables)
                else:
                    fetch_wheel(self.stack, entry, place, self.sources)
                return self._moved(entry, place)
        except OSError as error:
            raise FlagbenchError(
                f"{entry.pin} could not be written to {self.folder}: {error.strerror or error}",
                remedy="make room there, or name another folder; what is there already is kept",
            ) from None

    def _moved(self, entry: LockEntry, place: Path) -> WheelhouseFile:
        (path,) = place.iterdir()
        digest = sha256_of(path)
        if entry.hashes and digest not in entry.hashes:
            raise FlagbenchError(
                f"{path.name} is not the file that was locked: its hash is {digest}",
                remedy="find out which of the two is right before `flagbench lock`: a released file does not change",
                code=ExitCode.DATA,
            )
        return _wheelhouse_file(entry, path.replace(self.folder / path.name), digest, fetched=True)
