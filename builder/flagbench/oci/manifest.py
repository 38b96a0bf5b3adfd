"""A manifest and a configuration as they come from a place, checked before anything is done with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import DIGEST
from flagbench.oci.model import DOCKER_MANIFEST, OCI_MANIFEST, Descriptor, digest_of
from flagbench.terminal import brief

MANIFEST_BYTES = 4 * 2**20
"""The size limit of a manifest, as registries have it."""
CONFIG_BYTES = 16 * 2**20
_MOST_LAYERS = 1000
"""More than any engine mounts."""
_MOST_BYTES = 2**40
_KINDS = (DOCKER_MANIFEST, OCI_MANIFEST)
_LAYERS = re.compile(
    r"application/vnd\.(docker\.image\.rootfs\.diff\.tar(\.gzip)?|oci\.image\.layer\.v1\.tar(\+gzip|\+zstd)?)"
)


@dataclass(frozen=True)
class Manifest:
    """What a manifest names."""

    content: bytes
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    """Lowest first."""

    @property
    def digest(self) -> str:
        """`sha256:<64 hex>` of the manifest."""
        return digest_of(self.content)


def media_type_of(content: bytes) -> str | None:
    """The type that a manifest says it has; None where it says nothing, as OCI's may."""
    with suppress(ValueError, RecursionError):
        document = json.loads(content)
        if isinstance(document, dict) and isinstance(document.get("mediaType"), str):
            return str(document["mediaType"])
    return None


def parse_manifest(content: bytes, media_type: str, where: str) -> Manifest:
    """The parts of a manifest. Raises FlagbenchError (data) where it is not one of an image for one platform."""
    document = _json(content, f"the manifest {where}")
    # Copies of a bucket often lose the type that an object was kept with; the document may have it, too.
    kind = next((each for each in (media_type, document.get("mediaType")) if each in _KINDS), OCI_MANIFEST)
    layers = document.get("layers")
    if document.get("schemaVersion") != 2 or not isinstance(layers, list) or not 0 < len(layers) <= _MOST_LAYERS:
        what = "names images for several platforms" if "manifests" in document else "is not that of an image"
        raise damaged(f"the manifest {where} {what}")
    config = _descriptor(document.get("config"), where)
    found = tuple(_descriptor(layer, where) for layer in layers)
    if unknown := next((each.media_type for each in found if not _LAYERS.fullmatch(each.media_type)), None):
        raise damaged(f"the manifest {where} has a layer of the unknown type {brief(unknown)}")
    return Manifest(content, kind, config, found)


def parse_diff_ids(content: bytes, manifest: Manifest, where: str) -> tuple[str, ...]:
    """`sha256:<64 hex>` of each layer's uncompressed tar, lowest first, from an image's configuration.

    Raises FlagbenchError (data) where it is not the configuration that the manifest names.
    """
    if len(content) != manifest.config.size or digest_of(content) != manifest.config.digest:
        raise damaged(f"the configuration of {where} does not match its digest")
    root = _json(content, f"the configuration of {where}").get("rootfs")
    ids = root.get("diff_ids") if isinstance(root, dict) else None
    if not isinstance(ids, list) or not all(isinstance(each, str) and re.fullmatch(DIGEST, each) for each in ids):
        raise damaged(f"the configuration of {where} does not name its layers")
    if len(ids) != len(manifest.layers):
        raise damaged(f"{where} has {len(manifest.layers)} layers and a configuration of {len(ids)}")
    return tuple(ids)


def damaged(what: str) -> FlagbenchError:
    """The error for an image whose parts are not what they should be."""
    return FlagbenchError(what, remedy="push the image again, or name another", code=ExitCode.DATA)


def _json(content: bytes, what: str) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise damaged(f"{what} is not JSON") from None
    if not isinstance(document, dict):
        raise damaged(f"{what} is not a JSON object")
    return document


def _descriptor(entry: object, where: str) -> Descriptor:
    if isinstance(entry, dict):
        kind, digest, size = entry.get("mediaType"), entry.get("digest"), entry.get("size")
        sound = isinstance(kind, str) and isinstance(digest, str) and re.fullmatch(DIGEST, digest)
        if sound and type(size) is int and 0 < size <= _MOST_BYTES:
            return Descriptor(str(kind), str(digest), size)
    raise damaged(f"the manifest {where} has a part without a type, a digest or a size")
