"""A store in a folder: a file per record, a checksum beside it, never overwritten. `layout` says where.

How a put stays whole. Record and checksum are first written to temporary files of the same folder and
flushed to the disk, so a full disk is met before anything is visible. Then both are hard-linked to
their names, which either succeeds or finds the name taken: two writers never mix. The checksum is linked
first. A crash between the two links leaves a checksum without a record, which no reader takes for a
record, and which the next put of the same record completes. The other order would leave a record that
nothing vouches for.
"""

from __future__ import annotations

import builtins
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import expanded, read_file
from flagbench.record.read import read_record
from flagbench.stores.base import Health, StoredRecord, StoreError, check_record_id
from flagbench.stores.layout import (
    LAYOUT,
    Day,
    checksum_line,
    checksum_path,
    damaged,
    days,
    file_problem,
    load,
    record_names,
    record_path,
    records_of,
    unfinished_records,
)
from flagbench.terminal import brief

_REMEDIES = {
    errno.ENOSPC: "free some space or name another store with --store",
    errno.EDQUOT: "free some of your quota or name another store with --store",
    errno.EFBIG: "raise the file size limit (ulimit -f) or name another store with --store",
    errno.EROFS: "the file system is read-only; name another store with --store",
    errno.EACCES: "make the folder writable for you or name another store with --store",
    errno.EPERM: "the folder allows no new files or no hard links; name another store with --store",
    errno.ENOTDIR: "part of the path is a file; name a folder with --store",
    errno.EEXIST: "the path is taken by a file; name a folder with --store",
}


