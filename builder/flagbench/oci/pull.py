"""An image from a bucket into the engine: nothing is used that does not match the digest that names it.

An engine that has an image, or its lowest layers, does not look at them again. So every layer of a manifest is
compared with the diff id that the configuration has for it.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from gzip import BadGzipFile
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, cast

from isal import igzip
from isal.isal_zlib import error as isal_error

from flagbench.engines import Engine
from flagbench.engines.base import EngineError, ImageInfo
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import reason
from flagbench.oci.bucket import ImageBucket
from flagbench.oci.bucket_address import BucketImage
from flagbench.oci.diff_ids import remember_diff_id, seen_diff_id
from flagbench.oci.manifest import Blob, Config, Layer, Manifest, damaged, decode, digest_of
from flagbench.progress import Progress
from flagbench.user_cache import cache_folder
from flagbench.user_lock import user_lock

_CHUNK = 2**20


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
    """Bytes of layers; 0 where all of them had been compared before."""

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


def pull(source: BucketImage, engine: Engine, progress: Progress) -> Pulled:
    """Bring an image into the engine, under its name without the bucket.

    Raises FlagbenchError: usage (2) where there is no such image, data (3) where a part of it is damaged or missing,
    engine or network (15), also where a disk is full.
    """
    bucket = ImageBucket(source.bucket, source.name)
    content = bucket.read_manifest(source.reference)
    if content is None:
        raise FlagbenchError(
            f"there is no image {source.url}",
            remedy=f"push it: flagbench push CASE:STACK --to {source.bucket.url}",
        )
    manifest = decode(content, Manifest, f"the manifest of {source.url}")
    config, name = manifest.config.digest, source.local_name
    folder = cache_folder() / "pulled" / config.removeprefix("sha256:")
    waiting = f"another flagbench is pulling {name}; waiting for it"
    with user_lock("pulling", config, lambda: progress.note(waiting), cache_folder()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            image, downloaded = _bring(bucket, content, manifest, engine, name, folder, progress)
            shutil.rmtree(folder)
        except FlagbenchError as error:
            if error.code is ExitCode.DATA:
                shutil.rmtree(folder, ignore_errors=True)  # none of it can be used
            raise
        except OSError as error:
            raise FlagbenchError(
                f"{folder} cannot be written: {reason(error)}",
                remedy="free some space there, or name another cache folder with XDG_CACHE_HOME",
                code=ExitCode.ENGINE,
            ) from error
    named = engine.inspect(name)
    if named is None or named.id != image.id:
        engine.tag(image.id, name)
    return Pulled(source, image, digest_of(content), config, downloaded)


def _bring(
    bucket: ImageBucket,
    content: bytes,
    manifest: Manifest,
    engine: Engine,
    name: str,
    folder: Path,
    progress: Progress,
) -> tuple[ImageInfo, int]:
    """The image in the engine, each of its layers compared, and the bytes of layers that were downloaded.

    `content`: the manifest's bytes. Layers that are complete stay in `folder` where something fails.
    """
    diff_ids = _diff_ids(bucket, manifest, folder)
    image = _in_engine(engine, content, manifest)
    held = len(diff_ids) if image else _held(engine, diff_ids)
    wanted = [
        (layer, diff_id)
        for number, (layer, diff_id) in enumerate(zip(manifest.layers, diff_ids, strict=True))
        if number >= held or seen_diff_id(layer) != diff_id
    ]
    missing = {layer for layer, _ in wanted if not _file(folder, layer).exists()}
    if missing:
        with progress.bar(f"downloading {name}", sum(layer.size for layer in missing)) as advance:
            for layer in missing:
                bucket.fetch_blob(layer, _file(folder, layer), advance)
    for layer, diff_id in wanted:
        _compare(_file(folder, layer), layer, diff_id, bucket.url)
    if image is None:
        progress.note(f"loading {name} into the engine")
        engine.load(_archive(content, manifest, name, folder))
        image = _in_engine(engine, content, manifest)
        if image is None or image.layers != diff_ids:
            raise EngineError(
                f"the engine loaded {name} as another image than {manifest.config.digest}",
                remedy="update the engine, or pull from a server that serves the bucket as a registry",
            )
    return image, sum(layer.size for layer in {layer for layer, _ in wanted})


def _in_engine(engine: Engine, content: bytes, manifest: Manifest) -> ImageInfo | None:
    """The image, if the engine has it: by its configuration, or with the containerd store by its manifest."""
    return engine.inspect(manifest.config.digest) or engine.inspect(digest_of(content))


def _diff_ids(bucket: ImageBucket, manifest: Manifest, folder: Path) -> tuple[str, ...]:
    """`sha256:<64 hex>` of each layer's uncompressed tar, lowest first, as the configuration has them."""
    file = _file(folder, manifest.config)
    bucket.fetch_blob(manifest.config, file, lambda count: None)
    content = file.read_bytes()
    if digest_of(content) != manifest.config.digest:
        raise damaged(f"the configuration of an image in {bucket.url} does not match its digest")
    found = tuple(decode(content, Config, f"the configuration of an image in {bucket.url}").rootfs.diff_ids)
    if len(found) != len(manifest.layers):
        raise damaged(f"a manifest of {bucket.url} has {len(manifest.layers)} layers, its configuration {len(found)}")
    return found


