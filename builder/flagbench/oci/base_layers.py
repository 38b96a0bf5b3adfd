"""The layers of an image's base as its registry has them: their digests, and their bytes where a place lacks them.

`docker save` gives an engine's layers uncompressed. Compressing them again would make other blobs of them, which no
registry has and nobody shares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import find_reference
from flagbench.labels import BASE_DIGEST_LABEL, BASE_LAYERS_LABEL, BASE_NAME_LABEL
from flagbench.locks.files import SHA256
from flagbench.oci.known import Known, KnownBase
from flagbench.oci.manifest import CONFIG_BYTES, Manifest, parse_diff_ids, parse_manifest
from flagbench.oci.model import Blob, Descriptor, Place, Progress, digest_of
from flagbench.oci.registry import RegistryPlace

# The same bytes by the name that an OCI manifest has for them.
_OCI_TYPES = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
}


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


def base_blobs(
    base: BaseImage,
    diff_ids: Sequence[str],
    platform: str,
    known: Known,
    folder: Path,
    expect: Progress = lambda count: None,
) -> list[Blob]:
    """The base's layers as its registry has them, lowest first; empty where no registry has it.

    A blob's path downloads it into `folder` and checks it. The first of its origins is the base's own repository.

    Args:
        diff_ids: of the image that stands on it, at least `base.layers` of them.
        platform: `os/arch[/variant]`.
        expect: called with the size of a layer, in bytes, before it is downloaded.

    Raises FlagbenchError: (engine) the registry cannot be reached, refuses, or no longer has the base; (data) what it
    has under that digest has other layers than the image.
    """
    reference = find_reference(base.name)
    if base.digest is None or not base.layers or reference is None:
        return []
    registry = RegistryPlace(reference.name)
    found = known.base(base.digest, platform) or _fetch(registry, base, platform)
    manifest, there = _parsed(registry, base, found)
    if there != tuple(diff_ids[: base.layers]):
        raise FlagbenchError(
            f"the lowest layers of the image are not those of its base {base.name}@{base.digest}",
            remedy="build the image again with `flagbench build --no-cache`",
            code=ExitCode.DATA,
        )
    known.remember_base(base.digest, platform, found)
    blobs = []
    for layer in manifest.layers:
        described = replace(layer, media_type=_OCI_TYPES.get(layer.media_type, layer.media_type))
        origins = (registry.url, *known.origins(described.digest))
        blobs.append(Blob(described, partial(_download, registry, described, folder, expect), origins))
    return blobs


def _parsed(registry: RegistryPlace, base: BaseImage, found: KnownBase) -> tuple[Manifest, tuple[str, ...]]:
    """The base's manifest and its diff ids."""
    try:
        manifest = parse_manifest(found.manifest.encode(), found.media_type, f"of {base.name}")
        return manifest, parse_diff_ids(found.config.encode(), manifest, base.name)
    except FlagbenchError as error:
        raise _unusable(registry, base, f"has no usable image in ({error.message})") from None


def _fetch(registry: RegistryPlace, base: BaseImage, platform: str) -> KnownBase:
    """The base's manifest for the platform, and its configuration, both checked by digest."""
    content, media_type = _manifest(registry, str(base.digest))
    entries = _entries(content)
    if entries is not None:
        chosen = _entry(entries, platform)
        if chosen is None:
            raise _unusable(registry, base, f"has no image for {platform} in")
        content, media_type = _manifest(registry, chosen)
    try:
        manifest = parse_manifest(content, media_type, f"of {base.name}")
    except FlagbenchError as error:
        raise _unusable(registry, base, f"has no usable image in ({error.message})") from None
    config = bytearray()
    for chunk in registry.read_blob(manifest.config.digest):
        config += chunk
        if len(config) > min(manifest.config.size, CONFIG_BYTES):
            break
    if digest_of(bytes(config)) != manifest.config.digest:
        raise _damaged(registry, manifest.config.digest)
    try:
        return KnownBase(content.decode(), config.decode(), media_type)
    except UnicodeDecodeError:
        raise _unusable(registry, base, "has no usable image in") from None


def _entries(content: bytes) -> Sequence[object] | None:
    """What an index lists; None for the manifest of one image."""
    with suppress(ValueError, RecursionError):
        document = json.loads(content)
        if isinstance(document, dict) and "manifests" in document:
            listed = document["manifests"]
            return listed if isinstance(listed, list) else ()
    return None


def _entry(entries: Sequence[object], platform: str) -> str | None:
    """The digest of the image for a platform in an index; of several variants the one that is wanted.

    Where either does not name a variant, the first one is taken.
    """
    system, processor, variant = (*platform.split("/"), "", "")[:3]
    for entry in entries:
        digest = entry.get("digest") if isinstance(entry, dict) else None
        of = entry.get("platform") if isinstance(entry, dict) else None
        if not isinstance(of, dict) or not isinstance(digest, str) or not SHA256.fullmatch(digest):
            continue
        is_variant = not variant or of.get("variant") in (None, "", variant)
        if (of.get("os"), of.get("architecture")) == (system, processor) and is_variant:
            return digest
    return None


def _manifest(registry: RegistryPlace, digest: str) -> tuple[bytes, str]:
    found = registry.read_manifest(digest)
    if found is None:
        raise FlagbenchError(
            f"the registry of {registry.url} no longer has the base {digest}",
            remedy="build on a base that exists (`flagbench lock --upgrade`), or on a copy of this one (--base)",
            code=ExitCode.ENGINE,
        )
    return found


def _download(place: Place, blob: Descriptor, folder: Path, expect: Progress, show: Progress) -> Path:
    """A blob in a file, checked."""
    expect(blob.size)
    path = folder / f"{blob.digest.removeprefix('sha256:')}.base"
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in place.read_blob(blob.digest):
            digest.update(chunk)
            size += len(chunk)
            if size > blob.size:
                break
            file.write(chunk)
            show(len(chunk))
    if f"sha256:{digest.hexdigest()}" != blob.digest:
        path.unlink()
        raise _damaged(place, blob.digest)
    return path


def _damaged(place: Place, digest: str) -> FlagbenchError:
    return FlagbenchError(
        f"what {place.url} returns as {digest} has another digest",
        remedy="push again; if it fails again, a proxy or the registry damages it",
        code=ExitCode.DATA,
    )


def _unusable(registry: RegistryPlace, base: BaseImage, problem: str) -> FlagbenchError:
    return FlagbenchError(
        f"the registry of {registry.url} {problem} the base {base.digest}",
        remedy="lock and build on another base",
        code=ExitCode.DATA,
    )
