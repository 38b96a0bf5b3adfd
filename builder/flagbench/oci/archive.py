"""Reads the archive that `docker save` writes, and writes one for `docker load`; neither keeps a layer in memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from flagbench.engines.reproducible import DAMAGED, GZIP, open_members
from flagbench.errors import ExitCode, FlagbenchError

_CHUNK = 2**20
_MAX_JSON = 16 * 2**20
_USTAR = slice(257, 262)
"""Where every tar that an engine writes says that it is one."""


@dataclass(frozen=True)
class SavedLayer:
    """A layer in a file, uncompressed."""

    diff_id: str
    """`sha256:<64 hex>` of the file."""
    path: Path


class SavedImages:
    """The images of an archive of engines before 25 (`<id>/layer.tar`), or later (`blobs/sha256/...`)."""

    def __init__(self, archive: Iterable[bytes], folder: Path) -> None:
        """`folder`: where one layer at a time is kept."""
        self._archive = archive
        self._folder = folder
        self._documents: dict[str, bytes] = {}

    def layers(self) -> Iterator[SavedLayer]:
        """Every layer once, in the archive's order, which is not that of an image.

        Its file is removed when the next one is asked for. Raises FlagbenchError (data) where the archive is damaged,
        OSError where the folder cannot be written.
        """
        try:
            with open_members(self._archive) as outer:
                for member in outer:
                    if not member.isfile():
                        continue  # a folder, or a second name of a layer
                    content = io.BufferedReader(cast(Any, outer.extractfile(member)), _CHUNK)
                    layer = self._read(member, content)
                    if layer is not None:
                        try:
                            yield layer
                        finally:
                            layer.path.unlink(missing_ok=True)
        except DAMAGED as error:
            raise _damaged(str(error)) from None

    def config(self, name: str) -> bytes:
        """The configuration of the image that was saved by that name, after its layers were read.

        Raises FlagbenchError (data) where the archive has none.
        """
        try:
            for image in json.loads(self._documents["manifest.json"]):
                if name in (image["RepoTags"] or ()):
                    return self._documents[posixpath.normpath(image["Config"])]
        except (KeyError, TypeError, ValueError, RecursionError):
            pass
        raise _damaged(f"it names no configuration of {name}")

    def _read(self, member: tarfile.TarInfo, content: io.BufferedReader) -> SavedLayer | None:
        start = content.peek(_USTAR.stop)[: _USTAR.stop]
        if start[: len(GZIP)] == GZIP:
            return self._unpack(cast("IO[bytes]", gzip.GzipFile(fileobj=content)))
        # A layer without a file is nothing but the end of a tar.
        if start[_USTAR] == b"ustar" or (start and not start.strip(b"\0")):
            return self._unpack(content)
        if member.size <= _MAX_JSON and start[:1] in (b"{", b"["):
            self._documents[posixpath.normpath(member.name)] = content.read()
        return None

    def _unpack(self, layer: IO[bytes]) -> SavedLayer:
        path = self._folder / "saved.tar"
        digest = hashlib.sha256()
        with path.open("wb", buffering=0) as file:
            while chunk := layer.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
        return SavedLayer(f"sha256:{digest.hexdigest()}", path)


@dataclass(frozen=True)
class LayerToLoad:
    """A member of an archive to load, such as a layer."""

    size: int
    """Bytes of what `read` gives."""
    read: Callable[[], Iterator[bytes]]
    """Chunks of it, none of them empty; called once."""


@dataclass(frozen=True)
class ImageToLoad:
    """An image of an archive to load."""

    config: bytes
    tags: Sequence[str]
    diff_ids: Sequence[str]
    """Lowest first."""


def archive_to_load(images: Sequence[ImageToLoad], layers: dict[str, LayerToLoad]) -> Iterator[bytes]:
    """Chunks of an archive as `docker load` reads it.

    Args:
        layers: by diff id. One that the engine has on the same layers may be left out: an engine looks for it first.
    """
    manifest = []
    for image in images:
        name = hashlib.sha256(image.config).hexdigest() + ".json"
        manifest.append(
            {"Config": name, "RepoTags": [*image.tags], "Layers": [_layer_name(d) for d in image.diff_ids]}
        )
        yield from member(name, content_to_load(image.config))
    for diff_id, layer in layers.items():
        yield from member(_layer_name(diff_id), layer)
    yield from member("manifest.json", content_to_load(json.dumps(manifest).encode()))
    yield bytes(2 * tarfile.BLOCKSIZE)


def _layer_name(diff_id: str) -> str:
    return f"{diff_id.removeprefix('sha256:')}/layer.tar"


def member(name: str, content: LayerToLoad) -> Iterator[bytes]:
    """Chunks of a member of an archive; never an empty one, which would end the body of a chunked request."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = content.size, 0o644
    yield header.tobuf(tarfile.GNU_FORMAT)
    yield from content.read()
    if padding := -content.size % tarfile.BLOCKSIZE:
        yield bytes(padding)


def content_to_load(content: bytes) -> LayerToLoad:
    """A member whose bytes are in memory."""
    return LayerToLoad(len(content), lambda: iter((content,)))


def file_to_load(path: Path) -> LayerToLoad:
    """A member whose bytes are in a file."""

    def read() -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    return LayerToLoad(path.stat().st_size, read)


def _damaged(problem: str) -> FlagbenchError:
    return FlagbenchError(
        f"the archive of an image that the engine wrote cannot be read: {problem}",
        remedy="push again; if it stays so, see whether `docker save` can write the image",
        code=ExitCode.DATA,
    )
