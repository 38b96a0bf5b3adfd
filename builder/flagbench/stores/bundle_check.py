"""A bundle checked before it is believed: gzip and tar sound, names plain, every sum of its MANIFEST.json right.

What a ticket's holder uploaded may be hostile. It is read once, as a stream: never unpacked to a disk, and no more of
it is decompressed or held in memory than the limits here allow.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from flagbench.terminal import brief

MANIFEST = "MANIFEST.json"
MANIFEST_BYTES = 4 * 2**20
"""Of MANIFEST.json, and of all names together: it lists them."""
MOST_FILES = 100_000
MOST_UNPACKED = 64 * 2**30
"""Bytes of all files."""
RATIO, ALWAYS = 200, 256 * 2**20
"""A bundle may unpack to so many times its size, or to so many bytes: logs compress well, bombs better."""
LONGEST_NAME = 1024
_CHUNK = 2**18
"""Bytes read at a time."""
_HEADER_BYTES = 16 * 2**10
"""Of an extended header, which holds a long name or a large size."""
_EXTENDED = (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_GZIP = 31
"""zlib's word for a gzip stream, whose sum and length it checks."""


class BundleError(Exception):
    """Why a file is not a bundle, or not that of a node."""


class _Entry(msgspec.Struct):
    """A file, as MANIFEST.json names it."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct):
    """What is needed of MANIFEST.json."""

    files: list[_Entry]
    record_id: str | None = None
    run_id: str | None = None
    node: int | None = None


@dataclass(frozen=True)
class Checked:
    """A sound bundle."""

    size: int
    """Bytes of the gzip stream; what follows it in the file is padding."""
    sha256: str
    """SHA-256 of these bytes, 64 hexadecimal digits."""
    manifest: Manifest


def check_bundle(path: Path) -> Checked:
    """Check a bundle, which zero bytes may follow. Raises BundleError; OSError where the file cannot be read."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        stream = Unpacked(file, min(MOST_UNPACKED, max(ALWAYS, RATIO * size)))
        try:
            found = _read_tar(stream)
        except (BundleError, OSError):
            raise
        except Exception as error:  # tarfile raises errors of every kind for a header that is hostile
            raise BundleError(f"it is not a sound .tar.gz: {brief(str(error))}") from error
        end = stream.finish()
        return Checked(end, _sha256(file, end), _matched(found))


