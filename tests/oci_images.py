"""Small images made by hand, as a registry or a bucket keeps them: no engine builds or compresses anything."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from typing import Any

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass(frozen=True)
class HandMade:
    """An image; a blob that is None is nowhere."""

    manifest: bytes
    config: bytes
    layers: tuple[bytes | None, ...]
    """Lowest first, compressed."""

    @property
    def digest(self) -> str:
        """Of the manifest."""
        return sha256(self.manifest)

    @property
    def id(self) -> str:
        """What an engine calls it."""
        return sha256(self.config)

    def put(self, client: Any, bucket: str, name: str, **options: str) -> str:
        """Put it into a bucket under the tag `cpu`; returns its address there."""
        for blob in (*self.layers, self.config):
            if blob is not None:
                client.put_object(Bucket=bucket, Key=f"v2/{name}/blobs/{sha256(blob)}", Body=blob, **options)
        for reference in (self.digest, "cpu"):
            key = f"v2/{name}/manifests/{reference}"
            client.put_object(Bucket=bucket, Key=key, Body=self.manifest, ContentType=MANIFEST, **options)
        return f"s3://{bucket}/{name}:cpu"


def sha256(content: bytes) -> str:
    """`sha256:<64 hex>`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tar(files: dict[str, bytes]) -> bytes:
    """A layer, uncompressed, the same for the same files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as made:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            made.addfile(member, io.BytesIO(content))
    return out.getvalue()


def make_image(
    *layers: dict[str, bytes],
    below: tuple[str, ...] = (),
    diff_ids: list[str] | None = None,
    swapped: bool = False,
    **config: Any,
) -> HandMade:
    """An image of these layers, on layers with the diff ids `below`, whose blobs are nowhere (see `blob_of`).

    `config`: what a container starts with. `diff_ids`: what the configuration says instead of the truth. `swapped`:
    its manifest has the layers in the wrong order.
    """
    tars = [tar(files) for files in layers]
    packed = [gzip.compress(each, 1, mtime=0) for each in tars]
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids or [*below, *map(sha256, tars)]},
        "history": [{"created": "2026-01-31T00:00:00Z", "created_by": "a test"} for _ in (*below, *tars)],
        "created": "2026-01-31T00:00:00Z",
    }
    text = json.dumps(document).encode()
    described = [*map(blob_of, below), *(described_blob(LAYER, each) for each in packed)]
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": described_blob(CONFIG, text),
        "layers": described[::-1] if swapped else described,
    }
    return HandMade(json.dumps(manifest).encode(), text, (*(None for _ in below), *packed))


def blob_of(diff_id: str) -> dict[str, Any]:
    """What a manifest says of the compressed layer of that diff id, whose bytes are nowhere."""
    return {"mediaType": LAYER, "digest": sha256(diff_id.encode()), "size": 1000}


def described_blob(media_type: str, content: bytes) -> dict[str, Any]:
    """What a manifest says of a blob."""
    return {"mediaType": media_type, "digest": sha256(content), "size": len(content)}
