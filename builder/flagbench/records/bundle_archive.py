"""A bundle: a .tar.gz of plain files, and SHA256SUMS, which names each of them; written, and read without trust.

A bundle that somebody published may be hostile. tarfile's own data filter is not enough: it lets links through, and
Python 3.10.11 and 3.11.3 do not have it.
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
"""In a node's bundle: the run that it belongs to."""
MOST_FILES = 10_000
RATIO, ALWAYS = 200, 256 * 2**20
"""A bundle may unpack to RATIO times its size, and in any case to ALWAYS bytes: logs compress well, bombs better."""
_HEADER_BYTES = 2**16
"""The limit of all headers between two files."""
_LIST_BYTES = 4 * 2**20
"""The size limit of SHA256SUMS and of a manifest."""
_CHUNK = 2**20


class BundleError(Exception):
    """Why a file is not a bundle, or not the expected one."""


class Origin(msgspec.Struct):
    """The run and the node that a bundle belongs to."""

    record_id: str
    run_id: str
    node: int


def pack(files: Mapping[str, bytes | Path], target: Path) -> None:
    """Write a bundle to a new file. Equal files make equal bytes. Raises OSError."""
    sums = "".join(f"{_sha256(content)}  {name}\n" for name, content in sorted(files.items()))
    with target.open("xb") as file:
        with (
            gzip.GzipFile("", "wb", 6, file, mtime=0) as stream,
            tarfile.open(fileobj=stream, mode="w") as archive,
        ):
            for name, content in (*sorted(files.items()), (SUMS, sums.encode())):
                info = tarfile.TarInfo(name)  # without times and owners
                with _open(content) as source:
                    info.size = source.seek(0, os.SEEK_END)
                    source.seek(0)
                    archive.addfile(info, source)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def unpacked(path: Path) -> Iterator[dict[str, Path]]:
    """The files of a bundle by name, in a temporary folder, each as SHA256SUMS has it.

    Raises BundleError for anything else, and OSError if it cannot be read or TMPDIR is full.
    """
    with scratch() as folder:
        files = _unpack(path, Path(folder))
        _check_sums(files)
        yield files


def read_origin(files: Mapping[str, Path]) -> Origin:
    """The run and the node that a bundle names. Raises BundleError."""
    if MANIFEST not in files:
        raise BundleError(f"it has no {MANIFEST}")
    return _read_json(files[MANIFEST], Origin)


class _Limited(gzip.GzipFile):
    """A gzip stream of which `left` bytes may be read: what a header claims costs neither memory nor time."""

    left = _HEADER_BYTES

    def read(self, size: int | None = -1) -> bytes:
        """At most `size` bytes. Raises BundleError if more are read than are allowed."""
        most = self.left + 1  # one byte more than is allowed shows that there are too many
        if size is not None and size >= 0:
            most = min(size, most)
        content = super().read(most)
        self.left -= len(content)
        if self.left < 0:
            raise BundleError("a header in it is too large, or something follows its end")
        return content


def _unpack(path: Path, folder: Path) -> dict[str, Path]:
    """Write the files of an archive below a folder, none of them anything but a new plain file."""
    if path.exists() and not path.is_file():
        raise BundleError("it is not a file")
    with path.open("rb") as file, _Limited(fileobj=file) as stream:
        most = max(ALWAYS, RATIO * os.fstat(file.fileno()).st_size)
        try:
            files = _extract(stream, folder, most)
            while stream.read(_CHUNK):  # to the end, where gzip checks its own checksum
                pass
        except BundleError:
            raise
        except (FileExistsError, NotADirectoryError) as error:
            raise BundleError("it holds a file twice, or as a file and as a folder") from error
        except Exception as error:  # tarfile raises errors of every kind for a header that is hostile
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                raise
            raise BundleError(f"it is not a valid .tar.gz: {brief(str(error))}") from error
    return files


def _extract(stream: _Limited, folder: Path, most: int) -> dict[str, Path]:
    """Write the files of an archive below a folder, at most `most` bytes.

    Raises BundleError for what a bundle must not have, and whatever tarfile raises for a damaged archive.
    """
    files: dict[str, Path] = {}
    left = most
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all headers in memory
            if member.isdir():
                continue
            if not _is_plain(member):
                raise BundleError(f"it holds {brief(member.name)!r}, which is not a plain file below it")
            left -= member.size
            if left < 0 or len(files) == MOST_FILES:
                raise BundleError(f"it unpacks to more than {most:,} bytes or {MOST_FILES:,} files")
            target = folder / member.name
            files[member.name] = target
            stream.left = member.size
            target.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None
            with target.open("xb") as file:
                shutil.copyfileobj(content, file, _CHUNK)
            stream.left = _HEADER_BYTES
    return files


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Whether a member is a regular file with a printable name that stays below the folder it is unpacked to."""
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
    files: list[_ListedFile] = []


def _check_sums(files: Mapping[str, Path]) -> None:
    """Raise BundleError unless every file is listed with its checksum, and every listed file exists.

    Bundles of version 0.1.0 have the checksums in a manifest; in a node's bundle nothing lists the manifest itself.
    """
    checksums: dict[str, str] = {}
    if SUMS in files:
        for line in _content(files[SUMS]).decode("utf-8", "replace").splitlines():
            digest, _, name = line.partition("  ")
            checksums[name] = digest
    for manifest in files.keys() & {MANIFEST, "manifest.json"}:
        for file in _read_json(files[manifest], _Listing).files:
            checksums[file.path] = file.sha256
    if not checksums:
        raise BundleError(f"it has no {SUMS}")
    list_itself = SUMS if SUMS in files else MANIFEST
    for name in sorted((files.keys() | checksums.keys()) - {list_itself}):
        if name not in files:
            raise BundleError(f"{brief(name)!r} is not in it")
        if name not in checksums:
            raise BundleError(f"{brief(name)!r} is not named by its {SUMS}")
        if sha256_of(files[name]) != checksums[name]:
            raise BundleError(f"{brief(name)!r} in it has changed: its sha256 differs from {SUMS}")


Document = TypeVar("Document")


def _read_json(path: Path, kind: type[Document]) -> Document:
    try:
        return msgspec.json.decode(_content(path), type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(f"its {path.name} cannot be read: {brief(str(error))}") from error


def _content(path: Path) -> bytes:
    if path.stat().st_size > _LIST_BYTES:
        raise BundleError(f"its {path.name} is larger than {_LIST_BYTES:,} bytes")
    return path.read_bytes()


def _open(content: bytes | Path) -> BinaryIO:
    if isinstance(content, bytes):
        return io.BytesIO(content)
    return content.open("rb")


def _sha256(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    return sha256_of(content)
