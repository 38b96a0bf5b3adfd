"""What this machine pushed, in small files of the user's data folder: a second push need not read the image.

Only a cache: an entry that is missing, damaged or outdated costs time and nothing else, because the place is always
asked whether it has what the entry says. Each entry is a file of its own that is replaced as a whole, so processes
need no lock. Whatever cannot be written is not remembered.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from platformdirs import user_data_path

from flagbench.files import TEXT_BYTES, read_file, write_atomically
from flagbench.oci.compress import COMPRESSIONS, Compression
from flagbench.oci.model import Descriptor, digest_of
from flagbench.typed import decode_json

_T = TypeVar("_T")
_MAX_ORIGINS = 20


class KnownImage(msgspec.Struct, frozen=True):
    """An image that was pushed."""

    manifest: str
    media_type: str
    config: str
    references: tuple[str, ...] = ()
    """Where it was pushed, `HOST/NAME@sha256:...`, the latest first."""

    @property
    def digest(self) -> str:
        """`sha256:<64 hex>` of the manifest."""
        return digest_of(self.manifest.encode())

    @property
    def config_digest(self) -> str:
        """`sha256:<64 hex>` of the configuration."""
        return digest_of(self.config.encode())


class KnownBase(msgspec.Struct, frozen=True):
    """The manifest and the configuration of a base."""

    manifest: str
    config: str
    media_type: str


class Known:
    """The entries."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: by default `pushed` in flagbench's data folder."""
        self._folder = folder or user_data_path("flagbench") / "pushed"

    def image(self, image_id: str, compression: Compression) -> KnownImage | None:
        """What the image of an engine became when it was pushed."""
        return self._read("images", f"{image_id}-{compression}", KnownImage)

    def remember_image(
        self, image_id: str, compression: Compression, image: KnownImage, reference: str | None = None
    ) -> None:
        """`reference`: where it was pushed now."""
        known = self.image(image_id, compression)
        if known is not None and known.manifest == image.manifest:
            image = msgspec.structs.replace(image, references=known.references)
        if reference is not None:
            kept = tuple(dict.fromkeys((reference, *image.references)))[:_MAX_ORIGINS]
            image = msgspec.structs.replace(image, references=kept)
        self._write("images", f"{image_id}-{compression}", image)

    def pushed_as(self, image_id: str) -> str | None:
        """Where the image with that configuration was pushed last, `HOST/NAME@sha256:...`.

        None: never from here, or the engine's image is another than the one that was pushed.
        """
        for compression in COMPRESSIONS:
            found = self.image(image_id, compression)
            if found is not None and found.config_digest == image_id and found.references:
                return found.references[0]
        return None

    def normal(self, diff_id: str, epoch: int) -> str | None:
        """The diff id of a layer once it is normalised."""
        return self._read("normal", f"{diff_id}-{epoch}", str)

    def remember_normal(self, diff_id: str, epoch: int, normal: str) -> None:
        """The normalised layer stays as it is, too."""
        for each in (diff_id, normal):
            self._write("normal", f"{each}-{epoch}", normal)

    def layer(self, diff_id: str, compression: Compression) -> Descriptor | None:
        """The compressed layer."""
        return self._read("layers", f"{diff_id}-{compression}", Descriptor)

    def remember_layer(self, diff_id: str, compression: Compression, layer: Descriptor) -> None:
        """The digest of a layer once it is compressed."""
        self._write("layers", f"{diff_id}-{compression}", layer)

    def origins(self, digest: str) -> tuple[str, ...]:
        """Repositories that had a blob, `HOST/NAME`, the latest first."""
        return self._read("origins", digest, tuple[str, ...]) or ()

    def remember_origin(self, digest: str, repository: str) -> None:
        """A repository has a blob now."""
        before = self.origins(digest)
        if repository not in before[:1]:
            self._write("origins", digest, tuple(dict.fromkeys((repository, *before)))[:_MAX_ORIGINS])

    def base(self, digest: str, platform: str) -> KnownBase | None:
        """The base with that manifest, or in that index for the platform (`os/arch[/variant]`)."""
        return self._read("bases", f"{digest}-{platform.replace('/', '-')}", KnownBase)

    def remember_base(self, digest: str, platform: str, base: KnownBase) -> None:
        """What a base's digest names never changes."""
        self._write("bases", f"{digest}-{platform.replace('/', '-')}", base)

    def _path(self, kind: str, key: str) -> Path:
        return self._folder / kind / f"{key.removeprefix('sha256:')}.json"

    def _read(self, kind: str, key: str, shape: type[_T]) -> _T | None:
        with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
            digest, _, content = read_file(self._path(kind, key), TEXT_BYTES).partition(b"\n")
            if digest.decode() == _sum(kind, key, content):
                return decode_json(content, shape)
        return None

    def _write(self, kind: str, key: str, entry: object) -> None:
        path, content = self._path(kind, key), msgspec.json.encode(entry)
        with suppress(OSError, ValueError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _sum(kind, key, content).encode() + b"\n" + content)


def _sum(kind: str, key: str, content: bytes) -> str:
    """A damaged entry, or one that was copied to another name, could make an image of the wrong layers."""
    return digest_of(f"{kind}/{key}\n".encode() + content)
