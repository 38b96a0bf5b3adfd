"""From an image of the engine to one that can be pushed: read once, normalised, compressed where a place lacks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flagbench.engines import Engine
from flagbench.engines.base import ImageInfo
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.labels import CREATED_LABEL, EPOCH_LABEL
from flagbench.oci.archive import SavedImages, SavedLayer
from flagbench.oci.compress import Compression, compress
from flagbench.oci.known import Known
from flagbench.oci.model import OCI_MANIFEST, Blob, Descriptor, OciImage, digest_of
from flagbench.oci.normalise import normalise_config, normalise_layer
from flagbench.oci.push import not_here
from flagbench.oci.referrers import descriptor_json

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"


@dataclass(frozen=True)
class EngineImage:
    """An image of the engine, and what it becomes."""

    name: str
    """`repository:tag` by which it is saved."""
    info: ImageInfo
    config: bytes = b""
    """Its normalised configuration, once it was exported."""

    @property
    def config_digest(self) -> str:
        """`sha256:<64 hex>` of the normalised configuration."""
        return digest_of(self.config)


@dataclass
class Layers:
    """The layers of images that share most of them; what is known of them grows while they are read."""

    compression: Compression
    epoch: int
    """Seconds since 1970: the latest time of a file in a layer of ours."""
    base: Sequence[str]
    """Diff ids of the base, whose layers are never changed."""
    ours: Sequence[str]
    """Diff ids above the base, lowest first."""
    from_registry: dict[str, Blob] = field(default_factory=dict)
    """By diff id, the base's layers as its registry has them."""
    normal: dict[str, str] = field(default_factory=dict)
    """By diff id, that of the normalised layer."""
    blobs: dict[str, Blob] = field(default_factory=dict)
    """By diff id of the normalised layer."""
    sizes: dict[str, int] = field(default_factory=dict)
    """By diff id, bytes of the normalised tar of a layer whose compressed file is here."""


def export(
    images: Sequence[EngineImage],
    layers: Layers,
    engine: Engine,
    known: Known,
    folder: Path,
    offered: Callable[[Blob], bool],
    note: Callable[[str], None],
) -> tuple[OciImage, list[EngineImage]]:
    """Read images from the engine at once; returns the first for a place, and all of them with their configurations.

    Args:
        images: the one to push, then others below it whose layers are its lowest.
        folder: where layers are kept, as long as the image is pushed and loaded.
        offered: whether the place has a layer already.
        note: called with a line for the user.

    Raises FlagbenchError (engine, or data where the engine's archive is not what it says), OSError for the folder.
    """
    wanted = {*layers.base, *layers.ours} - layers.from_registry.keys()
    layers.normal.update({each: each for each in layers.base})
    changing = _changing(layers, known)
    saved = SavedImages(engine.save(*(image.name for image in images)), folder)
    note(f"reading {images[0].name} from the engine")
    for layer in saved.layers():
        if layer.diff_id in wanted:
            _take(layer, layers, known, folder, offered, keep_here=layer.diff_id in changing)
            wanted.discard(layer.diff_id)
    if wanted:
        raise FlagbenchError(
            f"the engine saved {images[0].name} without its layer {min(wanted)}",
            remedy="push again, and remove no image meanwhile",
            code=ExitCode.DATA,
        )
    finished = [
        EngineImage(
            image.name,
            image.info,
            normalise_config(saved.config(image.name), layers.normal, image.info.labels.get(CREATED_LABEL)),
        )
        for image in images
    ]
    return _oci_image(finished[0], layers, folder), finished


def epoch_of(image: ImageInfo, name: str) -> int:
    """The latest time of a file in a normalised image. Raises FlagbenchError (usage) for one without that label."""
    text = image.labels.get(EPOCH_LABEL, "")
    if text.isascii() and text.isdigit():
        return int(text)
    raise FlagbenchError(
        f"the image {name} was not built by this flagbench: it has no label {EPOCH_LABEL}",
        remedy="build it with `flagbench build`",
    )


def _changing(layers: Layers, known: Known) -> set[str]:
    """Our layers that the engine may have to load again: those that are not normal, or stand on one that is not."""
    for index, diff_id in enumerate(layers.ours):
        if known.normal(diff_id, layers.epoch) != diff_id:
            return {*layers.ours[index:]}
    return set()


def _take(
    layer: SavedLayer, layers: Layers, known: Known, folder: Path, offered: Callable[[Blob], bool], *, keep_here: bool
) -> None:
    """Normalise and compress a layer, unless that was done before and the place has it."""
    diff_id, compression = layer.diff_id, layers.compression
    normal = layers.normal.get(diff_id) or known.normal(diff_id, layers.epoch)
    if normal is not None and not keep_here:
        before = known.layer(normal, compression)
        if before is not None:
            blob = Blob(before, not_here, known.origins(before.digest))
            if offered(blob):
                layers.normal[diff_id], layers.blobs[normal] = normal, blob
                return
    tar = layer.path
    if diff_id not in layers.base:
        changed = normalise_layer(layer.path, folder / "normal.tar", layers.epoch)
        normal = changed or diff_id
        tar = folder / "normal.tar" if changed else tar
        known.remember_normal(diff_id, layers.epoch, normal)
    normal = normal or diff_id
    file = folder / f"{normal.removeprefix('sha256:')}.{compression}"
    descriptor = compress(tar, file, compression)
    known.remember_layer(normal, compression, descriptor)
    layers.normal[diff_id] = normal
    layers.blobs[normal] = Blob(descriptor, lambda show: file, known.origins(descriptor.digest))
    layers.sizes[normal] = tar.stat().st_size


def _oci_image(image: EngineImage, layers: Layers, folder: Path) -> OciImage:
    path = folder / "config.json"
    path.write_bytes(image.config)
    config = Blob(Descriptor(CONFIG_TYPE, image.config_digest, len(image.config)), lambda show: path)
    blobs = [layers.from_registry.get(each) or layers.blobs[layers.normal[each]] for each in image.info.layers]
    return OciImage(
        manifest_of(config.descriptor, [blob.descriptor for blob in blobs]), OCI_MANIFEST, config, tuple(blobs)
    )


def manifest_of(config: Descriptor, layers: Sequence[Descriptor]) -> bytes:
    """The manifest of an image; the same bytes for the same blobs."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor_json(config),
        "layers": [descriptor_json(layer) for layer in layers],
    }
    return json.dumps(manifest, separators=(",", ":")).encode()
