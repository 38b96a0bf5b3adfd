"""Turns an image as `docker save` writes it into a manifest and blobs, as a registry stores them.

`flagbench push` puts these into a bucket, and `flagbench pull` reads their types back. A blob is a layer or the
image's configuration, named by its digest. The image keeps its id, which is the digest of its configuration. A
compressed layer depends on the layer alone, so images that share a layer share its blob.

Archives of engines before Docker 25 (`ID/layer.tar`) and of later ones (`blobs/sha256/...`) are read. Manifests are
Docker's, version 2, schema 2.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from flagbench.errors import FlagbenchError
from flagbench.image_reference import DIGEST
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3.transfers import sha256_of

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar.gzip"

Digest = Annotated[str, Meta(pattern=rf"^{DIGEST}\Z")]
"""`sha256:<64 hex>`."""
Document = TypeVar("Document", bound=Struct)
"""The type of a JSON document that `decode` reads."""
_CHUNK = 2**20
"""Bytes that are read at once."""
_COMPRESSION = 1
"""The level of gzip. Measured with an image of 1.7 GB, with reading it from the engine: 26 s without compression,
36 s and 587 MB with level 1, 82 s and 520 MB with level 6."""
_JSON_BYTES = 16 * 2**20
"""Most bytes of a JSON document in an archive; a larger member that begins like one is a layer."""
_GZIP_MAGIC = b"\x1f\x8b"
"""The first bytes of a gzip file."""


class Descriptor(Struct, frozen=True, kw_only=True, rename="camel"):
    """A blob as a manifest describes it."""

    media_type: str
    size: Annotated[int, Meta(ge=0)]
    """The size of the blob, bytes: of a layer, its compressed size."""
    digest: Digest


class Layer(Descriptor, frozen=True, kw_only=True, rename="camel"):
    """A layer, in a format that every engine reads: a tar, compressed with gzip or not."""

    media_type: Annotated[str, Meta(pattern=r"tar([.+]gzip)?\Z")] = LAYER_TYPE


class ImageManifest(Struct, frozen=True, kw_only=True, rename="camel"):
    """The manifest of one image for one platform."""

    schema_version: Literal[2] = 2
    media_type: str = MANIFEST_TYPE
    config: Descriptor
    layers: Annotated[list[Layer], Meta(min_length=1)]
    """The layers, lowest first."""


class RootFs(Struct):
    """The file system of an image, in its configuration."""

    diff_ids: list[Digest]
    """The diff id of each layer, which is the digest of its uncompressed tar; lowest layer first."""


class Defaults(Struct, frozen=True, rename="pascal"):
    """The defaults of an image's containers, in its configuration, as far as they are read."""

    labels: dict[str, str] | None = None


class Config(Struct):
    """An image's configuration, as far as it is read: what identifies the image."""

    rootfs: RootFs
    config: Defaults = Defaults()


def decode(content: bytes, kind: type[Document], what: str) -> Document:
    """Decode a JSON document, and check it against its type.

    Raises FlagbenchError (DATA) if it does not fit; `what` names the document in the message.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged_image(f"{what} cannot be used: {error}") from None


def digest_of(content: bytes) -> str:
    """Compute the digest of a blob, `sha256:<64 hex>`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def damaged_image(message: str) -> FlagbenchError:
    """Build the error for an image in a bucket whose parts do not fit each other."""
    return FlagbenchError(message, remedy="remove it there and push the image again", code=ExitCode.DATA)


@dataclass(frozen=True)
class _ReadLayer:
    """A layer of an archive after reading it."""

    diff_id: str
    blob: Layer


@dataclass
class _Members:
    """The members of an archive, by their path in it."""

    documents: dict[str, bytes] = field(default_factory=dict)
    """The content of JSON documents."""
    layers: dict[str, _ReadLayer] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    """The paths that symbolic links point to."""


