"""Objects in a folder: a file each, a checksum beside it, never overwritten.

A put is atomic. Content and checksum are first written to temporary files of the same folder and flushed to
the disk, so a full disk is noticed before anything is visible. Then both are hard-linked to their names, which either
succeeds or finds the name taken: two writers never mix. The checksum is linked first. A crash between the two links
leaves a checksum without a file, which no reader takes for an object and the next put of the same content completes.
The other order would leave a file that cannot be checked.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from flagbench.console.terminal import brief
from flagbench.records.blobs import INDEX, INDEX_BYTES, Blob, Health, StoreError, damaged
from flagbench.records.store_keys import checksum_name, checksum_text
from flagbench.records.store_keys import prefix as records_prefix
from flagbench.system.files import expanded, read_file, reason, write_atomically
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import sha256_of

_CHECKSUM_BYTES = 1024
_NAMES_ITS_CONTENT = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""A name with a sha256: such a file needs no checksum beside it."""
_REMEDIES = {
    errno.ENOSPC: "free some space or name another store with --store",
    errno.EDQUOT: "free some of your quota or name another store with --store",
    errno.EFBIG: "raise the file size limit (ulimit -f) or name another store with --store",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EROFS: "the file system is read-only; name another store with --store",
    errno.EACCES: "make the folder writable for you or name another store with --store",
    errno.EPERM: "the folder allows no new files or no hard links; name another store with --store",
    errno.ENOTDIR: "part of the path is a file; name a folder with --store",
    errno.EEXIST: "the path is taken by a file; name a folder with --store",
}


