"""The layers of an image's base as its registry has them: their digests, and their bytes where a place lacks them.

`docker save` gives an engine's layers uncompressed. Compressing them again would make other blobs of them, which no
registry has and nobody shares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import find_reference
from flagbench.labels import BASE_DIGEST_LABEL, BASE_LAYERS_LABEL, BASE_NAME_LABEL
from flagbench.locks.pylock import SHA256
from flagbench.oci.known import Known, KnownBase
from flagbench.oci.model import Blob, Descriptor, Place, digest_of
from flagbench.oci.normalise import parse_config
from flagbench.oci.registry import RegistryPlace

# The same bytes by the name that an OCI manifest has for them.
_OCI_TYPES = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
}
_MAX_CONFIG = 16 * 2**20


@dataclass(frozen=True)
class BaseImage:
    """The base of an image, by the image's labels."""

    name: str
    """Its reference without a digest; empty where the image has no label."""
    digest: str | None
    """`sha256:<64 hex>` of its manifest in its registry; None: no registry is known to have it."""
    layers: int
    """How many of the image's lowest layers are its; 0 where the image does not say."""


def base_of(labels: Mapping[str, str]) -> BaseImage:
    """The base that an image's labels name."""
    count = labels.get(BASE_LAYERS_LABEL, "")
    digest = labels.get(BASE_DIGEST_LABEL, "")
    return BaseImage(
        labels.get(BASE_NAME_LABEL, ""),
        digest if SHA256.fullmatch(digest) else None,
        int(count) if count.isascii() and count.isdigit() else 0,
    )


def base_blobs(base: BaseImage, diff_ids: Sequence[str], platform: str, known: Known, folder: Path) -> list[Blob]:
    """The base's layers as its registry has them, lowest first; empty where no registry has it.

    A blob's path downloads it into `folder` and checks it.

    Args:
        diff_ids: of the image that stands on it, at least `base.layers` of them.
        platform: `os/arch`.

    Raises FlagbenchError: (engine) the registry cannot be reached, refuses, or no longer has the base; (data) what it
    has under that digest has other layers than the image.
    """
    reference = find_reference(base.name)
    if base.digest is None or not base.layers or reference is None:
        return []
    registry = RegistryPlace(reference.name)
    found = known.base(base.digest) or _fetch(registry, base, platform)
    manifest = json.loads(found.manifest)
    if parse_config(found.config.encode())["rootfs"]["diff_ids"] != [*diff_ids[: base.layers]]:
        raise FlagbenchError(
            f"the lowest layers of the image are not those of its base {base.name}@{base.digest}",
            remedy="build the image again with `flagbench build --no-cache`",
            code=ExitCode.DATA,
        )
    known.remember_base(base.digest, found)
    blobs = []
    for layer in manifest["layers"]:
        described = Descriptor(_OCI_TYPES.get(layer["mediaType"], layer["mediaType"]), layer["digest"], layer["size"])
        origins = (registry.url, *known.origins(described.digest))
        blobs.append(Blob(described, partial(_download, registry, described, folder), origins))
    return blobs


def _fetch(registry: RegistryPlace, base: BaseImage, platform: str) -> KnownBase:
    """The base's manifest for the platform, and its configuration, both checked by digest."""
    manifest = _manifest(registry, str(base.digest))
    if "manifests" in manifest:
        system, _, processor = platform.partition("/")
        wanted = {"os": system, "architecture": processor.partition("/")[0]}
        chosen = [
            entry["digest"]
            for entry in manifest["manifests"]
            if {key: (entry.get("platform") or {}).get(key) for key in wanted} == wanted
        ]
        if not chosen:
            raise _unusable(registry, base, f"has no image for {platform} in")
        manifest = _manifest(registry, chosen[0])
    try:
        digest, layers = manifest["config"]["digest"], manifest["layers"]
        well = all(_is_layer(layer) for layer in layers) and SHA256.fullmatch(digest)
    except (KeyError, TypeError):
        well = False
    if not well:
        raise _unusable(registry, base, "has something else than an image in")
    content = bytearray()
    for chunk in registry.read_blob(digest):
        content += chunk
        if len(content) > _MAX_CONFIG:
            break
    if digest_of(bytes(content)) != digest:
        raise _damaged(registry, digest)
    try:
        return KnownBase(json.dumps(manifest), content.decode())
    except UnicodeDecodeError:
        raise _unusable(registry, base, "has something else than an image in") from None


def _is_layer(layer: Any) -> bool:
    return (
        isinstance(layer["mediaType"], str)
        and isinstance(layer["size"], int)
        and SHA256.fullmatch(layer["digest"]) is not None
    )


def _manifest(registry: RegistryPlace, digest: str) -> dict[str, Any]:
    found = registry.read_manifest(digest)
    if found is None:
        raise FlagbenchError(
            f"the registry of {registry.url} no longer has the base {digest}",
            remedy="build on a base that exists (`flagbench lock --upgrade`), or on a copy of this one (--base)",
            code=ExitCode.ENGINE,
        )
    try:
        manifest = json.loads(found[0])
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise _damaged(registry, digest)
    return manifest


def _download(place: Place, blob: Descriptor, folder: Path) -> Path:
    """A blob in a file, checked."""
    path = folder / f"{blob.digest.removeprefix('sha256:')}.base"
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in place.read_blob(blob.digest):
            digest.update(chunk)
            size += len(chunk)
            if size > blob.size:
                break
            file.write(chunk)
    if f"sha256:{digest.hexdigest()}" != blob.digest:
        path.unlink()
        raise _damaged(place, blob.digest)
    return path


def _damaged(place: Place, digest: str) -> FlagbenchError:
    return FlagbenchError(
        f"what {place.url} gives as {digest} has another digest",
        remedy="push again; if it stays so, a proxy or the registry damages it",
        code=ExitCode.DATA,
    )


def _unusable(registry: RegistryPlace, base: BaseImage, problem: str) -> FlagbenchError:
    return FlagbenchError(
        f"the registry of {registry.url} {problem} the base {base.digest}",
        remedy="lock and build on another base",
        code=ExitCode.DATA,
    )
