"""An image as the archive that `docker load` reads, streamed.

It is an OCI layout with a `manifest.json` beside it, as `docker save` writes it since Docker 25: an engine with the
classic store reads the latter alone, one with the containerd store reads the layout and keeps the manifest's digest.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping

from flagbench.oci.archive import LayerToLoad, content_to_load, member
from flagbench.oci.manifest import Manifest


def layout_archive(
    manifest: Manifest, config: bytes, layers: Mapping[str, LayerToLoad], name: str
) -> Iterator[bytes]:
    """Chunks of the archive of one image.

    Args:
        layers: by digest, compressed or, for a classic store, not. One that is missing is left out: the classic store
            does not look for a layer that it has.
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
    documents = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [described]}),
        "manifest.json": _json([docker]),
        _path(manifest.digest): manifest.content,
        _path(manifest.config.digest): config,
    }
    for path, content in documents.items():
        yield from member(path, content_to_load(content))
    for digest in digests:
        if (layer := layers.get(digest)) is not None:
            yield from member(_path(digest), layer)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