def read_archive(
    archive: Iterable[bytes], folder: Path, put: Callable[[Descriptor, Path], None], present: Mapping[str, Layer]
) -> ImageManifest:
    """Read an archive with one image, and pass each of its blobs to `put`; returns the image's manifest.

    The layers are passed in the archive's order, the configuration last. All blobs are passed in the same file, one
    after the other, so `put` has to copy it.

    Args:
        archive: chunks of the archive.
        folder: an empty temporary folder for the blob.
        put: gets the descriptor of a blob and the file with its bytes.
        present: layers that are not passed to `put`, by diff id.

    Raises FlagbenchError (DATA) if the archive is damaged, OSError if the folder cannot be written, and what `put`
    raises.
    """
    path = folder / "blob"
    members = _read_members(archive, path, put, present)
    try:
        (entry,) = json.loads(members.documents["manifest.json"])
        config = members.documents[entry["Config"]]
        layers = [members.layers[members.links.get(name, name)] for name in entry["Layers"]]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise _unreadable("it does not have one image") from None
    diff_ids = [layer.diff_id for layer in layers]
    if diff_ids != decode(config, Config, "the image's configuration").rootfs.diff_ids:
        raise _unreadable("its layers are not those that its configuration names")
    descriptor = Descriptor(media_type=CONFIG_TYPE, size=len(config), digest=digest_of(config))
    path.write_bytes(config)
    put(descriptor, path)
    return ImageManifest(config=descriptor, layers=[layer.blob for layer in layers])


def _read_members(
    archive: Iterable[bytes], path: Path, put: Callable[[Descriptor, Path], None], present: Mapping[str, Layer]
) -> _Members:
    """Read every member of an archive, and pass its layers to `put`; see `read_archive`."""
    members = _Members()
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", _ChunkReader(archive)), mode="r|", bufsize=_CHUNK) as tar:
            for member in tar:
                if member.issym():  # Before Docker 25, a layer that the image has twice is a link the second time.
                    target = posixpath.join(member.name, "..", member.linkname)
                    members.links[member.name] = posixpath.normpath(target)
                if not member.isfile():
                    continue
                content = cast(BufferedReader, tar.extractfile(member))
                # Later engines have all blobs in one folder, so only its content shows what a blob is.
                is_json = content.peek(1)[:1] in (b"{", b"[") and member.size <= _JSON_BYTES
                is_blob = member.name.startswith("blobs/")
                if member.name.endswith("/layer.tar") or (is_blob and not is_json):
                    layer = _read_layer(content, path, present)
                    members.layers[member.name] = layer
                    if layer.diff_id not in present:
                        put(layer.blob, path)
                elif is_json:
                    members.documents[member.name] = content.read()
    except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise _unreadable(str(error)) from None
    return members


def _read_layer(content: BufferedReader, path: Path, present: Mapping[str, Layer]) -> _ReadLayer:
    """Compress a layer into the file `path`, unless it is one of `present`."""
    if content.peek(2)[:2] == _GZIP_MAGIC:  # Engines with the containerd image store save compressed layers.
        content = BufferedReader(cast(Any, gzip.GzipFile(fileobj=content)), _CHUNK)
    if not present:
        return _compress(content, path)
    # Only its bytes identify a layer: not every engine names it by its diff id in an archive.
    uncompressed = path.with_name("layer.tar")
    sha = sha256()
    with uncompressed.open("wb") as file:
        while chunk := content.read(_CHUNK):
            sha.update(chunk)
            file.write(chunk)
    diff_id = f"sha256:{sha.hexdigest()}"
    if diff_id in present:
        return _ReadLayer(diff_id, present[diff_id])
    with uncompressed.open("rb") as file:
        return _compress(file, path)


def _compress(content: BufferedReader, path: Path) -> _ReadLayer:
    """Compress a layer into the file `path`."""
    sha = sha256()
    # The gzip header has neither a name nor a time, so that the same layer always becomes the same bytes.
    with path.open("wb") as file, gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as compressed:
        while chunk := content.read(_CHUNK):
            sha.update(chunk)
            compressed.write(chunk)
    blob = Layer(size=path.stat().st_size, digest=f"sha256:{sha256_of(path)}")
    return _ReadLayer(f"sha256:{sha.hexdigest()}", blob)


class _ChunkReader:
    """A stream over chunks, with the one method that tarfile calls in the mode `r|`."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)

    def read(self, size: int) -> bytes:
        """Return the next chunk that is not empty, whatever its size; empty bytes at the end."""
        for chunk in self._chunks:
            if chunk:
                return chunk
        return b""


def _unreadable(problem: str) -> FlagbenchError:
    """Build the error for an archive that does not have the form that engines write."""
    return FlagbenchError(
        f"the image that the engine saved cannot be read: {problem}",
        remedy="push again; if it fails again, check that `docker save` can write the image",
        code=ExitCode.DATA,
    )
