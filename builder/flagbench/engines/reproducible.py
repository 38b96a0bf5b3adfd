"""Whether two builds made the same image: digests of its layers once their times are taken out.

Two builds with one SOURCE_DATE_EPOCH write the same files, but an engine gives every file and directory that
a step made the time it was made at. A layer is therefore rewritten with no time later than the epoch and
without the parts of a tar that carry nothing of a file, and that tar's digest is compared.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import posixpath
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple, cast

from flagbench.errors import ExitCode, FlagbenchError

DAMAGED = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)
_CHUNK = 2**20
GZIP = b"\x1f\x8b"
"""How a gzip file begins."""
_XATTR = "SCHILY.xattr."


@dataclass(frozen=True)
class Layer:
    """A layer without its times."""

    digest: str
    """`sha256:<64 hex>` of the normalised tar, uncompressed."""
    files: Mapping[str, str] = field(repr=False)
    """Path to the sha256 of its normalised header and content, to find out what differs."""


def layers_of(archive: Iterable[bytes], epoch: int) -> list[Layer]:
    """The layers of the one image in an archive as `docker save` streams it, lowest first.

    Reads the archive once and keeps no layer in memory.

    Args:
        archive: chunks of the archive, of engines before 25 (`<id>/layer.tar`) or later (`blobs/sha256/...`).
        epoch: seconds since 1970; later times become this one.

    Raises:
        FlagbenchError: the archive is cut off, or no archive of exactly one image.
    """
    layers: dict[str, Layer] = {}
    links: dict[str, str] = {}
    names: list[str] | None = None
    try:
        with open_members(archive) as outer:
            for member in outer:
                if member.issym():
                    # Engines before 25 keep a layer that an image has twice as a link, `../<id>/layer.tar`.
                    links[member.name] = posixpath.normpath(posixpath.join(member.name, "..", member.linkname))
                elif member.isfile():
                    content = io.BufferedReader(cast(Any, outer.extractfile(member)), _CHUNK)
                    if member.name == "manifest.json":
                        (image,) = json.load(content)
                        names = image["Layers"]
                    elif layer := _layer(content, epoch):
                        layers[member.name] = layer
        if names is None:
            raise ValueError("it has no manifest.json")
        return [layers[links.get(name, name)] for name in names]
    except (*DAMAGED, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FlagbenchError(
            f"the archive of an image cannot be read: {error}",
            remedy="write it again with `docker save`, of one image",
            code=ExitCode.DATA,
        ) from None


def differences(first: Sequence[Layer], second: Sequence[Layer]) -> list[str]:
    """What differs between two builds, a line each: `layer 2: usr/bin/tool`; empty where nothing does."""
    lines = [] if len(first) == len(second) else [f"{len(first)} layers and {len(second)}"]
    for number, (one, other) in enumerate(zip(first, second, strict=False), 1):
        if one.digest == other.digest:
            continue
        paths = sorted(p for p in one.files.keys() | other.files.keys() if one.files.get(p) != other.files.get(p))
        lines += [f"layer {number}: {path}" for path in paths or ["the order of its files"]]
    return lines


def _header(member: tarfile.TarInfo, epoch: int) -> bytes:
    made = tarfile.TarInfo(member.name)
    made.size = member.size if member.isfile() else 0
    # A sparse file was read with its holes filled.
    made.type = tarfile.REGTYPE if member.isfile() else member.type
    made.mtime = min(int(member.mtime), epoch)
    for name in ("mode", "uid", "gid", "uname", "gname", "linkname", "devmajor", "devminor"):
        setattr(made, name, getattr(member, name))
    made.pax_headers = {name: value for name, value in sorted(member.pax_headers.items()) if name.startswith(_XATTR)}
    return made.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _layer(content: io.BufferedReader, epoch: int) -> Layer | None:
    """The member of an archive as a layer; None for a configuration and other JSON."""
    source: IO[bytes] = content
    if content.peek(2)[:2] == GZIP:
        # tarfile's own reader of gzip checks neither the checksum nor whether the end is there.
        source = cast("IO[bytes]", gzip.GzipFile(fileobj=content))
    try:
        tar = tarfile.open(fileobj=source, mode="r|", bufsize=_CHUNK)  # noqa: SIM115
    except tarfile.ReadError:
        if source is not content:
            raise
        return None
    whole = hashlib.sha256()
    files = {}
    with tar:
        for piece in normalised(tar, epoch):
            whole.update(piece.content)
            if piece.path is not None:
                files[piece.path] = hashlib.sha256()
            if piece.is_of_file:
                files[next(reversed(files))].update(piece.content)
    while source.read(_CHUNK):
        pass  # to the checksum
    return Layer(f"sha256:{whole.hexdigest()}", {path: digest.hexdigest() for path, digest in files.items()})


class Piece(NamedTuple):
    """A piece of a normalised tar."""

    content: bytes
    path: str | None = None
    """Where a file, directory or link begins, with its header."""
    is_of_file: bool = True
    """False: padding, or the end of the tar."""
    later: bool = False
    """Whether its time was later than the epoch."""


def normalised(tar: tarfile.TarFile, epoch: int) -> Iterator[Piece]:
    """A tar without its times, in pieces: with no time later than the epoch (seconds since 1970).

    Kept are names, kinds, modes, owners, links, devices, contents and extended attributes, in the tar's order.
    """
    for member in tar:
        yield Piece(_header(member, epoch), member.name, later=int(member.mtime) > epoch)
        file = tar.extractfile(member) if member.isfile() else None
        while file and (chunk := file.read(_CHUNK)):
            yield Piece(chunk)
        if file:
            yield Piece(bytes(-member.size % tarfile.BLOCKSIZE), is_of_file=False)
    yield Piece(bytes(2 * tarfile.BLOCKSIZE), is_of_file=False)


def open_members(archive: Iterable[bytes]) -> tarfile.TarFile:
    """The archive as a tar that is read once, from its beginning to its end. Raises one of DAMAGED."""
    return tarfile.open(fileobj=cast("IO[bytes]", _Chunks(archive)), mode="r|", bufsize=_CHUNK)


class _Chunks:
    """What tarfile needs of a file, over chunks."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = filter(None, chunks)

    def read(self, size: int) -> bytes:
        """The next chunk, whatever its size: tarfile takes that of a stream. Empty at the end."""
        return next(self._chunks, b"")
