"""Layers of an image downloaded, and the image loaded into the engine from them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from flagbench.engines import Engine
from flagbench.engines.base import EngineError, ImageInfo
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import reason
from flagbench.oci.archive import LayerToLoad, file_to_load
from flagbench.oci.bucket import BucketPlace
from flagbench.oci.compress import decompressed, require, unpacked_size
from flagbench.oci.layout import layout_archive
from flagbench.oci.manifest import Manifest, damaged
from flagbench.oci.model import Descriptor
from flagbench.oci.progress import TransferProgress
from flagbench.s3 import sha256_of
from flagbench.user_cache import cache_folder

UNPACKED = 3
"""Bytes of a layer for each compressed one. Measured: 1.35 GB of the cpu stack's layers are 456 MB compressed."""


@dataclass(frozen=True)
class Load:
    """One image on its way into the engine."""

    place: BucketPlace
    engine: Engine
    manifest: Manifest
    config: bytes
    diff_ids: tuple[str, ...]
    name: str
    """`repository:tag` that it gets."""
    progress: TransferProgress

    @property
    def folder(self) -> Path:
        """Where layers are kept until the image is loaded: an interrupted pull is resumed from there."""
        return cache_folder() / "pulled" / self.manifest.config.digest.removeprefix("sha256:")

    def run(self) -> tuple[ImageInfo, int]:
        """The loaded image, and the bytes of layers that were downloaded.

        The classic store loads an image without the layers that it has already, so those are not downloaded. It
        checks every layer against the id that the configuration has for it.
        """
        try:
            return self._run()
        except FlagbenchError as error:
            if error.code is ExitCode.DATA:
                shutil.rmtree(self.folder, ignore_errors=True)  # nothing of it can be used
            raise

    def _run(self) -> tuple[ImageInfo, int]:
        unpacks = any(_is_zstd(layer) for layer in self.manifest.layers) and self._unpacks_zstd()
        held = _held(self.engine, self.diff_ids)
        while True:
            wanted = {layer.digest: layer for layer in self.manifest.layers[held:]}
            files = self._download(wanted.values())
            self.progress.note(f"loading {self.name} into the engine")
            layers = {
                digest: _unpacked_to_load(file) if unpacks and _is_zstd(wanted[digest]) else file_to_load(file)
                for digest, file in files.items()
            }
            try:
                self.engine.load(layout_archive(self.manifest, self.config, layers, self.name))
                break
            except EngineError as error:
                if "invalid diffID" in error.message:
                    raise damaged(f"a layer of {self.place.url} is not the one its configuration names") from error
                if held == 0 or "no such file" not in error.message:
                    raise
                held = 0  # an image that shared layers was removed meanwhile
        image = in_engine(self.engine, self.manifest)
        if image is None or image.layers != self.diff_ids:
            raise EngineError(
                f"the engine loaded {self.name} as another image than {self.manifest.config.digest}",
                remedy="update the engine, or pull from a server that serves the bucket as a registry",
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        return image, sum(layer.size for layer in wanted.values())

    def _unpacks_zstd(self) -> bool:
        """Whether layers in zstd are unpacked for the engine. Raises FlagbenchError (usage) where they cannot be."""
        if not self.engine.names_configurations() or self.engine.reads_zstd():
            return False
        require("zstd", f"{self.name} is compressed with zstd, which Docker before 23 cannot read. Unpacking it here")
        return True

    def _download(self, layers: Iterable[Descriptor]) -> dict[str, Path]:
        """The file of each layer, by digest."""
        files = {layer.digest: self.folder / layer.digest.removeprefix("sha256:") for layer in layers}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            missing = [layer for layer in layers if not _is_whole(files[layer.digest], layer)]
            total = sum(layer.size for layer in missing)
            require_space(shutil.disk_usage(self.folder).free, total, str(self.folder))
            # While it loads an image, the engine has a copy of what it was sent.
            loaded = (1 + UNPACKED) * sum(layer.size for layer in layers)
            require_space(self.engine.free_bytes(), loaded, "the engine's disk")
            if total:
                self.progress.note(f"downloading {total / 1e6:,.1f} MB of {self.name}")
                self.progress.start(total)
                try:
                    for layer in missing:
                        self.place.fetch_blob(layer, files[layer.digest], self.progress.advance)
                finally:
                    self.progress.end()
        except OSError as error:
            raise FlagbenchError(
                f"{self.folder} cannot be written: {reason(error)}",
                remedy="free some space there, or name another cache folder with XDG_CACHE_HOME",
                code=ExitCode.ENGINE,
            ) from error
        require_space(self.engine.free_bytes(), loaded, "the engine's disk")
        return files


def in_engine(engine: Engine, manifest: Manifest) -> ImageInfo | None:
    """The image, if the engine has it: by its configuration, or with the containerd store by its manifest."""
    return engine.inspect(manifest.config.digest) or engine.inspect(manifest.digest)


def _unpacked_to_load(file: Path) -> LayerToLoad:
    """A layer in zstd, unpacked while it is read."""
    return LayerToLoad(unpacked_size(file), partial(decompressed, file, "zstd"))


def _is_zstd(layer: Descriptor) -> bool:
    return layer.media_type.endswith("+zstd")


def require_space(free: int | None, needed: int, where: str) -> None:
    """Check the free disk space, in bytes; `free` is None if it is not known. Raises FlagbenchError (engine)."""
    if free is not None and free < needed:
        raise FlagbenchError(
            f"{where} has {free / 1e9:.1f} GB free, and the image needs about {needed / 1e9:.1f} GB",
            remedy="free some space (`docker system df` shows what the engine takes)",
            code=ExitCode.ENGINE,
        )


def _held(engine: Engine, diff_ids: tuple[str, ...]) -> int:
    """How many of the lowest layers need not be loaded, because an image of the engine has them too."""
    if not engine.names_configurations():
        return 0  # the containerd store needs the compressed layers, too
    return max((_shared(image.layers, diff_ids) for image in engine.images()), default=0)


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    """How many of the lowest layers are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _is_whole(file: Path, layer: Descriptor) -> bool:
    """Whether an earlier pull has downloaded a layer."""
    return file.exists() and sha256_of(file) == layer.digest.removeprefix("sha256:")
