"""The documents of an image in a registry: its manifest (Docker's, version 2, schema 2) and its configuration."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from flagbench.errors import FlagbenchError
from flagbench.image_reference import DIGEST
from flagbench_core.exit_codes import ExitCode

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar.gzip"

Digest = Annotated[str, Meta(pattern=rf"^{DIGEST}\Z")]
"""`sha256:<64 hex>`."""
Document = TypeVar("Document", bound=Struct)


class Blob(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a manifest says of a blob."""

    media_type: str
    size: Annotated[int, Meta(ge=0)]
    """Bytes, as it is kept: of a layer, compressed."""
    digest: Digest


class Layer(Blob, frozen=True, kw_only=True, rename="camel"):
    """A layer, of a kind that every engine reads."""

    media_type: Annotated[str, Meta(pattern=r"tar([.+]gzip)?\Z")] = LAYER_TYPE


class Manifest(Struct, frozen=True, kw_only=True, rename="camel"):
    """One image for one platform."""

    schema_version: Literal[2] = 2
    media_type: str = MANIFEST_TYPE
    config: Blob
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
        raise damaged(f"{what} cannot be used: {error}") from None


def digest_of(content: bytes) -> str:
    """`sha256:<64 hex>`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def damaged(what: str) -> FlagbenchError:
    """The error for an image whose parts are not what they should be."""
    return FlagbenchError(what, remedy="remove it there and push the image again", code=ExitCode.DATA)