class Unpacked:
    """The content of a gzip stream as a file that is read forward, within limits."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file, self._most = file, most
        self._decompressor = zlib.decompressobj(_GZIP)
        self._position = 0
        self._ready = b""
        self._fed = b""

    def tell(self) -> int:
        """Bytes read so far."""
        return self._position

    def seek(self, position: int) -> int:
        """Go forward to a position; tarfile never goes back in a file that it reads once."""
        if position < self._position:
            raise BundleError("its parts are not in order")
        while self._position < position and self.read(min(_CHUNK, position - self._position)):
            pass
        return self._position

    def read(self, count: int) -> bytes:
        """The next `count` bytes, fewer at the end."""
        content = self.peek(count)
        self._ready = self._ready[len(content) :]
        self._position += len(content)
        return content

    def peek(self, count: int) -> bytes:
        """The same, without going forward."""
        if not 0 <= count <= _CHUNK:  # a header that claims to be huge
            raise BundleError("a header in it is too large")
        while len(self._ready) < count and self._more():
            pass
        return self._ready[:count]

    def finish(self) -> int:
        """Read the rest; returns where the gzip stream ends. Raises BundleError unless zero bytes follow."""
        try:
            while content := self.read(_CHUNK):
                if content.strip(b"\0"):
                    raise BundleError("something follows the end of its archive")
        except zlib.error as error:
            raise BundleError(f"it is not a sound .tar.gz: {brief(str(error))}") from error
        if not self._decompressor.eof:
            raise BundleError("it is cut off")
        rest = self._decompressor.unused_data
        end = self._file.tell() - len(rest)
        while rest:
            if rest.strip(b"\0"):
                raise BundleError("something follows its end")
            rest = self._file.read(_CHUNK)
        return end

    def _more(self) -> bool:
        """Decompress some more; False at the end."""
        if self._decompressor.eof:
            return False
        if not self._fed:
            self._fed = self._file.read(_CHUNK)
            if not self._fed:
                return False
        self._ready += self._decompressor.decompress(self._fed, _CHUNK)
        self._fed = self._decompressor.unconsumed_tail
        if self._position + len(self._ready) > self._most:
            raise BundleError(f"it unpacks to more than {self._most:,} bytes")
        return True


class Member(tarfile.TarInfo):
    """A member whose headers are small. A sparse one is refused before its map, of any length, is read."""

    def _proc_member(self, archive: Any) -> tarfile.TarInfo:
        if self.type in (tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE):
            raise BundleError(f"it has a header of the type {self.type!r}, which no bundle has")
        if self.type in _EXTENDED:
            if self.size > _HEADER_BYTES:
                raise BundleError("a header in it is too large")
            if b"GNU.sparse." in archive.fileobj.peek(max(0, self.size)):
                raise BundleError("it holds a sparse file")
        proceed: Any = super()
        found: tarfile.TarInfo = proceed._proc_member(archive)
        return found


def _read_tar(stream: Unpacked) -> tuple[dict[str, tuple[int, str]], bytes | None]:
    """Size and sha256 of each file but MANIFEST.json, and the content of that."""
    found: dict[str, tuple[int, str]] = {}
    manifest: bytes | None = None
    members = names = 0
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
            names += len(name.encode("utf-8", "surrogateescape"))
            if names > MANIFEST_BYTES:
                raise BundleError(f"its names are longer than a {MANIFEST} may be")
            regular = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.size >= 0
            if not regular or not is_plain(name):
                raise BundleError(f"it holds {brief(name)!r}, which is not a plain file below it")
            if name in found or (name == MANIFEST and manifest is not None):
                raise BundleError(f"it holds {brief(name)!r} twice")
            content = archive.extractfile(member)
            assert content is not None
            if name == MANIFEST:
                if member.size > MANIFEST_BYTES:
                    raise BundleError(f"its {MANIFEST} has {member.size:,} bytes")
                manifest = b"".join(iter(partial(content.read, _CHUNK), b""))
                continue
            total = hashlib.sha256()
            for chunk in iter(partial(content.read, _CHUNK), b""):
                total.update(chunk)
            found[name] = (member.size, total.hexdigest())
    return found, manifest


def is_plain(name: str) -> bool:
    """Whether a name is a path below the folder that a bundle is unpacked to, and one that can be printed."""
    parts = name.split("/")
    return (
        len(name) <= LONGEST_NAME
        and name.isprintable()
        and not any(part in ("", ".", "..") for part in parts)
        and "\\" not in name
    )


def _matched(found: tuple[dict[str, tuple[int, str]], bytes | None]) -> Manifest:
    """The manifest. Raises BundleError unless it names exactly what is there, with its sums."""
    files, content = found
    if content is None:
        raise BundleError(f"it has no {MANIFEST}")
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(f"its {MANIFEST} cannot be read: {brief(str(error))}") from error
    named = {entry.path: (entry.size, entry.sha256) for entry in manifest.files}
    for path in sorted(files.keys() | named.keys()):
        if files.get(path) != named.get(path):
            raise BundleError(f"{brief(path)!r} does not match its {MANIFEST}")
    return manifest


def _sha256(file: BinaryIO, size: int) -> str:
    found = hashlib.sha256()
    file.seek(0)
    while size and (chunk := file.read(min(_CHUNK, size))):
        found.update(chunk)
        size -= len(chunk)
    if size:
        raise BundleError("it changed while it was read")
    return found.hexdigest()
