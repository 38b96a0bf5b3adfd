"""An image as registries and buckets keep it: blobs by digest, and a manifest that names them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from flagbench.errors import ExitCode, FlagbenchError

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"

Put = Literal["present", "copied", "uploaded"]
"""How a blob came to its place: it was there, copied by the place from another repository of its own, or sent. A
Place says "copied" again of a blob that it had copied before."""
Progress = Callable[[int], None]
"""Called with a number of bytes that have been sent or read since the last call."""


def digest_of(content: bytes) -> str:
    """`sha256:<64 hex>` of some bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


Change = Callable[["bytes | None"], "bytes | None"]
"""From a manifest, or None if it does not exist, to the one that replaces it, or None to keep it."""
UPDATES = 5
"""How often a change is tried that another process may overwrite."""


def contended(tag: str, url: str) -> FlagbenchError:
    """The error for a manifest that others keep overwriting."""
    return FlagbenchError(
        f"others keep overwriting the manifest {tag} in {url}",
        remedy="push again when no other push of the same image runs",
        code=ExitCode.ENGINE,
    )


@dataclass(frozen=True)
class Descriptor:
    """What a manifest says of a blob."""

    media_type: str
    digest: str
    """`sha256:<64 hex>` of the blob as it is kept: of the compressed layer."""
    size: int
    """Bytes, as it is kept."""


@dataclass(frozen=True)
class Blob:
    """A blob, and where its bytes are."""

    descriptor: Descriptor
    path: Callable[[Progress], Path]
    """Returns a file with its bytes; called only where a place lacks it, since that may download it."""
    origins: tuple[str, ...] = ()
    """Repositories, `HOST/NAME` or as `Place.url` has them, that may have it too: a place that has one of them copies
    the blob from there instead of asking for its bytes."""


@dataclass(frozen=True)
class OciImage:
    """One image for one platform."""

    manifest: bytes
    """As it is kept: its digest is the image's."""
    media_type: str
    config: Blob
    layers: tuple[Blob, ...]
    """Lowest first."""

    @property
    def digest(self) -> str:
        """`sha256:<64 hex>` of the manifest."""
        return digest_of(self.manifest)


class Place(Protocol):
    """A repository in a registry or in a bucket.

    Every method raises FlagbenchError: engine or network (15) where the place cannot be reached or refuses, usage (2)
    where its address cannot be one, data (3) where what it has is damaged.
    """

    @property
    def url(self) -> str:
        """The address, for a person: `HOST/NAME`, or `s3://BUCKET`."""

    @property
    def public(self) -> bool:
        """Whether everything that is put, or is there already, is made readable for everyone."""

    def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob."""

    def put_blob(self, blob: Blob, show: Progress) -> Put:
        """Keep a blob, if it is not there; an upload that was interrupted is resumed where the place can do that."""

    def read_blob(self, digest: str) -> Iterator[bytes]:
        """Chunks of a blob, unchecked."""

    def put_manifest(self, content: bytes, media_type: str, references: tuple[str, ...]) -> bool:
        """Keep a manifest under its digest, then under each of `references`, tags, which move.

        Returns whether the place itself lists the manifest among the referrers of its `subject`, as a registry says
        with `OCI-Subject`; a place that does not, such as a bucket, returns False.
        """

    def update_manifest(self, tag: str, media_type: str, change: Change) -> None:
        """Replace the manifest under a tag by what `change` makes of it, again where another process replaced it too.

        A place without conditional writes only reads it again: of two changes at the same time one may be lost.
        """

    def read_manifest(self, reference: str) -> tuple[bytes, str] | None:
        """A manifest by tag or digest, with its media type; None if it does not exist."""
