"""The container of a bundle: a tar.gz of which equal files make equal bytes, and no byte changes unnoticed.

gzip's own sum covers what is unpacked, but neither the header nor the bits that pad the end of its stream. So the
header has an extra field (RFC 1952, 2.3.1.1), which other tools skip, with the sha256 of everything that follows it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from flagbench.stores.bundle_check import ALWAYS, RATIO, BundleError, Member, Unpacked, is_plain
from flagbench.terminal import brief

MOST_FILES = 10_000
MOST_UNPACKED = 64 * 2**30
"""Bytes of all files."""
_CHUNK = 2**18
_EXTRA = 4
"""The bit of the gzip header's flags that announces an extra field."""
_DIGEST = hashlib.sha256().digest_size
_START = struct.pack("<BBBBIBBHccH", 31, 139, 8, _EXTRA, 0, 0, 255, 4 + _DIGEST, b"F", b"B", _DIGEST)
"""The header up to the digest: no time, no name, no system."""


def pack(folder: Path, target: Path) -> None:
    """Write all files below `folder` to a new file `target`, sorted by name. Raises OSError."""
    with target.open("xb") as file:
        packed = _Packed(file)
        with tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            for name, path in sorted(files_below(folder)):
                info = tarfile.TarInfo(name)  # times and owners are 0
                info.size, info.mode = path.stat().st_size, 0o644
                with path.open("rb") as content:
                    archive.addfile(info, content)
        packed.finish()
        file.flush()
        os.fsync(file.fileno())


def unpack(path: Path, folder: Path) -> bool:
    """Write all files of an archive below `folder`, once they are known to be harmless.

    Returns whether the archive is as flagbench wrote it; False for one that another tool packed again, whose own
    bytes prove nothing. Raises BundleError for anything that is not a sound archive of plain files, and OSError.
    """
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        sealed = _check_seal(file)
        file.seek(0)
        stream = Unpacked(file, min(MOST_UNPACKED, max(ALWAYS, RATIO * size)))
        try:
            _unpack_tar(stream, folder)
            end = stream.finish()
        except (tarfile.TarError, zlib.error, EOFError, ValueError, RecursionError) as error:
            raise BundleError(f"it is not a sound .tar.gz: {brief(str(error))}") from error
        if end != size:
            raise BundleError("something follows its end")
        return sealed


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below a folder with its path from there. Raises BundleError for links, devices and the like."""
    for entry in sorted(os.scandir(folder), key=lambda found: found.name):
        if entry.is_dir(follow_symlinks=False):
            yield from ((f"{entry.name}/{name}", path) for name, path in files_below(Path(entry.path)))
        elif entry.is_file(follow_symlinks=False):
            yield entry.name, Path(entry.path)
        else:
            raise BundleError(f"{brief(entry.path)!r} is not a plain file")


def _opened(path: Path) -> BinaryIO:
    # O_NONBLOCK in case it is a pipe that nobody writes to.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BundleError("it is neither a file nor a folder")
    return open(descriptor, "rb")


def _check_seal(file: BinaryIO) -> bool:
    """Whether the archive has a digest of itself, which fits. Raises BundleError where it does not fit."""
    start = file.read(len(_START))
    if len(start) < 10 or start[:3] != _START[:3]:
        raise BundleError("it is not a .tar.gz")
    if not start[3] & _EXTRA:
        return False
    if start != _START:
        raise BundleError("the header of its gzip stream has changed")
    expected, found = file.read(_DIGEST), hashlib.sha256()
    for chunk in iter(partial(file.read, _CHUNK), b""):
        found.update(chunk)
    if found.digest() != expected:
        raise BundleError("it has changed: its bytes have another sha256 than its header says")
    return True


def _unpack_tar(stream: Unpacked, folder: Path) -> None:
    seen: set[str] = set()
    members = 0
    fileobj: Any = stream
    with tarfile.open(fileobj=fileobj, mode="r:", tarinfo=Member) as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # else all are held, with their headers
            members += 1
            if members > MOST_FILES:
                raise BundleError(f"it holds more than {MOST_FILES:,} files")
            if member.isdir():
                continue
            name = member.name
            regular = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.size >= 0
            if not regular or not is_plain(name):
                raise BundleError(f"it holds {brief(name)!r}, which is not a plain file below it")
            if name in seen:
                raise BundleError(f"it holds {brief(name)!r} twice")
            seen.add(name)
            content = archive.extractfile(member)
            assert content is not None
            _write(folder, name, iter(partial(content.read, _CHUNK), b""))


def _write(folder: Path, name: str, chunks: Iterator[bytes]) -> None:
    target = folder / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise BundleError(f"it holds {brief(name)!r} as a file and as a folder") from error
    with file:
        for chunk in chunks:
            file.write(chunk)


class _Packed:
    """A gzip stream with the digest of what follows its header, as a file that tarfile writes to."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._crc, self._size, self._sha256 = 0, 0, hashlib.sha256()
        file.write(_START + bytes(_DIGEST))

    def write(self, content: bytes) -> int:
        """Write all of it. Raises OSError."""
        self._crc = zlib.crc32(content, self._crc)
        self._size += len(content)
        self._put(self._compressor.compress(content))
        return len(content)

    def finish(self) -> None:
        """End the stream, and write the digest into its header. Raises OSError."""
        self._put(self._compressor.flush())
        self._put(struct.pack("<II", self._crc, self._size & 0xFFFFFFFF))
        self._file.seek(len(_START))
        self._file.write(self._sha256.digest())

    def _put(self, content: bytes) -> None:
        self._sha256.update(content)
        self._file.write(content)