def _held(engine: Engine, diff_ids: tuple[str, ...]) -> int:
    """How many of the lowest layers another image of the engine has: those are not loaded."""
    if not engine.names_configurations():
        return 0  # the containerd store needs the compressed layers, too
    return max((_shared(image.layers, diff_ids) for image in engine.images()), default=0)


def _shared(first: Sequence[str], second: Sequence[str]) -> int:
    """How many of the lowest layers are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _compare(path: Path, layer: Layer, diff_id: str, url: str) -> None:
    """Compare a layer with its digest and its diff id. Raises FlagbenchError (data) if it differs."""
    unpack = cast(Any, igzip).open if layer.media_type.endswith("gzip") else open
    with path.open("rb") as file:
        if _sum(file) != layer.digest:
            raise damaged(f"the layer {layer.digest} of {url} does not match its digest")
    try:
        with unpack(path, "rb") as tar:
            found = _sum(tar)
    except (cast("type[Exception]", isal_error), BadGzipFile, EOFError):
        found = "nothing that can be unpacked"
    if found != diff_id:
        raise damaged(f"the layer {layer.digest} of {url} contains {found}; the image's configuration has {diff_id}")
    remember_diff_id(layer, diff_id)


def _sum(file: IO[bytes]) -> str:
    found = sha256()
    while chunk := file.read(_CHUNK):
        found.update(chunk)
    return f"sha256:{found.hexdigest()}"


def _archive(content: bytes, manifest: Manifest, name: str, folder: Path) -> Iterator[bytes]:
    """Chunks of the archive that `docker load` reads; the layers that are in `folder` are in it.

    It is an OCI layout with a `manifest.json` beside it, as `docker save` writes it since Docker 25: an engine with
    the classic store reads the latter alone, one with the containerd store reads the layout and keeps the manifest.
    """
    described = {
        "mediaType": manifest.media_type,
        "digest": digest_of(content),
        "size": len(content),
        "annotations": {
            "io.containerd.image.name": f"docker.io/{name}",
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        },
    }
    docker = {
        "Config": _member_name(manifest.config.digest),
        "RepoTags": [name],
        "Layers": [_member_name(layer.digest) for layer in manifest.layers],
    }
    yield from _member("oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
    yield from _member("index.json", _json({"schemaVersion": 2, "manifests": [described]}))
    yield from _member("manifest.json", _json([docker]))
    yield from _member(_member_name(digest_of(content)), content)
    for blob in dict.fromkeys((manifest.config, *manifest.layers)):
        if (file := _file(folder, blob)).exists():
            yield from _member(_member_name(blob.digest), file)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, content: bytes | Path) -> Iterator[bytes]:
    """Chunks of a member of an archive; never an empty one, which would end the body of a chunked request."""
    header = tarfile.TarInfo(name)
    header.size = len(content) if isinstance(content, bytes) else content.stat().st_size
    yield header.tobuf(tarfile.GNU_FORMAT)
    if isinstance(content, bytes):
        yield content
    else:
        with content.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    if padding := -header.size % tarfile.BLOCKSIZE:
        yield bytes(padding)


def _member_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _file(folder: Path, blob: Blob) -> Path:
    return folder / blob.digest.removeprefix("sha256:")
