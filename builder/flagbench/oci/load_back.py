"""Loads normalised images back into the engine, under the names that the images they were made of have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flagbench.engines import Engine
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.archive import ImageToLoad, LayerToLoad, archive_to_load, file_to_load
from flagbench.oci.compress import decompressed
from flagbench.oci.export import EngineImage, Layers


def load_back(images: Sequence[EngineImage], layers: Layers, engine: Engine) -> list[EngineImage]:
    """Replace the engine's images by the normalised ones, where those are others; returns the images replaced.

    A name that was moved to another image meanwhile stays where it is. Only layers that the engine lacks are sent.

    Raises FlagbenchError (engine) where it does not load them.
    """
    changed = [image for image in images if image.config_digest != image.info.id]
    tags = {image.name: _current_tags(image, engine) for image in changed}
    changed = [image for image in changed if tags[image.name]]
    if not changed:
        return []
    to_load = [
        ImageToLoad(image.config, tags[image.name], [layers.normal.get(each, each) for each in image.info.layers])
        for image in changed
    ]
    engine.load(archive_to_load(to_load, {diff_id: _layer(diff_id, layers) for diff_id in layers.sizes}))
    for image in changed:
        loaded = engine.inspect(tags[image.name][0])
        if loaded is None or loaded.id != image.config_digest:
            raise FlagbenchError(
                f"the image was pushed, but the engine did not load {image.name} back as it was pushed",
                remedy="pull it from where it was pushed, or push again",
                code=ExitCode.ENGINE,
            )
    return changed


def _current_tags(image: EngineImage, engine: Engine) -> list[str]:
    found = ((tag, engine.inspect(tag)) for tag in image.info.repo_tags)
    return [tag for tag, info in found if info is not None and info.id == image.info.id]


def _layer(diff_id: str, layers: Layers) -> LayerToLoad:
    blob = layers.blobs[diff_id]
    file = blob.path(lambda count: None)
    if layers.compression == "gzip":
        return file_to_load(file)
    # An engine before 23 reads no zstd.
    return LayerToLoad(layers.sizes[diff_id], partial(decompressed, file, layers.compression))