class FileStore:
    """Records under one folder, which the first put makes."""

    def __init__(self, root: Path) -> None:
        self.root = expanded(root).absolute()

    @property
    def url(self) -> str:
        """The folder as a file:// URL."""
        return self.root.as_uri()

    def put(self, record: bytes) -> StoredRecord:
        """Keep a record; see Store.put."""
        parsed = read_record(record)
        record_id = check_record_id(parsed.record_id)
        path = record_path(self.root, record_id, parsed.case, parsed.stack, parsed.created_at)
        folder = path.parent
        # Another case, stack or day in the record means other bytes under the same id. (Two such puts at
        # the very same time both succeed: no single name stands for the id across folders.)
        if taken := [other for other in self._paths(record_id) if other != path]:
            raise _conflict(record_id, taken[0])
        checksum = checksum_line(record, path.name)
        try:
            _make_folder(folder)
            with _temporary(folder, checksum) as checksum_file, _temporary(folder, record) as record_file:
                for temporary, target, content in (
                    (checksum_file, checksum_path(path), checksum),
                    (record_file, path, record),
                ):
                    if not _link_if_absent(temporary, target) and not _holds(target, content):
                        raise _conflict(record_id, target)
            _flush_folder(folder)
        except OSError as error:
            raise self._not_stored(record_id, error) from error
        return StoredRecord(record_id, parsed.case, parsed.stack, parsed.created_at, str(path))

    def get(self, record_id: str) -> bytes:
        """The bytes of a record, checked against their checksum and their place; see Store.get."""
        paths = self._paths(check_record_id(record_id))
        if not paths:
            self._require_folder()
            raise StoreError(
                f"there is no record '{record_id}' in {self.root}",
                remedy="`flagbench results ls` shows the stored records; --store names another store",
                code=ExitCode.DATA,
            )
        for path in paths[:-1]:
            # A copy in the wrong place must not hide the record itself.
            with suppress(FlagbenchError):
                return load(path)
        return load(paths[-1])

    def find(self, prefix: str) -> list[str]:
        """The ids of stored records that begin with `prefix`; see Store.find."""
        self._require_folder()
        found: set[str] = set()
        for day in days(self.root):
            with suppress(OSError):
                names = [name for name in record_names(day) if name.startswith(prefix)]
                found.update(name for name in names if file_problem(day.path / f"{name}.json") is None)
        return sorted(found)

    def read(self, entry: StoredRecord) -> bytes:
        """The bytes of a listed record; see Store.read."""
        path = Path(entry.location)
        if entry.problem is not None:
            raise damaged(path, f"is not one: {entry.problem}")
        return load(path)

    def list(self, case: str | None = None, stack: str | None = None) -> Iterator[StoredRecord]:
        """The records, newest first; reads only the days it is asked to go back to."""
        self._require_folder()
        for _, same_day in groupby(days(self.root, case, stack), key=_order):
            found = [entry for day in same_day for entry in records_of(day)]
            yield from sorted(found, key=lambda entry: (entry.created_at, entry.record_id), reverse=True)

    def last(self) -> StoredRecord | None:
        """The newest record, or None."""
        return next((entry for entry in self.list() if entry.problem is None), None)

    def health(self) -> Health:
        """Whether a record could be put here: tried with a file of the kind a put makes."""
        try:
            layout = self.root / LAYOUT
            folder = next(there for there in (layout, *layout.parents) if os.path.lexists(there))
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder")
            if folder in self.root.parents:
                # Tried, too: what the mode allows, a mount may refuse.
                probe = folder / _temporary_name()
                probe.mkdir()
                probe.rmdir()
                return Health(True, f"{self.root}: not there yet, made when the first record is stored")
            with _temporary(folder, b"probe") as probe:
                link = probe.with_suffix(".link")
                os.link(probe, link)
                link.unlink()
        except OSError as error:
            return Health(False, f"{self.root}: {error.strerror}", _remedy(error), writable=False)
        unfinished = sum(map(unfinished_records, days(self.root)))
        if unfinished:
            remedy = "storing was cut off; store the records again from the runs' --out folders"
            return Health(False, f"{self.root}: {unfinished} record(s) not stored to the end", remedy)
        return Health(True, str(self.root))

    def _require_folder(self) -> None:
        try:
            if not stat.S_ISDIR(self.root.stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except FileNotFoundError:
            pass  # nothing was stored yet
        except OSError as error:
            raise StoreError(
                f"{brief(str(self.root))} is no store: {error.strerror}",
                remedy=_remedy(error),
                code=ExitCode.USAGE,
            ) from error

    def _paths(self, record_id: str) -> builtins.list[Path]:
        """The files named for a record, wherever their case, stack and day are; usually one."""
        name = f"{record_id}.json"
        return [path for day in days(self.root) if os.path.lexists(path := day.path / name)]

    def _not_stored(self, record_id: str, error: OSError) -> StoreError:
        reason = error.strerror or str(error)
        return StoreError(f"the record {record_id} was not stored in {self.root}: {reason}", remedy=_remedy(error))


def _remedy(error: OSError) -> str:
    return _REMEDIES.get(error.errno or 0, "check the folder or name another store with --store")


def _conflict(record_id: str, path: Path) -> StoreError:
    return StoreError(
        f"another record is already stored as {record_id} ({path})",
        remedy="compare the two: a record's id is made once, and stored records never change",
    )


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents, each flushed to the disk with the entry that was made in it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    _flush_folder(folder.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary_name() -> str:
    return f".{os.getpid()}-{secrets.token_hex(8)}.tmp"


@contextmanager
def _temporary(folder: Path, content: bytes) -> Iterator[Path]:
    """A flushed file with `content` that is gone afterwards, whatever happens."""
    path = folder / _temporary_name()
    try:
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)


def _link_if_absent(source: Path, target: Path) -> bool:
    """Give a file its name; False where the name is taken, by whichever writer was first."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


def _holds(path: Path, content: bytes) -> bool:
    """Whether a regular file holds exactly `content`."""
    try:
        return read_file(path, len(content)) == content
    except OSError:
        return False


def _order(day: Day) -> tuple[bool, str]:
    """The key by which days are listed together: their date, and those without one last."""
    return (True, "") if day.problem else (False, day.path.name)
