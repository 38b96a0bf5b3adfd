"""From what `docker save` writes to blobs by digest and a manifest, as a registry keeps them.

The image keeps its id, which is the digest of its configuration, and images that share a layer have the same blob of
it: what is compressed depends on the layer alone. Reads an engine's archives of before Docker 25 (`ID/layer.tar`) and
later ones (`blobs/sha256/...`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import posixpath
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, cast

from isal import igzip_threaded

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.diff_ids import remember_diff_id
from flagbench.oci.manifest import CONFIG_TYPE, Blob, Config, Layer, Manifest, decode, digest_of

CHUNK = 2**20
"""Bytes that are read at once, and that one thread compresses: the output depends on it."""
# The cpu stack's largest layer, 947 MB, on two processors: 1.2 s for 278 MB. zlib's level 1 takes 6.8 s for as many,
# its level 6 takes 20.8 s for 242 MB. Images of accelerators are ten to twenty times as large.
_LEVEL = 2
_JSON_BYTES = 16 * 2**20
_GZIP = b"\x1f\x8b"


class SavedImage:
    """One image in an archive, which is read once."""

    def __init__(self, archive: Iterable[bytes], folder: Path) -> None:
        """`folder`: where one compressed layer at a time is kept."""
        self._archive = archive
        self._folder = folder
        self._documents: dict[str, bytes] = {}
        self._layers: dict[str, tuple[str, Layer]] = {}
        self._links: dict[str, str] = {}

    def blobs(self) -> Iterator[tuple[Blob, Path]]:
        """Every layer, then the configuration, each in a file that is removed when the next is asked for.

        Layers come in the archive's order, which is not that of the image. Raises FlagbenchError (data) where the
        archive is damaged, OSError where the folder cannot be written.
        """
        path = self._folder / "blob"
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", _Chunks(self._archive)), mode="r|", bufsize=CHUNK) as tar:
                for member in tar:
                    if layer := self._read(tar, member, path):
                        yield layer, path
        except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise _unreadable(str(error)) from None
        path.write_bytes(self._config)
        yield self.manifest.config, path

    @property
    def manifest(self) -> Manifest:
        """The manifest, once all blobs were read. Raises FlagbenchError (data) where they are not one image's."""
        config = self._config
        found = [self._layers.get(self._links.get(name, name)) for name in self._entry["Layers"]]
        layers = [each for each in found if each is not None]
        if [diff_id for diff_id, _ in layers] != decode(config, Config, "the image's configuration").rootfs.diff_ids:
            raise _unreadable("its layers are not those that its configuration names")
        described = Blob(media_type=CONFIG_TYPE, size=len(config), digest=digest_of(config))
        return Manifest(config=described, layers=[layer for _, layer in layers])

    @property
    def _entry(self) -> dict[str, Any]:
        try:
            (entry,) = json.loads(self._documents["manifest.json"])
            return {"Config": entry["Config"], "Layers": entry["Layers"]}
        except (KeyError, TypeError, ValueError, RecursionError):
            raise _unreadable("it does not have one image") from None

    @property
    def _config(self) -> bytes:
        return self._documents.get(self._entry["Config"], b"")

    def _read(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> Layer | None:
        """Read a member; a layer is compressed into the file `path`."""
        if member.issym():
            # Before Docker 25: a layer that the image has twice.
            self._links[member.name] = posixpath.normpath(posixpath.join(member.name, "..", member.linkname))
        elif member.islnk():
            self._links[member.name] = member.linkname
        elif member.isfile():
            content = cast(BufferedReader, tar.extractfile(member))
            begin = content.peek(2)[:2]
            is_json = begin[:1] in (b"{", b"[") and member.size <= _JSON_BYTES
            if member.name.endswith("/layer.tar") or (member.name.startswith("blobs/") and not is_json):
                if begin == _GZIP:  # as the containerd image store has layers
                    content = BufferedReader(cast(Any, gzip.GzipFile(fileobj=content)), CHUNK)
                diff_id, layer = _compress(content, path)
                remember_diff_id(layer, diff_id)
                self._layers[member.name] = diff_id, layer
                return layer
            if is_json:
                self._documents[member.name] = content.read()
        return None


def _compress(tar: BufferedReader, path: Path) -> tuple[str, Layer]:
    """Compress a layer into a file; returns its diff id and what a manifest says of it."""
    diff_id = hashlib.sha256()
    with path.open("wb") as file:
        blob = _Summed(file)
        # Its header has no time, no name and no system.
        with cast(Any, igzip_threaded).open(blob, "wb", _LEVEL, threads=-1, block_size=CHUNK) as out:
            while chunk := tar.read(CHUNK):
                diff_id.update(chunk)
                out.write(chunk)
    return f"sha256:{diff_id.hexdigest()}", Layer(size=blob.size, digest=f"sha256:{blob.sha256.hexdigest()}")


class _Summed:
    """A file that is written, with its sha256 and size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, content: bytes) -> int:
        """Write all of it."""
        self.sha256.update(content)
        self.size += len(content)
        return self._file.write(content)

    def flush(self) -> None:
        """Closing the file does it."""


class _Chunks:
    """What tarfile needs of a stream."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = filter(None, chunks)

    def read(self, size: int) -> bytes:
        """The next chunk, of any size; empty at the end."""
        return next(self._chunks, b"")


def _unreadable(problem: str) -> FlagbenchError:
    return FlagbenchError(
        f"the image that the engine saved cannot be read: {problem}",
        remedy="push again; if it fails again, check that `docker save` can write the image",
        code=ExitCode.DATA,
    )
