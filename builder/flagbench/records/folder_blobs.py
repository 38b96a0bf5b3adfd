"""Keeps the objects of a store as files in a folder, each next to a file with its checksum.

A bundle, whose name contains its checksum, has no such file: `put_file` copies it, and replaces a damaged one.

`put_if_absent` is atomic and overwrites nothing. Content and checksum are first written to temporary files of the
same folder and flushed to the disk, so a full disk is noticed before anything is visible. Then both are hard-linked
to their names, which either succeeds or finds the name taken: two writers never mix. The checksum is linked first.
The other order could leave a file that cannot be checked.

A crash between the two links leaves a checksum without a file. That is intended, and nothing has to be repaired:
readers ignore it, and the next put of the same content completes it. A put of other content under this key is
refused until somebody deletes the key; a record's key contains its id, so only a forged record has other content.
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
from flagbench.records.store_keys import checksum_name, checksum_text, is_checksum_name
from flagbench.records.store_keys import prefix as records_prefix
from flagbench.system.files import expanded, read_file, reason, write_atomically
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import sha256_of

_CHECKSUM_BYTES = 1024
"""The size limit of a checksum's file, which has 64 digits and the name of the object, at most 255 bytes."""
_SHA256_IN_NAME = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""Matches a file name that contains the sha256 of the content: such a file needs no checksum next to it."""
_COPY_BYTES = 2**20
"""Bytes that are copied at a time."""
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

    readers = 1
    """A disk is not faster with more readers."""
    one_winner = True
    """Of several simultaneous puts of a key, one makes the hard link."""

    def __init__(self, root: Path) -> None:
        self.root = expanded(root).absolute()

    @property
    def url(self) -> str:
        """The folder as a file:// URL."""
        return self.root.as_uri()

    def location(self, key: str) -> str:
        """Return the path of the object's file."""
        return str(self.root / key)

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Store an object; see Blobs.put_if_absent."""
        path = self.root / key
        checksum = checksum_text(content, path.name)
        try:
            _make_folder(path.parent)
            with _temporary(path.parent, checksum) as checksum_file, _temporary(path.parent, content) as file:
                if not _link_or_match(checksum_file, _checksum_path(path), checksum):
                    return False
                if not _link_or_match(file, path, content):
                    return False
            _flush_folder(path.parent)
        except OSError as error:
            raise _not_stored(path, self.root, error) from error
        return True

    def get(self, key: str, limit: int) -> bytes:
        """Return the bytes of an object, checked; see Blobs.get."""
        path = self.root / key
        try:
            content = read_file(path, limit)
            expected = read_file(_checksum_path(path), _CHECKSUM_BYTES)
        except FileNotFoundError as error:
            if os.path.lexists(path):
                raise damaged(str(path), "has no checksum next to it") from error
            raise damaged(str(path), "does not exist") from error
        except OSError as error:
            raise damaged(str(path), f"cannot be read: {reason(error)}") from error
        if expected != checksum_text(content, path.name):
            raise damaged(str(path), "does not match its checksum: it changed after it was stored")
        return content

    def put_file(self, key: str, path: Path, sha256: str) -> bool:
        """Copy a file into the store; see Blobs.put_file.

        The key contains the checksum of the content, so no checksum is written next to it.
        """
        if sha256 not in key:
            raise ValueError(f"the key {key!r} does not name its content")
        target = self.root / key
        try:
            if target.is_file() and _has_content(target, path.stat().st_size, sha256):
                return False
            _make_folder(target.parent)
            with _temporary(target.parent, path) as copied:
                if sha256_of(copied) != sha256:
                    raise StoreError(f"{path} does not have the sha256 that its name has", remedy="remove the file")
                copied.replace(target)  # a file of this name with other bytes is damaged
            _flush_folder(target.parent)
        except OSError as error:
            raise _not_stored(target, self.root, error) from error
        return True

    def get_file(self, key: str, path: Path, *, size: int, sha256: str) -> None:
        """Copy an object to a file; see Blobs.get_file."""
        source = self.root / key
        try:
            if not _has_content(source, size, sha256):
                raise damaged(str(source), "does not match the sha256 in its name: it changed after it was stored")
        except OSError as error:
            raise damaged(str(source), f"cannot be read: {reason(error)}") from error
        try:
            with _temporary(path.parent, source) as copied:
                copied.replace(path)
        except OSError as error:
            raise StoreError(f"{path} was not written: {reason(error)}", remedy=_remedy(error)) from error

    def list(self, prefix: str) -> Iterator[Blob]:
        """Yield the files below a folder; see Blobs.list."""
        try:
            os.scandir(self.root / prefix).close()
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
        """Return the cached listing; see Blobs.read_index."""
        try:
            return read_file(self.root / INDEX, INDEX_BYTES)
        except OSError:
            return b""

    def write_index(self, content: bytes) -> None:
        """Replace the cached listing."""
        with suppress(OSError):  # the next listing only takes longer
            write_atomically(self.root / INDEX, content)

    def delete(self, key: str) -> None:
        """Delete an object and its checksum. The folders stay: another writer may be about to use them."""
        path = self.root / key
        try:
            path.unlink(missing_ok=True)
            _checksum_path(path).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(
                f"{path} was not deleted: {reason(error)}", remedy="make its folder writable for you"
            ) from error

    def clear(self, prefix: str) -> None:
        """Delete a folder, and the one above it if that is empty then."""
        folder = self.root / prefix
        try:
            shutil.rmtree(folder)
            with suppress(OSError):  # it is not empty
                folder.parent.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(
                f"{folder} was not deleted: {reason(error)}", remedy="make its folder writable for you"
            ) from error

    def health(self) -> Health:
        """Return whether an object could be put here. It is tried in a temporary folder, which is removed.

        If the store exists, a file is written and linked as by a put, because a mount may refuse what the permissions
        of a folder allow. Otherwise the temporary folder alone is made, in the nearest folder above that exists.
        """
        root_exists = os.path.lexists(self.root)
        folder = self.root / records_prefix()
        while not os.path.lexists(folder):
            folder = folder.parent
        try:
            with suppress(FileNotFoundError):
                self.root.stat()  # called for its errors, such as a name that is too long
            with TemporaryDirectory(prefix=".", dir=folder) as probe:
                if not root_exists:
                    return Health(True, f"{self.root}: does not exist yet, made when the first record is stored")
                with _temporary(Path(probe), b"probe") as file:
                    os.link(file, file.with_suffix(".link"))
        except OSError as error:
            return Health(False, f"{self.root}: {error.strerror}", _remedy(error))
        return Health(True, str(self.root))


def _walk(folder: str, prefix: str, folders_above: frozenset[tuple[int, int]]) -> Iterator[Blob]:
    """Yield the objects in a folder and below.

    Links to folders are followed, but not to a folder above.

    Args:
        prefix: the beginning of the keys of the folder's objects.
        folders_above: the device and inode numbers of the folders above.
    """
    try:
        folder_status = Path(folder).stat()
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Blob(prefix.rstrip("/"), problem=f"the folder cannot be read: {reason(error)}")
        return
    identity = (folder_status.st_dev, folder_status.st_ino)
    if identity in folders_above:
        return
    names = {entry.name for entry in entries}
    for entry in entries:
        is_temporary = entry.name.startswith(".")
        if is_temporary or is_checksum_name(entry.name):
            continue
        key = prefix + entry.name
        try:
            entry_status = entry.stat()
        except OSError as error:  # a link to nothing, to itself, or into a folder without permission
            yield Blob(key, problem=f"it cannot be read: {reason(error)}")
            continue
        if stat.S_ISDIR(entry_status.st_mode):
            yield from _walk(entry.path, f"{key}/", folders_above | {identity})
            continue
        if not stat.S_ISREG(entry_status.st_mode):
            yield Blob(key, problem="it is not a regular file")
            continue
        problem = None
        if checksum_name(entry.name) not in names and not _SHA256_IN_NAME.search(entry.name):
            problem = "it has no checksum next to it"
        stamp = f"{entry_status.st_size}-{entry_status.st_mtime_ns}"
        yield Blob(key, entry_status.st_size, stamp, problem)


def _checksum_path(path: Path) -> Path:
    """Return the path of the file with the checksum of an object."""
    return path.with_name(checksum_name(path.name))


def _has_content(path: Path, size: int, sha256: str) -> bool:
    """Return whether a file has that size and that sha256; the size is compared first because it costs nothing."""
    return path.stat().st_size == size and sha256_of(path) == sha256


def _not_stored(path: Path, root: Path, error: OSError) -> StoreError:
    """The error for an object that could not be written."""
    return StoreError(f"{path.name} was not stored in {root}: {reason(error)}", remedy=_remedy(error))


def _remedy(error: OSError) -> str:
    """What to do about a failed operation on the folder."""
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
    """Flush the names in a folder to the disk: without that, a new file may have no name after a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _temporary(folder: Path, content: bytes | Path) -> Iterator[Path]:
    """Make a temporary file in a folder, and remove it at the end unless it was renamed.

    Args:
        content: its content, or a file that is copied. It is flushed to the disk.
    """
    path = folder / f".{os.getpid()}-{secrets.token_hex(8)}.tmp"
    try:
        with path.open("xb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file, _COPY_BYTES)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)


def _link_or_match(source: Path, target: Path, content: bytes) -> bool:
    """Link a temporary file with `content` to the name `target`, unless a file has that name already.

    Returns whether the file `target` has the content then: False if the file that was there has another one.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        try:
            return read_file(target, len(content)) == content
        except OSError:
            return False
    return True
