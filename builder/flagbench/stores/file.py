"""A store in a folder: a file per record, a checksum beside it, never overwritten.

    results/v1/case=CASE/stack=STACK/YYYY-MM-DD/RECORD_ID.json
    results/v1/case=CASE/stack=STACK/YYYY-MM-DD/RECORD_ID.json.sha256     as `sha256sum -c` reads it

How a put stays whole. Record and checksum are first written to temporary files of the same folder and
flushed to the disk, so a full disk is met before anything is visible. Then both are hard-linked to
their names, which either succeeds or finds the name taken: two writers never mix. The checksum is linked
first. A crash between the two links leaves a checksum without a record, which no reader takes for a
record, and which the next put of the same record completes. The other order would leave a record that
nothing vouches for.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flagbench.errors import ExitCode
from flagbench.record.read import read_record
from flagbench.stores.base import Health, StoredRecord, StoreError, check_record_id

_LAYOUT = Path("results", "v1")
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
        self.root = root.expanduser().absolute()

    @property
    def url(self) -> str:
        """The folder as a file:// URL."""
        return self.root.as_uri()

    def put(self, record: bytes) -> StoredRecord:
        """Keep a record; see Store.put."""
        parsed = read_record(record)
        record_id = check_record_id(parsed.record_id)
        day = parsed.created_at[:10]
        folder = self.root / _LAYOUT / f"case={parsed.case}" / f"stack={parsed.stack}" / day
        path = folder / f"{record_id}.json"
        taken = self._find(record_id)
        # Another case, stack or day in the record means other bytes under the same id. (Two such puts at
        # the very same time both succeed: no single name stands for the id across folders.)
        if taken is not None and taken != path:
            raise _conflict(record_id, taken)
        checksum = _checksum_line(record, path.name)
        try:
            _make_folder(folder)
            with _temporary(folder, checksum) as checksum_file, _temporary(folder, record) as record_file:
                for temporary, target, content in (
                    (checksum_file, _checksum_path(path), checksum),
                    (record_file, path, record),
                ):
                    if not _link_if_absent(temporary, target) and target.read_bytes() != content:
                        raise _conflict(record_id, target)
            _flush_folder(folder)
        except OSError as error:
            raise self._not_stored(record_id, error) from error
        return StoredRecord(record_id, parsed.case, parsed.stack, parsed.created_at, str(path))

    def get(self, record_id: str) -> bytes:
        """The bytes of a record, checked against their checksum; see Store.get."""
        path = self._find(check_record_id(record_id))
        if path is None:
            self._require_folder()
            raise StoreError(
                f"there is no record '{record_id}' in {self.root}",
                remedy="`flagbench results ls` shows the stored records; --store names another store",
                code=ExitCode.DATA,
            )
        try:
            content = path.read_bytes()
            expected = _checksum_path(path).read_bytes()
        except FileNotFoundError as error:
            raise _damaged(path, "has no checksum beside it") from error
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error.strerror}") from error
        if expected != _checksum_line(content, path.name):
            raise _damaged(path, "does not match its checksum: it changed after it was stored")
        return content

    def list(self, case: str | None = None, stack: str | None = None) -> Iterator[StoredRecord]:
        """The records, newest first; reads only the days it is asked to go back to."""
        self._require_folder()
        by_day: dict[str, list[Path]] = {}
        for case_folder in _entries(self.root / _LAYOUT, "case=", case):
            for stack_folder in _entries(case_folder, "stack=", stack):
                for day in _entries(stack_folder, "", None):
                    by_day.setdefault(day.name, []).append(day)
        for day_name in sorted(by_day, reverse=True):
            found = [_described(path) for folder in by_day[day_name] for path in folder.glob("*.json")]
            yield from sorted(found, key=lambda entry: (entry.created_at, entry.record_id), reverse=True)

    def last(self) -> StoredRecord | None:
        """The newest record, or None."""
        return next(self.list(), None)

    def health(self) -> Health:
        """Whether a record could be put here: tried with a file of the kind a put makes."""
        try:
            if not self.root.exists():
                return self._could_be_made()
            with _temporary(self.root, b"probe") as probe:
                link = probe.with_suffix(".link")
                os.link(probe, link)
                link.unlink()
        except OSError as error:
            return Health(False, f"{self.root}: {error.strerror}", _remedy(error), writable=False)
        unfinished = sum(1 for path in self._checksums() if not path.with_suffix("").exists())
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
                f"{self.root} is no store: {error.strerror}", remedy=_remedy(error), code=ExitCode.USAGE
            ) from error

    def _could_be_made(self) -> Health:
        parent = next(folder for folder in self.root.parents if folder.exists())
        if not parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{parent} is a file")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"cannot be made in {parent}")
        return Health(True, f"{self.root}: not there yet, made when the first record is stored")

    def _checksums(self) -> Iterator[Path]:
        return (self.root / _LAYOUT).glob("case=*/stack=*/*/*.json.sha256")

    def _find(self, record_id: str) -> Path | None:
        """The record's file, wherever its case, stack and day are."""
        return next((self.root / _LAYOUT).glob(f"case=*/stack=*/*/{record_id}.json"), None)

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


def _damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        f"the stored record {path} {what}",
        remedy="restore the file from a copy, or store the record again from the run's --out folder",
        code=ExitCode.DATA,
    )


def _checksum_line(content: bytes, name: str) -> bytes:
    return f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode("ascii")


def _checksum_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


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


@contextmanager
def _temporary(folder: Path, content: bytes) -> Iterator[Path]:
    """A flushed file with `content` that is gone afterwards, whatever happens."""
    path = folder / f".{os.getpid()}-{secrets.token_hex(8)}.tmp"
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


def _entries(folder: Path, prefix: str, value: str | None) -> list[Path]:
    """The sub-folders named `prefix` + `value`, or with any value; none where `folder` is not there."""
    if not folder.is_dir():
        return []
    return [
        path
        for path in folder.iterdir()
        if path.name.startswith(prefix) and value in (None, path.name[len(prefix) :]) and path.is_dir()
    ]


def _described(path: Path) -> StoredRecord:
    """A list entry. A damaged record is listed too: leaving it out would hide the damage."""
    day = path.parent.name
    created_at = f"{day}T00:00:00Z"
    with suppress(OSError, ValueError):
        raw = json.loads(path.read_bytes())
        if isinstance(raw, dict) and str(raw.get("created_at", "")).startswith(day):
            created_at = raw["created_at"]
    return StoredRecord(
        record_id=path.stem,
        case=path.parent.parent.parent.name.removeprefix("case="),
        stack=path.parent.parent.name.removeprefix("stack="),
        created_at=created_at,
        location=str(path),
    )
