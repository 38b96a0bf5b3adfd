"""`flagbench push`: puts an image of the engine into a registry, with `docker push`, or into a bucket.

A bucket gets the image's blobs (its layers and its configuration) and then its manifest, laid out as a registry's
(`bucket.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.image_reference import is_on_docker_hub, is_prefix, try_parse_reference
from flagbench.images.bucket import BlobOrigin, ImageBucket, blob_folder, short_digest
from flagbench.images.docker import DockerEngine, ImageInfo
from flagbench.images.docker_archive import Descriptor, Layer, digest_of, read_archive
from flagbench.images.tags import BASE_NAME_LABEL
from flagbench.manifests.lookup import require_base
from flagbench.manifests.stack import Stack


@dataclass(frozen=True)
class LocalImage:
    """An image of the engine that is to be pushed."""

    name: str
    """`flagbench/CASE:STACK-VERSION`."""
    info: ImageInfo
    tags: tuple[str, ...]
    """The fixed tag, then the moving tags that name the same image."""


@dataclass(frozen=True)
class PushedBlob:
    """A layer or a configuration after a push to a bucket."""

    digest: str
    """`sha256:<64 hex>`."""
    size: int
    """Bytes, compressed."""
    how: BlobOrigin
    """How it got into the bucket."""


@dataclass(frozen=True)
class Pushed:
    """An image after a push to a registry or a bucket."""

    place: str
    """The repository: `HOST[/PATH]/flagbench/CASE`, or `s3://BUCKET/flagbench/CASE`."""
    tags: tuple[str, ...]
    digest: str
    """`sha256:<64 hex>` of the manifest."""
    image_id: str
    """The engine's id of the image, which in most engines is the digest of the configuration."""
    blobs: tuple[PushedBlob, ...] | None = None
    """The layers and the configuration; None for a registry, to which the engine sends them."""

    @property
    def bytes_sent(self) -> int | None:
        """Bytes that were uploaded to a bucket; None for a registry."""
        if self.blobs is None:
            return None
        return sum(blob.size for blob in self.blobs if blob.how == "uploaded")

    def as_json(self) -> dict[str, Any]:
        """Return the values that `flagbench push --json` prints."""
        return {**asdict(self), "bytes_sent": self.bytes_sent}


def find_local_image(name: str, aliases: tuple[str, ...], engine: DockerEngine) -> LocalImage:
    """Find an image in the engine, and those of its aliases that still name the same image.

    Raises FlagbenchError (USAGE) if the engine has no image of that name.
    """
    info = engine.inspect(name)
    if info is None:
        raise FlagbenchError(
            f"the engine has no image {name}",
            remedy=f"build it first: `flagbench build {name.removeprefix('flagbench/').rpartition('-')[0]}`",
        )
    tags = [_tag_of(name)]
    for alias in aliases:
        image = engine.inspect(alias)
        if image is not None and image.id == info.id:
            tags.append(_tag_of(alias))
    return LocalImage(name, info, tuple(tags))


def _tag_of(name: str) -> str:
    """The tag in `REPOSITORY:TAG`."""
    return name.rpartition(":")[2]


def require_redistributable(stack: Stack, image: ImageInfo) -> None:
    """Check that the licence of an image's base allows to give its layers to others.

    Raises FlagbenchError (USAGE) if it does not, or if that is not known.
    """
    terms = require_base(stack).redistribution
    base = image.labels.get(BASE_NAME_LABEL) or "this image"
    stack_base = try_parse_reference(stack.base_image or "")
    if stack.base_image is not None and (stack_base is None or base != stack_base.tagged):
        refusal = f"it is not the stack's base {stack.base_image}, so its licence is unknown"
    elif terms.status == "allowed":
        return
    elif terms.source:
        refusal = f"{terms.reason} ({terms.source})"
    else:
        refusal = terms.reason
    raise FlagbenchError(
        f"the layers of the base {base} may not be pushed: {refusal}",
        remedy="let others build the image; if you may redistribute the base, or if only you can pull from there, "
        "add --i-may-redistribute",
    )


def require_registry(to: str, repository: str, *, public: bool) -> None:
    """Check that `to` is the address of a registry, and that `repository` can be pushed below it.

    Raises FlagbenchError (USAGE) if not, and for the option --public, which only buckets have.
    """
    if public:
        raise FlagbenchError("--public is for a bucket", remedy="leave it out: a registry has its own permissions")
    if not is_prefix(to):
        raise FlagbenchError(
            f"--to cannot be {to!r}", remedy="write HOST[:PORT][/PATH] with a path in lower case, or s3://BUCKET"
        )
    if is_on_docker_hub(f"{to}/{repository}"):
        raise FlagbenchError(
            f"--to cannot be {to!r}: that is Docker Hub, where a repository cannot be named .../{repository}",
            remedy="name the host of another registry, HOST[:PORT][/PATH], or a bucket, s3://BUCKET",
        )


def push_to_registry(source: LocalImage, repository: str, engine: DockerEngine, show: TextIO | None) -> Pushed:
    """Push every tag of an image to a repository `HOST[/PATH]/flagbench/CASE` with `docker push`.

    The image keeps these names in the engine. The progress goes to `show`.

    Raises EngineError if the registry cannot be reached, or refuses the image.
    """
    digest = ""
    for tag in source.tags:
        engine.tag(source.info.id, f"{repository}:{tag}")
        digest = engine.push(f"{repository}:{tag}", show=show)
    return Pushed(repository, source.tags, digest, source.info.id)


def push_to_bucket(source: LocalImage, bucket: ImageBucket, engine: DockerEngine, progress: Progress) -> Pushed:
    """Put the blobs of an image that the bucket lacks into it, and then the image's manifest.

    Layers of an earlier push under the same fixed tag are neither compressed nor sent again.

    Raises FlagbenchError: DATA if the engine's archive cannot be read, ENGINE for the engine, the network or
    a full disk.
    """
    bucket.begin()
    blobs: list[PushedBlob] = []

    def put(blob: Descriptor, path: Path) -> None:
        origin = bucket.put_blob(blob, path, progress)
        blobs.append(PushedBlob(blob.digest, blob.size, origin))
        if origin == "present":
            progress.note(f"{short_digest(blob.digest)} is in the bucket already")
        elif origin == "copied":
            progress.note(f"{short_digest(blob.digest)} was copied from another image of the bucket")

    with blob_folder() as folder:
        earlier = bucket.reuse_image(source.tags[0], folder)
        if earlier is not None and earlier.complete and earlier.manifest.config.digest == source.info.id:
            progress.note(f"{source.name} is in the bucket already")
            manifest = earlier.manifest
        else:
            progress.note(f"reading {source.name} from the engine")
            present: Mapping[str, Layer] = {}
            if earlier is not None:
                present = earlier.layers
            manifest = read_archive(engine.save(source.info.id), folder, put, present)
    listed = {blob.digest for blob in blobs}
    # An image can have the same layer twice.
    for blob in dict.fromkeys((*manifest.layers, manifest.config)):
        if blob.digest not in listed:
            blobs.append(PushedBlob(blob.digest, blob.size, "present"))
    content = msgspec.json.encode(manifest)
    bucket.put_manifest(content, source.tags)
    return Pushed(bucket.url, source.tags, digest_of(content), source.info.id, tuple(blobs))
