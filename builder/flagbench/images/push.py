"""`flagbench push`: an image of the engine into a registry, with the engine's own client, or into a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.image_reference import find_reference, is_on_docker_hub, is_prefix
from flagbench.images.bucket import ImageBucket, Put, blob_folder
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
    """The fixed tag, then those that move and name the same image."""


@dataclass(frozen=True)
class PushedBlob:
    """What became of a layer or of the configuration."""

    digest: str
    size: int
    how: Put


@dataclass(frozen=True)
class Pushed:
    """An image that is in a registry or a bucket now."""

    place: str
    """`HOST[/PATH]/flagbench/CASE`, or `s3://BUCKET/flagbench/CASE`."""
    tags: tuple[str, ...]
    digest: str
    """`sha256:<64 hex>` of the manifest."""
    image_id: str
    """The engine's id of it: of most engines, the digest of the configuration."""
    blobs: tuple[PushedBlob, ...] | None = None
    """None for a registry, whose blobs the engine sends."""

    @property
    def bytes_sent(self) -> int | None:
        """Bytes that were uploaded to a bucket."""
        if self.blobs is None:
            return None
        return sum(blob.size for blob in self.blobs if blob.how == "uploaded")

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "bytes_sent": self.bytes_sent}


def find_local_image(name: str, aliases: tuple[str, ...], engine: DockerEngine) -> LocalImage:
    """The image of that name, and which of its aliases still name it. Raises FlagbenchError (usage) without it."""
    info = engine.inspect(name)
    if info is None:
        raise FlagbenchError(
            f"the engine has no image {name}",
            remedy=f"build it first: `flagbench build {name.removeprefix('flagbench/').rpartition('-')[0]}`",
        )
    names = [name]
    for alias in aliases:
        image = engine.inspect(alias)
        if image is not None and image.id == info.id:
            names.append(alias)
    return LocalImage(name, info, tuple(reference.rpartition(":")[2] for reference in names))


def require_redistributable(stack: Stack, image: ImageInfo) -> None:
    """Refuse to give the layers of an image's base to others, unless the licence of the base allows it.

    Raises FlagbenchError (usage).
    """
    terms = require_base(stack).redistribution
    base = image.labels.get(BASE_NAME_LABEL) or "this image"
    stack_base = find_reference(stack.base_image or "")
    if stack.base_image is not None and (stack_base is None or base != stack_base.tagged):
        why = f"it is not the stack's base {stack.base_image}, so its licence is unknown"
    elif terms.status == "allowed":
        return
    elif terms.source:
        why = f"{terms.reason} ({terms.source})"
    else:
        why = terms.reason
    raise FlagbenchError(
        f"the layers of the base {base} may not be pushed: {why}",
        remedy="let others build the image; if you may redistribute the base, or if only you can pull from there, "
        "add --i-may-redistribute",
    )


def require_registry(to: str, repository: str, *, public: bool) -> None:
    """Refuse what no registry's address can be. Raises FlagbenchError (usage)."""
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
    """`docker push` of every tag to `HOST[/PATH]/flagbench/CASE`, which the image is named in the engine, too.

    Its progress goes to `show`. Raises EngineError where the registry cannot be reached, or refuses.
    """
    digest = ""
    for tag in source.tags:
        engine.tag(source.info.id, f"{repository}:{tag}")
        digest = engine.push(f"{repository}:{tag}", show=show)
    return Pushed(repository, source.tags, digest, source.info.id)


def push_to_bucket(source: LocalImage, bucket: ImageBucket, engine: DockerEngine, progress: Progress) -> Pushed:
    """Put what the bucket lacks of an image, then its manifest.

    What it has of the image under the fixed tag is neither compressed again nor sent.

    Raises FlagbenchError: data (3) where the engine's archive cannot be read, engine (15) for the engine, the network
    or a full disk.
    """
    bucket.begin()
    blobs: list[PushedBlob] = []

    def put(blob: Descriptor, path: Path) -> None:
        how = bucket.put_blob(blob, path, progress)
        blobs.append(PushedBlob(blob.digest, blob.size, how))
        short = blob.digest.removeprefix("sha256:")[:12]
        if how == "present":
            progress.note(f"{short} is in the bucket already")
        elif how == "copied":
            progress.note(f"{short} was copied from another image of the bucket")

    with blob_folder() as folder:
        earlier = bucket.find_image(source.tags[0], folder)
        if earlier is not None and earlier.complete and earlier.manifest.config.digest == source.info.id:
            progress.note(f"{source.name} is in the bucket already")
            manifest = earlier.manifest
        else:
            progress.note(f"reading {source.name} from the engine")
            layers: Mapping[str, Layer] = {}
            if earlier is not None:
                layers = earlier.layers
            manifest = read_archive(engine.save(source.info.id), folder, put, layers)
    was_put = {blob.digest for blob in blobs}
    for blob in dict.fromkeys((*manifest.layers, manifest.config)):
        if blob.digest not in was_put:
            blobs.append(PushedBlob(blob.digest, blob.size, "present"))
    content = msgspec.json.encode(manifest)
    bucket.put_manifest(content, source.tags)
    return Pushed(bucket.url, source.tags, digest_of(content), source.info.id, tuple(blobs))