class FolderBlobs:
    """Objects under one folder, which the first put creates."""

    def __init__(self, root: Path) -> None:
        self.root = expanded(root).absolute()

    @property
    def url(self) -> str:
        """The folder as a file:// URL."""
        return self.root.as_uri()

    readers = 1
    """A disk is not faster with more."""
    one_winner = True

    def location(self, key: str) -> str:
        """The file."""
        return str(self.root / key)

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Keep an object; see Blobs.put_if_absent."""
        path = self.root / key
        checksum = checksum_text(content, path.name)
        try:
            _make_folder(path.parent)
            with _temporary(path.parent, checksum) as checksum_file, _temporary(path.parent, content) as file:
                if not (_link(checksum_file, _checksum(path), checksum) and _link(file, path, content)):
                    return False
            _flush_folder(path.parent)
        except OSError as error:
            raise StoreError(
                f"{path.name} was not stored in {self.root}: {reason(error)}", remedy=_remedy(error)
            ) from error
        return True

    def get(self, key: str, limit: int) -> bytes:
        """The bytes of an object, checked; see Blobs.get."""
        path = self.root / key
        try:
            content = read_file(path, limit)
            expected = read_file(_checksum(path), _CHECKSUM_BYTES)
        except FileNotFoundError as error:
            if os.path.lexists(path):
                raise damaged(str(path), "has no checksum beside it") from error
            raise damaged(str(path), "does not exist") from error
        except OSError as error:
            raise damaged(str(path), f"cannot be read: {reason(error)}") from error
        if expected != checksum_text(content, path.name):
            raise damaged(str(path), "does not match its checksum: it changed after it was stored")
        return content

    def put_file(self, key: str, path: Path, sha256: str) -> bool:
        """Copy a file into the store; see Blobs.put_file. Its key has its checksum: none is written beside it."""
        if sha256 not in key:
            raise ValueError(f"the key {key!r} does not name its content")
        target = self.root / key
        try:
            if target.is_file() and target.stat().st_size == path.stat().st_size and sha256_of(target) == sha256:
                return False
            _make_folder(target.parent)
            with _temporary(target.parent, path) as copied:
                if sha256_of(copied) != sha256:
                    raise StoreError(f"{path} does not have the sha256 that its name has", remedy="remove the file")
                copied.replace(target)  # a file of this name with other bytes is damaged
            _flush_folder(target.parent)
        except OSError as error:
            raise StoreError(
                f"{target.name} was not stored in {self.root}: {reason(error)}", remedy=_remedy(error)
            ) from error
        return True

    def get_file(self, key: str, path: Path, *, size: int, sha256: str) -> None:
        """Copy an object to a file; see Blobs.get_file."""
        source = self.root / key
        try:
            if source.stat().st_size != size or sha256_of(source) != sha256:
                raise damaged(str(source), "does not match the sha256 in its name: it changed after it was stored")
        except OSError as error:
            raise damaged(str(source), f"cannot be read: {reason(error)}") from error
        try:
            with _temporary(path.parent, source) as copied:
                copied.replace(path)
        except OSError as error:
            raise StoreError(f"{path} was not written: {reason(error)}", remedy=_remedy(error)) from error

    def list(self, prefix: str) -> Iterator[Blob]:
        """The files below a folder; see Blobs.list."""
        try:
            os.stat(f"{self.root}/")  # noqa: PTH116  # pathlib drops the slash, with which a file is an error
        except FileNotFoundError:
            return  # nothing was stored yet
        except OSError as error:
            raise StoreError(
                f"{brief(str(self.root))} cannot be a store: {error.strerror}",
                remedy=_remedy(error),
                code=ExitCode.USAGE,
            ) from error
        yield from _walk(str(self.root / prefix), prefix, frozenset())

    def read_index(self) -> bytes:
        """The cached listing; see Blobs.read_index."""
        try:
            return read_file(self.root / INDEX, INDEX_BYTES)
        except OSError:
            return b""

    def write_index(self, content: bytes) -> None:
        """Replace the cached listing."""
        with suppress(OSError):
            write_atomically(self.root / INDEX, content)

    def delete(self, key: str) -> None:
        """Delete an object and its checksum. The folders stay: another writer may be about to use them."""
        path = self.root / key
        try:
            path.unlink(missing_ok=True)
            _checksum(path).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(
                f"{path} was not deleted: {reason(error)}", remedy="make its folder writable for you"
            ) from error

    def clear(self, prefix: str) -> None:
        """Delete a folder, and the one above it if that is empty then."""
        folder = self.root / prefix
        try:
            shutil.rmtree(folder)
            with suppress(OSError):
                folder.parent.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(
                f"{folder} was not deleted: {reason(error)}", remedy="make its folder writable for you"
            ) from error

    def health(self) -> Health:
        """Whether an object could be put here: tried with a file of the kind a put makes."""
        records = self.root / records_prefix()
        folder = records
        while not os.path.lexists(folder):
            folder = folder.parent
        try:
            # A file is written, because a mount may refuse what the folder's mode allows.
            with TemporaryDirectory(prefix=".", dir=folder) as probe:
                if folder in self.root.parents:
                    return Health(True, f"{self.root}: does not exist yet, made when the first record is stored")
                with _temporary(Path(probe), b"probe") as file:
                    os.link(file, file.with_suffix(".link"))
        except OSError as error:
            return Health(False, f"{self.root}: {error.strerror}", _remedy(error))
        return Health(True, str(self.root))


def _walk(folder: str, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[Blob]:
    """The objects in a folder and below; links to folders are followed, but not in a circle."""
    try:
        status = Path(folder).stat()
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Blob(prefix.rstrip("/"), problem=f"the folder cannot be read: {reason(error)}")
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    names = {entry.name for entry in entries}
    for entry in entries:
        if entry.name.startswith(".") or entry.name.endswith(checksum_name("")):
            continue
        key = prefix + entry.name
        try:
            status = entry.stat()
        except OSError as error:  # a link to nothing, to itself, or into a folder without permission
            yield Blob(key, problem=f"it cannot be read: {reason(error)}")
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(entry.path, f"{key}/", above | {identity})
            continue
        if not stat.S_ISREG(status.st_mode):
            yield Blob(key, problem="it is not a regular file")
            continue
        problem = None
        if checksum_name(entry.name) not in names and not _NAMES_ITS_CONTENT.search(entry.name):
            problem = "it has no checksum beside it"
        yield Blob(key, status.st_size, f"{status.st_size}-{status.st_mtime_ns}", problem)


def _checksum(path: Path) -> Path:
    return path.with_name(checksum_name(path.name))


def _remedy(error: OSError) -> str:
    return _REMEDIES.get(error.errno or 0, "check the folder or name another store with --store")


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
def _temporary(folder: Path, content: bytes | Path) -> Iterator[Path]:
    """A flushed file with `content`, or a copy of that file, removed afterwards unless it was given another name."""
    path = folder / f".{os.getpid()}-{secrets.token_hex(8)}.tmp"
    try:
        with path.open("xb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file, 2**20)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)


def _link(source: Path, target: Path, content: bytes) -> bool:
    """Give a file with `content` its name. False if the name is taken by a file with other content."""
    try:
        os.link(source, target)
    except FileExistsError:
        try:
            return read_file(target, len(content)) == content
        except OSError:
            return False
    return True
