"""An image from a bucket into the engine: nothing is used that does not match the digest that names it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from flagbench.engines import Engine
from flagbench.engines.base import ImageInfo
from flagbench.errors import FlagbenchError
from flagbench.oci.bucket import BucketPlace
from flagbench.oci.bucket_address import BucketImage
from flagbench.oci.compress import Compression
from flagbench.oci.known import Known, KnownImage
from flagbench.oci.load import Load, in_engine
from flagbench.oci.manifest import CONFIG_BYTES, Manifest, damaged, parse_diff_ids, parse_manifest
from flagbench.oci.progress import TransferProgress
from flagbench.user_cache import cache_folder
from flagbench.user_lock import user_lock


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
    """Bytes of layers; 0 where the engine had the image."""

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


def pull(source: BucketImage, engine: Engine, progress: TransferProgress) -> Pulled:
    """Bring an image into the engine, under its name without the bucket.

    Raises FlagbenchError: usage (2) where there is no such image, data (3) where a part of it is damaged or missing,
    engine or network (15), also where a disk is full.
    """
    place = BucketPlace(source.bucket, source.name)
    found = place.read_manifest(source.reference)
    if found is None:
        raise FlagbenchError(
            f"there is no image {source.url}",
            remedy=f"push it: flagbench push CASE:STACK --to {source.bucket.url}",
        )
    manifest = parse_manifest(*found, source.url)
    config = _config(place, manifest, source)
    diff_ids = parse_diff_ids(config, manifest, source.url)
    image, downloaded = in_engine(engine, manifest), 0
    if image is None:
        load = Load(place, engine, manifest, config, diff_ids, source.local_name, progress)
        waiting = f"another flagbench is pulling {source.local_name}; waiting for it"
        with user_lock("pulling", manifest.config.digest, lambda: progress.note(waiting), cache_folder()):
            image = in_engine(engine, manifest)
            if image is None:
                image, downloaded = load.run()
    named = engine.inspect(source.local_name)
    if named is None or named.id != image.id:
        engine.tag(image.id, source.local_name)
    _remember(place, image, manifest, config)
    return Pulled(source, image, manifest.digest, manifest.config.digest, downloaded)


def _config(place: BucketPlace, manifest: Manifest, source: BucketImage) -> bytes:
    """The configuration, unchecked; no more of it than the manifest says there is."""
    if manifest.config.size > CONFIG_BYTES:
        raise damaged(f"the configuration of {source.url} has {manifest.config.size} bytes")
    content = b""
    for chunk in place.read_blob(manifest.config.digest):
        content += chunk
        if len(content) > manifest.config.size:
            break
    return content


def _remember(place: BucketPlace, image: ImageInfo, manifest: Manifest, config: bytes) -> None:
    """Have records of the image name its manifest; the engine itself knows none of an image that was loaded."""
    compression: Compression = "zstd" if any("zstd" in layer.media_type for layer in manifest.layers) else "gzip"
    with suppress(UnicodeDecodeError):  # JSON in another encoding, which flagbench never writes
        entry = KnownImage(manifest.content.decode(), manifest.media_type, config.decode())
        Known().remember_image(image.id, compression, entry, f"{place.url}@{manifest.digest}")
