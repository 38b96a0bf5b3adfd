"""`flagbench pull`: downloads an image from a bucket, and loads it into the engine with `docker load`.

Every blob (a layer, or the image's configuration) is compared with the digest that names it. The engine compares each
layer that it loads with its diff id, the digest of the uncompressed layer, in the configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flagbench.console.progress import Progress
from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.image_reference import image_of
from flagbench.images.bucket import (
    BucketImage,
    ImageBucket,
    blob_folder,
    is_in_bucket,
    parse_bucket_image,
    parse_image_bucket,
)
from flagbench.images.docker import DockerEngine, ImageInfo
from flagbench.images.docker_archive import Config, ImageManifest, Layer, damaged_image, decode, digest_of
from flagbench.images.docker_errors import EngineError
from flagbench.images.render.directory import tar_chunks
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import require_image, resolve_image

_WRONG_LAYER = re.compile(r"(?i)diff ?id")
"""An engine's error matches it if the content of a layer does not have the diff id in the configuration."""


@dataclass(frozen=True)
class Pulled:
    """An image that the engine has after a pull."""

    source: BucketImage
    image: ImageInfo
    manifest: str
    """The digest of its manifest, `sha256:<64 hex>`."""
    config: str
    """`sha256:<64 hex>` of the configuration, which is the image's id in an engine with the classic image store."""
    downloaded: int
    """Bytes of the layers that were downloaded; 0 if the engine had the image already."""
    loaded: bool
    """Whether the engine lacked the image."""

    def as_json(self) -> dict[str, object]:
        """Return the values that `flagbench pull --json` prints."""
        return {
            "source": self.source.url,
            "image": self.source.local_name,
            "image_id": self.image.id,
            "manifest": self.manifest,
            "config": self.config,
            "downloaded": self.downloaded,
        }


def find_in_bucket(image: str, bucket: str | None) -> BucketImage:
    """Find the address of the image that `flagbench pull` is given.

    Args:
        image: an address in a bucket, or `CASE:STACK`.
        bucket: the address of a bucket, which `CASE:STACK` needs; None if --from is not given.

    Raises FlagbenchError (USAGE) if the two do not go together, or name no image.
    """
    if is_in_bucket(image):
        if bucket is not None:
            raise FlagbenchError(f"{brief(image)} names its bucket itself", remedy="leave out --from")
        return parse_bucket_image(image)
    if bucket is None:
        raise FlagbenchError(
            f"{brief(image)}: no bucket given",
            remedy="name its bucket with --from s3://BUCKET; `docker pull` pulls from a registry",
        )
    case, stack = resolve_image(image, load_catalog_without_claims())
    require_image(case, stack)
    local_name = image_of(case.name, stack.name)
    if not is_in_bucket(bucket):
        raise FlagbenchError(
            f"--from {brief(bucket)} is not a bucket",
            remedy=f"write s3://BUCKET; from a registry, use `docker pull HOST[/PATH]/{local_name}`",
        )
    name, _, tag = local_name.partition(":")
    return BucketImage(parse_image_bucket(bucket), name, tag, None)


