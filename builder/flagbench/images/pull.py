"""`flagbench pull`: an image from a bucket into the engine, through `docker load`.

Every blob is compared with the digest that names it. The engine compares each layer that it loads with its diff id in
the image's configuration.
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
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import require_base, resolve_image

_OTHER_LAYER = re.compile(r"(?i)diff ?id")
"""In an engine's error: a layer's content is not what the configuration names."""


@dataclass(frozen=True)
class Pulled:
    """An image that is in the engine now."""

    source: BucketImage
    image: ImageInfo
    manifest: str
    """`sha256:<64 hex>`."""
    config: str
    """`sha256:<64 hex>` of the configuration, which is the image's id in an engine with the classic store."""
    downloaded: int
    """Bytes of layers; 0 where the engine has the image."""
    loaded: bool
    """Whether the engine lacked the image."""

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "source": self.source.url,
            "image": self.source.local_name,
            "image_id": self.image.id,
            "manifest": self.manifest,
            "config": self.config,
            "downloaded": self.downloaded,
        }


def find_in_bucket(image: str, bucket: str | None) -> BucketImage:
    """The image that `pull` is given, `CASE:STACK` in `bucket` or its own address. Raises FlagbenchError (usage)."""
    if is_in_bucket(image):
        if bucket is not None:
            raise FlagbenchError(f"{brief(image)} names its bucket itself", remedy="leave out --from")
        return parse_bucket_image(image)
    if bucket is None:
        raise FlagbenchError(
            f"{brief(image)}: no bucket given",
            remedy="name its bucket with --from s3://BUCKET; `docker pull` pulls from a registry",
        )
    case, stack = resolve_image(image, load_catalog(claims=False))
    require_base(stack)
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

    Raises FlagbenchError: usage (2) where there is no such image, data (3) where a part of it is damaged or missing,
    engine or network (15), also where a disk is full.
    """
    bucket, name = ImageBucket(source.bucket, source.name), source.local_name
    content = bucket.read_manifest(source.reference)
    if content is None:
        raise FlagbenchError(
            f"there is no image {source.url}",
            remedy=f"check its name, or push it: `flagbench push CASE:STACK --to {source.bucket.url}`",
        )
    manifest = decode(content, ImageManifest, f"the manifest of {source.url}")
    with blob_folder() as folder:
        config_file = folder / "config.json"
        bucket.get_blob(manifest.config, config_file, lambda count: None)
        config = decode(config_file.read_bytes(), Config, f"the configuration of {source.url}")
        diff_ids = tuple(config.rootfs.diff_ids)
        if len(diff_ids) != len(manifest.layers):
            raise damaged_image(f"{source.url} has {len(manifest.layers)} layers, its configuration {len(diff_ids)}")
        image = _in_engine(engine, name, manifest, config)
        loaded, downloaded = image is None, 0
        if image is None:
            wanted = manifest.layers[_count_present_layers(engine, diff_ids) :]
            files = {layer: folder / layer.digest.removeprefix("sha256:") for layer in wanted}
            downloaded = sum(layer.size for layer in files)
            with progress.bar(f"downloading {name}", downloaded) as show:
                for layer, file in files.items():
                    bucket.get_blob(layer, file, show)
            progress.note(f"loading {name} into the engine")
            try:
                engine.load(tar_chunks(_archive(manifest, config_file, files, name)))
            except EngineError as error:
                if _OTHER_LAYER.search(error.message):
                    raise damaged_image(f"a layer of {source.url} does not match its configuration") from error
                raise
            image = engine.inspect(name)
            if image is None or image.layers != diff_ids:
                raise EngineError(
                    f"the engine loaded {name} as another image than {manifest.config.digest}",
                    remedy="update the engine, or pull from a server that serves the bucket as a registry",
                )
    engine.tag(image.id, name)
    return Pulled(source, image, digest_of(content), manifest.config.digest, downloaded, loaded)


def _in_engine(engine: DockerEngine, name: str, manifest: ImageManifest, config: Config) -> ImageInfo | None:
    """The image, if the engine has it; with the containerd image store, whose ids are others, under its name."""
    if engine.names_configurations():
        return engine.inspect(manifest.config.digest)
    image = engine.inspect(name)
    if image is None or image.layers != tuple(config.rootfs.diff_ids):
        return None
    if image.labels != (config.config.labels or {}):
        return None
    return image


def _count_present_layers(engine: DockerEngine, diff_ids: tuple[str, ...]) -> int:
    """How many of the lowest layers another image of the engine has: those are not loaded."""
    if not engine.names_configurations():
        return 0  # the containerd store needs the compressed layers, too
    return max((_count_shared_layers(image.layers, diff_ids) for image in engine.images()), default=0)


def _count_shared_layers(first: Sequence[str], second: Sequence[str]) -> int:
    """How many of the lowest layers are the same."""
    count = 0
    for layer, second_layer in zip(first, second, strict=False):
        if layer != second_layer:
            break
        count += 1
    return count


def _archive(manifest: ImageManifest, config: Path, files: dict[Layer, Path], name: str) -> dict[str, Path | bytes]:
    """What `docker load` reads: every layer of the image is named, those that the engine has are not in it."""
    paths = [_layer_path(layer) for layer in manifest.layers]
    description = {"Config": "config.json", "RepoTags": [name], "Layers": paths}
    members: dict[str, Path | bytes] = {"manifest.json": json.dumps([description]).encode(), "config.json": config}
    for layer, file in files.items():
        members[_layer_path(layer)] = file
    return members


def _layer_path(layer: Layer) -> str:
    """The path of a layer in an archive."""
    return f"{layer.digest.removeprefix('sha256:')}/layer.tar"
