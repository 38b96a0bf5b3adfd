"""Small images made by hand, as a registry or a bucket keeps them: no engine builds or compresses anything."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flagbench.oci.model import DOCKER_MANIFEST, Blob, Descriptor, OciImage

CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


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


def blob(folder: Path, content: bytes, media_type: str) -> Blob:
    """A blob in a file."""
    digest = sha256(content)
    path = folder / digest.removeprefix("sha256:")
    path.write_bytes(content)
    return Blob(Descriptor(media_type, digest, len(content)), lambda show: path)


def make_image(
    folder: Path,
    *layers: dict[str, bytes],
    below: tuple[str, ...] = (),
    diff_ids: list[str] | None = None,
    pack: Callable[[bytes], bytes] = lambda content: gzip.compress(content, 1, mtime=0),
    media_type: str = LAYER,
    **config: Any,
) -> OciImage:
    """An image of these layers, on the layers with the diff ids `below`, whose blobs are nowhere.

    `config`: what a container starts with. `diff_ids`: what the configuration says instead of the truth.
    `pack`: how a layer is compressed, which `media_type` names.
    """
    tars = [tar(files) for files in layers]
    missing = [Blob(Descriptor(LAYER, sha256(each.encode()), 1000), lambda show: Path("/nowhere")) for each in below]
    packed = [blob(folder, pack(each), media_type) for each in tars]
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids or [*below, *map(sha256, tars)]},
        "history": [{"created": "2026-01-31T00:00:00Z", "created_by": "a test"} for _ in (*below, *tars)],
        "created": "2026-01-31T00:00:00Z",
    }
    made = blob(folder, json.dumps(document).encode(), CONFIG)
    blobs = (*missing, *packed)
    manifest = {
        "schemaVersion": 2,
        "mediaType": DOCKER_MANIFEST,
        "config": described(made),
        "layers": [described(each) for each in blobs],
    }
    return OciImage(json.dumps(manifest).encode(), DOCKER_MANIFEST, made, blobs)


def described(each: Blob) -> dict[str, Any]:
    """A descriptor as a manifest has it."""
    found = each.descriptor
    return {"mediaType": found.media_type, "digest": found.digest, "size": found.size}
