"""From what `docker save` writes to blobs by digest and a manifest, as a registry keeps them.

The image keeps its id, which is the digest of its configuration, and images that share a layer have the same blob of
it: what is compressed depends on the layer alone. Reads an engine's archives of before Docker 25 (`ID/layer.tar`) and
later ones (`blobs/sha256/...`). Manifests are Docker's, version 2, schema 2.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
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
_CHUNK = 2**20
# An image of 1.7 GB, in seconds with reading it from the engine, and in MB: 26 without compression, 36 and 587 with
# level 1, 82 and 520 with level 6.
_LEVEL = 1
_JSON_BYTES = 16 * 2**20
_GZIP = b"\x1f\x8b"


class Descriptor(Struct, frozen=True, kw_only=True, rename="camel"):
    """A blob as a manifest describes it."""

    media_type: str
    size: Annotated[int, Meta(ge=0)]
    """Bytes, as it is kept: of a layer, compressed."""
    digest: Digest


class Layer(Descriptor, frozen=True, kw_only=True, rename="camel"):
    """A layer, of a kind that every engine reads."""

    media_type: Annotated[str, Meta(pattern=r"tar([.+]gzip)?\Z")] = LAYER_TYPE


class ImageManifest(Struct, frozen=True, kw_only=True, rename="camel"):
    """One image for one platform."""

    schema_version: Literal[2] = 2
    media_type: str = MANIFEST_TYPE
    config: Descriptor
    layers: Annotated[list[Layer], Meta(min_length=1)]
    """Lowest first."""


class RootFs(Struct):
    """The file system of an image."""

    diff_ids: list[Digest]
    """Of each layer's uncompressed tar, lowest first."""


class Defaults(Struct, frozen=True, rename="pascal"):
    """What a container starts with."""

    labels: dict[str, str] | None = None


class Config(Struct):
    """The part of an image's configuration that says which image it is."""

    rootfs: RootFs
    config: Defaults = Defaults()


def decode(content: bytes, kind: type[Document], what: str) -> Document:
    """The document in `content`, checked. Raises FlagbenchError (data), with `what` as the first words."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged_image(f"{what} cannot be used: {error}") from None


def digest_of(content: bytes) -> str:
    """`sha256:<64 hex>`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def damaged_image(what: str) -> FlagbenchError:
    """The error for an image whose parts are not what they should be."""
    return FlagbenchError(what, remedy="remove it there and push the image again", code=ExitCode.DATA)


def read_archive(
    archive: Iterable[bytes], folder: Path, put: Callable[[Descriptor, Path], None], present: Mapping[str, Layer]
) -> ImageManifest:
    """Read the chunks of an archive with one image; returns the image's manifest.

    Every layer, in the archive's order, then the configuration is given to `put`, in a file in `folder` that the next
    one replaces. Layers of `present`, by diff id, are left out. Raises FlagbenchError (data) where the archive is
    damaged, OSError where the folder cannot be written, and what `put` raises.
    """
    path = folder / "blob"
    documents: dict[str, bytes] = {}
    layers: dict[str, tuple[str, Layer]] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", _Chunks(archive)), mode="r|", bufsize=_CHUNK) as tar:
            for member in tar:
                if member.issym():  # before Docker 25: a layer that the image has twice
                    links[member.name] = posixpath.normpath(posixpath.join(member.name, "..", member.linkname))
                if not member.isfile():
                    continue
                content = cast(BufferedReader, tar.extractfile(member))
                is_json = content.peek(1)[:1] in (b"{", b"[") and member.size <= _JSON_BYTES
                if member.name.endswith("/layer.tar") or (member.name.startswith("blobs/") and not is_json):
                    diff_id, layer = _read_layer(content, path, present)
                    layers[member.name] = diff_id, layer
                    if diff_id not in present:
                        put(layer, path)
                elif is_json:
                    documents[member.name] = content.read()
    except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise _unreadable(str(error)) from None
    try:
        (entry,) = json.loads(documents["manifest.json"])
        config = documents[entry["Config"]]
        image_layers = [layers[links.get(name, name)] for name in entry["Layers"]]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise _unreadable("it does not have one image") from None
    diff_ids = [diff_id for diff_id, _ in image_layers]
    if diff_ids != decode(config, Config, "the image's configuration").rootfs.diff_ids:
        raise _unreadable("its layers are not those that its configuration names")
    described = Descriptor(media_type=CONFIG_TYPE, size=len(config), digest=digest_of(config))
    path.write_bytes(config)
    put(described, path)
    return ImageManifest(config=described, layers=[layer for _, layer in image_layers])


def _read_layer(content: BufferedReader, path: Path, present: Mapping[str, Layer]) -> tuple[str, Layer]:
    """Compress a layer into a file unless it is one of `present`; returns its diff id and its descriptor."""
    if content.peek(2)[:2] == _GZIP:  # as the containerd image store has layers
        content = BufferedReader(cast(Any, gzip.GzipFile(fileobj=content)), _CHUNK)
    if not present:
        return _compress(content, path)
    # Which layer it is, only its bytes say: not every engine names it by its diff id in an archive.
    uncompressed = path.with_name("layer.tar")
    sha = sha256()
    with uncompressed.open("wb") as file:
        while chunk := content.read(_CHUNK):
            sha.update(chunk)
            file.write(chunk)
    diff_id = f"sha256:{sha.hexdigest()}"
    if diff_id in present:
        return diff_id, present[diff_id]
    with uncompressed.open("rb") as file:
        return _compress(file, path)


def _compress(content: BufferedReader, path: Path) -> tuple[str, Layer]:
    """Compress a layer into a file; returns its diff id and its descriptor."""
    diff_id = sha256()
    # Nothing but the layer decides the bytes: the header has no name and no time.
    with path.open("wb") as file, gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as out:
        while chunk := content.read(_CHUNK):
            diff_id.update(chunk)
            out.write(chunk)
    return f"sha256:{diff_id.hexdigest()}", Layer(size=path.stat().st_size, digest=f"sha256:{sha256_of(path)}")


class _Chunks:
    """What tarfile needs of a stream."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = filter(None, chunks)

    def read(self, size: int) -> bytes:
        """The next chunk, of any size; empty at the end."""
        return next(self._chunks, b"")


def _unreadable(problem: str) -> FlagbenchError:
    return FlagbenchError(
        f"the image that the engine saved cannot be read: {problem}",
        remedy="push again; if it fails again, check that `docker save` can write the image",
        code=ExitCode.DATA,
    )
