"""Compressed layers: the same bytes for the same tar, whatever the time and the number of threads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, cast, get_args

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.model import Descriptor

Compression = Literal["gzip", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
LAYER_TYPES: dict[Compression, str] = {
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}
# Measured on a layer of 629 MB with two threads: igzip 2 took 1.1 s for 206 MB, zstd 3 1.6 s for 163 MB, zlib 1 8.6 s
# for 207 MB.
_GZIP_LEVEL, _ZSTD_LEVEL = 2, 3
_BLOCK = 2**20
"""Bytes that are compressed at once: what a thread gets, so the output depends on it and on nothing else here."""


def compress(source: Path, target: Path, compression: Compression) -> Descriptor:
    """Compress a layer's tar into a file; returns what a manifest says of it.

    Raises FlagbenchError (usage) where zstd is asked for and not installed, OSError where a file cannot be read or
    written.
    """
    threads = len(os.sched_getaffinity(0))
    with source.open("rb", buffering=0) as tar, target.open("wb", buffering=0) as file:
        blob = _Summed(file)
        with _opened(cast("IO[bytes]", blob), compression, threads) as out:
            # In whole blocks: a buffer that is larger or smaller would be compressed as one of another size.
            while block := _read(tar, _BLOCK):
                out.write(block)
    return Descriptor(LAYER_TYPES[compression], f"sha256:{blob.sha256.hexdigest()}", blob.size)


def decompressed(blob: Path, compression: Compression) -> Iterator[bytes]:
    """Chunks of the tar in a compressed layer. Raises what the library does where it is damaged."""
    if compression == "gzip":
        from isal import igzip

        with cast(Any, igzip).open(blob, "rb") as file:
            while chunk := file.read(_BLOCK):
                yield chunk
    else:
        with blob.open("rb") as file, _zstandard().ZstdDecompressor().stream_reader(file) as tar:
            while chunk := tar.read(_BLOCK):
                yield chunk


def unpacked_size(blob: Path) -> int:
    """Bytes of the tar in a layer that is compressed with zstd. Raises FlagbenchError (data) where it is damaged."""
    try:
        return sum(len(chunk) for chunk in decompressed(blob, "zstd"))
    except _zstandard().ZstdError as error:
        raise FlagbenchError(
            f"a layer of the image cannot be unpacked: {error}", remedy="push the image again", code=ExitCode.DATA
        ) from None


def require(compression: Compression, purpose: str = "--compression zstd") -> None:
    """Raise FlagbenchError (usage) unless this installation can compress and decompress so."""
    if compression == "zstd":
        _zstandard(purpose)


def _opened(file: IO[bytes], compression: Compression, threads: int) -> IO[bytes]:
    if compression == "gzip":
        # 0.05 s of CPU: only what compresses imports it.
        from isal import igzip_threaded

        # Its header has no time, no name and no system.
        made = cast(Any, igzip_threaded).open(
            file, "wb", compresslevel=_GZIP_LEVEL, threads=threads, block_size=_BLOCK
        )
        return cast("IO[bytes]", made)
    # With one thread or more its output is the same; without any (0) it is another.
    compressor = _zstandard().ZstdCompressor(level=_ZSTD_LEVEL, threads=threads, write_checksum=True)
    return cast("IO[bytes]", compressor.stream_writer(file, closefd=False))


def _zstandard(purpose: str = "--compression zstd") -> Any:
    try:
        import zstandard
    except ImportError:
        raise FlagbenchError(
            f"{purpose} needs the package zstandard, which is not installed",
            remedy="install it (`pip install 'flagbench[zstd]'`), or push with gzip, which every engine can pull",
        ) from None
    return zstandard


def _read(file: IO[bytes], size: int) -> bytes:
    """`size` bytes, fewer at the end alone."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Summed:
    """A file that is written, with its sha256 and size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, content: bytes) -> int:
        """Write all of it."""
        self.sha256.update(content)
        self.size += len(content)
        rest = memoryview(content)
        while rest:
            rest = rest[self._file.write(rest) :]
        return len(content)

    def flush(self) -> None:
        """Nothing is buffered."""