def pull(source: BucketImage, engine: DockerEngine, progress: Progress) -> Pulled:
    """Bring an image into the engine, under its name without the bucket.

    Raises FlagbenchError: USAGE if there is no such image, DATA if a part of it is damaged or missing, ENGINE for the
    engine, the network or a full disk.
    """
    bucket = ImageBucket(source.bucket, source.name)
    name = source.local_name
    content = bucket.read_manifest(source.reference)
    if content is None:
        raise FlagbenchError(
            f"there is no image {source.url}",
            remedy=f"check its name, or push it: `flagbench push CASE:STACK --to {source.bucket.url}`",
        )
    manifest = decode(content, ImageManifest, f"the manifest of {source.url}")
    with blob_folder() as folder:
        config_file = folder / "config.json"
        bucket.get_blob(manifest.config, config_file)
        config = decode(config_file.read_bytes(), Config, f"the configuration of {source.url}")
        diff_ids = tuple(config.rootfs.diff_ids)
        if len(diff_ids) != len(manifest.layers):
            raise damaged_image(f"{source.url} has {len(manifest.layers)} layers, its configuration {len(diff_ids)}")
        image = _find_in_engine(engine, name, manifest, config)
        is_missing = image is None
        downloaded = 0
        if image is None:
            missing_layers = manifest.layers[_count_present_layers(engine, diff_ids) :]
            files = {layer: folder / layer.digest.removeprefix("sha256:") for layer in missing_layers}
            downloaded = sum(layer.size for layer in files)
            with progress.bar(f"downloading {name}", downloaded) as show:
                for layer, file in files.items():
                    bucket.get_blob(layer, file, show)
            progress.note(f"loading {name} into the engine")
            archive = _archive_members(manifest, config_file, files, name)
            image = _load(source, archive, diff_ids, manifest.config.digest, engine)
    engine.tag(image.id, name)
    return Pulled(source, image, digest_of(content), manifest.config.digest, downloaded, is_missing)


def _load(
    source: BucketImage,
    archive: dict[str, Path | bytes],
    diff_ids: tuple[str, ...],
    config_digest: str,
    engine: DockerEngine,
) -> ImageInfo:
    """Load an archive into the engine, and check that the engine has the image then.

    Raises FlagbenchError (DATA) if a layer is damaged, and EngineError if the engine fails or has another image.
    """
    try:
        engine.load(tar_chunks(archive))
    except EngineError as error:
        if _WRONG_LAYER.search(error.message):
            raise damaged_image(f"a layer of {source.url} does not match its configuration") from error
        raise
    image = engine.inspect(source.local_name)
    if image is None or image.layers != diff_ids:
        raise EngineError(
            f"the engine loaded {source.local_name} as another image than {config_digest}",
            remedy="update the engine, or pull from a server that serves the bucket as a registry",
        )
    return image


def _find_in_engine(engine: DockerEngine, name: str, manifest: ImageManifest, config: Config) -> ImageInfo | None:
    """Find the image in the engine; None if the engine does not have it.

    With the containerd image store the id of an image is not the digest of its configuration. There the image with
    the same name, layers and labels is taken.
    """
    if engine.has_classic_image_store():
        return engine.inspect(manifest.config.digest)
    image = engine.inspect(name)
    if image is None or image.layers != tuple(config.rootfs.diff_ids):
        return None
    if image.labels != (config.config.labels or {}):
        return None
    return image


def _count_present_layers(engine: DockerEngine, diff_ids: tuple[str, ...]) -> int:
    """Count the lowest layers that another image of the engine has: those need not be loaded."""
    if not engine.has_classic_image_store():
        return 0  # The containerd image store needs every layer in compressed form, too.
    most = 0
    for image in engine.images():
        most = max(most, _count_shared_layers(image.layers, diff_ids))
    return most


def _count_shared_layers(layers: Sequence[str], other_layers: Sequence[str]) -> int:
    """Count the lowest layers that two images share."""
    count = 0
    for layer, other_layer in zip(layers, other_layers, strict=False):
        if layer != other_layer:
            break
        count += 1
    return count


def _archive_members(
    manifest: ImageManifest, config: Path, files: dict[Layer, Path], name: str
) -> dict[str, Path | bytes]:
    """Build the members of the archive that `docker load` reads: content or its file, by path in the archive.

    The archive names every layer of the image, and contains only those in `files`; the engine has the others.
    """
    paths = [_layer_path(layer) for layer in manifest.layers]
    description = {"Config": "config.json", "RepoTags": [name], "Layers": paths}
    members: dict[str, Path | bytes] = {"manifest.json": json.dumps([description]).encode(), "config.json": config}
    for layer, file in files.items():
        members[_layer_path(layer)] = file
    return members


def _layer_path(layer: Layer) -> str:
    """The path of a layer in an archive."""
    return f"{layer.digest.removeprefix('sha256:')}/layer.tar"
