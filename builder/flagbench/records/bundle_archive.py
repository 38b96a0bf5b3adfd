"""Packs and unpacks bundles: a bundle is a .tar.gz of plain files, with their checksums in the file SHA256SUMS.

There are two kinds. Each node of a run keeps its raw evidence in a bundle, and a person can pass on records and
documents in one (`bundle_documents`). A bundle that somebody published may be hostile, so it is unpacked without
trust. tarfile's own data filter is not enough: it lets links through, and Python 3.10.11 and 3.11.3 do not have it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from flagbench.console.terminal import brief
from flagbench_core.s3 import sha256_of
from flagbench_core.scratch import scratch

SUMS = "SHA256SUMS"
MANIFEST = "MANIFEST.json"
"""The file in a node's bundle that names the run it belongs to."""
_MANIFEST_OF_0_1_0 = "manifest.json"
"""The file that lists the checksums in a bundle of version 0.1.0."""
MOST_FILES = 10_000
MOST_RATIO = 200
"""A bundle may unpack to this many times its size: logs compress well, but a bomb compresses better."""
ALWAYS_ALLOWED_BYTES = 256 * 2**20
"""A bundle may unpack to this size, however small it is."""
_HEADER_BYTES = 2**16
"""The size limit of all headers between two files."""
_LIST_BYTES = 4 * 2**20
"""The size limit of SHA256SUMS and of a manifest."""
_CHUNK_BYTES = 2**20
"""Bytes that are read at a time."""
_GZIP_LEVEL = 6
"""The default of the gzip command. It is written out because another level would make other bytes."""


class BundleError(Exception):
    """Why a file is not a bundle, or not the expected one; the message begins with `it` or `its`."""


class Origin(msgspec.Struct):
    """The run and the node that a bundle belongs to."""

    record_id: str
    run_id: str
    node: int


def pack(files: Mapping[str, bytes | Path], target: Path) -> None:
    """Write a bundle to a new file. The same files make the same bytes. Raises OSError.

    Args:
        files: contents, or files to copy, by their paths in the bundle.
    """
    sorted_files = sorted(files.items())
    sums = "".join(f"{_sha256(content)}  {name}\n" for name, content in sorted_files)
    with target.open("xb") as file:
        with (
            gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as stream,
            tarfile.open(fileobj=stream, mode="w") as archive,
        ):
            for name, content in (*sorted_files, (SUMS, sums.encode())):
                info = tarfile.TarInfo(name)  # without times and owners
                with _open(content) as source:
                    info.size = source.seek(0, os.SEEK_END)
                    source.seek(0)
                    archive.addfile(info, source)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def unpacked(path: Path) -> Iterator[dict[str, Path]]:
    """Unpack a bundle to a temporary folder, and give its files by name. Their checksums are those in SHA256SUMS.

    Raises BundleError for anything else, and OSError if it cannot be read or TMPDIR is full.
    """
    with scratch() as folder:
        files = _unpack(path, Path(folder))
        _check_sums(files)
        yield files


def read_origin(files: Mapping[str, Path]) -> Origin:
    """Return the run and the node that a bundle names. Raises BundleError if it does not name them."""
    if MANIFEST not in files:
        raise BundleError(f"it has no {MANIFEST}")
    return _read_json(files[MANIFEST], Origin)


class _LimitedStream(gzip.GzipFile):
    """A gzip stream that refuses to give more bytes than allowed.

    So a header that claims a huge size costs neither memory nor time. The reader of the archive sets `allowed_bytes`
    before each file and each header.
    """

    allowed_bytes = _HEADER_BYTES

    def read(self, size: int | None = -1) -> bytes:
        """Return at most `size` bytes. Raises BundleError if there are more than are allowed."""
        most = self.allowed_bytes + 1  # one byte more than is allowed shows that there are too many
        if size is not None and size >= 0:
            most = min(size, most)
        content = super().read(most)
        self.allowed_bytes -= len(content)
        if self.allowed_bytes < 0:
            raise BundleError("a header in it is too large, or something follows its end")
        return content


