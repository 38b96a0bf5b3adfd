"""An image as the archive that `docker load` reads, streamed.

It is an OCI layout with a `manifest.json` beside it, as `docker save` writes it since Docker 25: an engine with the
classic store reads the latter alone, one with the containerd store reads the layout and keeps the manifest's digest.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from flagbench.oci.manifest import Manifest

_CHUNK = 2**20
_BLOCK = tarfile.BLOCKSIZE


def layout_archive(manifest: Manifest, config: bytes, layers: Mapping[str, Path], name: str) -> Iterator[bytes]:
    """Chunks of the archive of one image.

    Args:
        layers: files of compressed layers, by digest. One that is missing is left out: the classic store does not
            look for a layer that it has.
        name: `repository:tag` that the engine gives the image.
    """
    digests = dict.fromkeys(layer.digest for layer in manifest.layers)
    described = {
        "mediaType": manifest.media_type,
        "digest": manifest.digest,
        "size": len(manifest.content),
        "annotations": {
            "io.containerd.image.name": f"docker.io/{name}",
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        },
    }
    docker = {
        "Config": _path(manifest.config.digest),
        "RepoTags": [name],
        "Layers": [_path(layer.digest) for layer in manifest.layers],
    }
    yield from _member("oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
    yield from _member("index.json", _json({"schemaVersion": 2, "manifests": [described]}))
    yield from _member("manifest.json", _json([docker]))
    yield from _member(_path(manifest.digest), manifest.content)
    yield from _member(_path(manifest.config.digest), config)
    for digest in digests:
        if (file := layers.get(digest)) is not None:
            yield from _file(_path(digest), file)
    yield bytes(2 * _BLOCK)


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _member(name: str, content: bytes) -> Iterator[bytes]:
    yield _header(name, len(content))
    yield content + bytes(-len(content) % _BLOCK)


def _file(name: str, file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    yield _header(name, size)
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            yield chunk
    if padding := -size % _BLOCK:
        # Never an empty chunk: it would end the body of a request that is sent in chunks.
        yield bytes(padding)


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)