def _unpack(path: Path, folder: Path) -> dict[str, Path]:
    """Write the files of an archive as new plain files below a folder, and return them by their names.

    Raises BundleError for anything that is not a bundle, and OSError if a file cannot be read or written.
    """
    if path.exists() and not path.is_file():
        raise BundleError("it is not a file")
    with path.open("rb") as file, _LimitedStream(fileobj=file) as stream:
        most_bytes = max(ALWAYS_ALLOWED_BYTES, MOST_RATIO * os.fstat(file.fileno()).st_size)
        try:
            files = _extract(stream, folder, most_bytes)
            while stream.read(_CHUNK_BYTES):  # to the end, where gzip checks its own checksum
                pass
        except BundleError:
            raise
        except (FileExistsError, NotADirectoryError) as error:
            raise BundleError("it holds a file twice, or as a file and as a folder") from error
        except Exception as error:  # tarfile raises errors of every kind for a header that is hostile
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                raise  # the bundle could not be read, or a file not written
            raise BundleError(f"it is not a valid .tar.gz: {brief(str(error))}") from error
    return files


def _extract(stream: _LimitedStream, folder: Path, most_bytes: int) -> dict[str, Path]:
    """Write the files of an archive below a folder, at most `most_bytes` in all.

    Raises BundleError for what a bundle must not have, and what tarfile raises for a damaged archive.
    """
    files: dict[str, Path] = {}
    remaining_bytes = most_bytes
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all headers in memory
            if member.isdir():
                continue
            if not _is_plain(member):
                raise BundleError(f"it holds {brief(member.name)!r}, which is not a plain file below it")
            remaining_bytes -= member.size
            if remaining_bytes < 0 or len(files) == MOST_FILES:
                raise BundleError(f"it unpacks to more than {most_bytes:,} bytes or {MOST_FILES:,} files")
            target = folder / member.name
            files[member.name] = target
            stream.allowed_bytes = member.size
            target.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None  # it is a regular file
            with target.open("xb") as file:
                shutil.copyfileobj(content, file, _CHUNK_BYTES)
            stream.allowed_bytes = _HEADER_BYTES
    return files


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Return whether a member is a regular file whose name is printable and leads to no other folder."""
    if not member.isreg() or member.issparse() or member.size < 0:
        return False
    if not member.name.isprintable() or "\\" in member.name:
        return False
    parts = member.name.split("/")
    return not any(part in ("", ".", "..") for part in parts)


class _ListedFile(msgspec.Struct):
    path: str
    sha256: str


class _Listing(msgspec.Struct):
    """The part of a manifest that lists files with their checksums."""

    files: list[_ListedFile] = []


def _check_sums(files: Mapping[str, Path]) -> None:
    """Raise BundleError unless every file is listed with its checksum, and every listed file exists.

    Bundles of version 0.1.0 and of nodes may have the checksums in a manifest, which then does not list itself.
    """
    checksums: dict[str, str] = {}
    if SUMS in files:
        text = _read_list(files[SUMS]).decode("utf-8", "replace")
        for line in text.splitlines():
            digest, _, name = line.partition("  ")
            checksums[name] = digest
    for manifest in files.keys() & {MANIFEST, _MANIFEST_OF_0_1_0}:
        for file in _read_json(files[manifest], _Listing).files:
            checksums[file.path] = file.sha256
    if not checksums:
        raise BundleError(f"it has no {SUMS}")
    list_of_sums = MANIFEST
    if SUMS in files:
        list_of_sums = SUMS
    names = files.keys() | checksums.keys()
    for name in sorted(names - {list_of_sums}):
        if name not in files:
            raise BundleError(f"{brief(name)!r} is not in it")
        if name not in checksums:
            raise BundleError(f"{brief(name)!r} is not named by its {SUMS}")
        if sha256_of(files[name]) != checksums[name]:
            raise BundleError(f"{brief(name)!r} in it has changed: its sha256 differs from {SUMS}")


Document = TypeVar("Document")


def _read_json(path: Path, kind: type[Document]) -> Document:
    try:
        return msgspec.json.decode(_read_list(path), type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(f"its {path.name} cannot be read: {brief(str(error))}") from error


def _read_list(path: Path) -> bytes:
    """Return the bytes of SHA256SUMS or of a manifest. Raises BundleError if there are too many."""
    if path.stat().st_size > _LIST_BYTES:
        raise BundleError(f"its {path.name} is larger than {_LIST_BYTES:,} bytes")
    return path.read_bytes()


def _open(content: bytes | Path) -> BinaryIO:
    """Open a content, or the file with the content, for reading."""
    if isinstance(content, bytes):
        return io.BytesIO(content)
    return content.open("rb")


def _sha256(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    return sha256_of(content)
