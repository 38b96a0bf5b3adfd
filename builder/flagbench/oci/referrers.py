"""Documents about an image beside it: manifests whose `subject` it is, found through the image's digest.

A registry that lists them itself says so (`OCI-Subject`). Elsewhere, in older registries and in buckets, an index
under the tag `sha256-<hex>` lists them, as the OCI distribution specification 1.1 has it for such registries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flagbench.oci.model import OCI_MANIFEST, Blob, Descriptor, Place, digest_of

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
_EMPTY, _EMPTY_TYPE = b"{}", "application/vnd.oci.empty.v1+json"


def attach(
    place: Place, subject: Descriptor, documents: Mapping[str, Path], annotations: dict[str, str]
) -> dict[str, str]:
    """Keep documents about an image; returns the digest of the manifest of each, by media type.

    The same documents again change nothing. Raises what the place does, OSError where a document cannot be read.

    Args:
        subject: the image's manifest.
        documents: by media type, which is the `artifactType` of its manifest too.
    """
    made, unlisted = {}, []
    for media_type, document in documents.items():
        manifest = _put(place, subject, document, media_type, annotations)
        made[media_type] = digest_of(manifest)
        if not place.put_manifest(manifest, OCI_MANIFEST, ()):
            entry = descriptor_json(Descriptor(OCI_MANIFEST, made[media_type], len(manifest)))
            unlisted.append({**entry, "artifactType": media_type, "annotations": annotations})
    if unlisted:
        place.update_manifest(referrers_tag(subject.digest), OCI_INDEX, partial(_with, unlisted))
    return made


def _put(place: Place, subject: Descriptor, document: Path, media_type: str, annotations: dict[str, str]) -> bytes:
    """Put the blobs of a document; returns its manifest."""
    content = document.read_bytes()
    empty = Descriptor(_EMPTY_TYPE, digest_of(_EMPTY), len(_EMPTY))
    described = Descriptor(media_type, digest_of(content), len(content))
    beside = document.with_name(f"{document.name}.empty")
    beside.write_bytes(_EMPTY)
    for blob in (Blob(described, lambda show: document), Blob(empty, lambda show: beside)):
        place.put_blob(blob, lambda count: None)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": media_type,
        "config": descriptor_json(empty),
        "layers": [descriptor_json(described)],
        "subject": descriptor_json(subject),
        "annotations": annotations,
    }
    return json.dumps(manifest, separators=(",", ":")).encode()


def referrers_tag(digest: str) -> str:
    """The tag under which an index lists the referrers of a manifest."""
    return digest.replace(":", "-")


def descriptor_json(descriptor: Descriptor) -> dict[str, Any]:
    """A descriptor as a manifest has it."""
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size}


def _with(entries: Sequence[Mapping[str, Any]], index: bytes | None) -> bytes | None:
    """An index of referrers with further entries; None if it has them."""
    listed = _listed(index)
    known = {each.get("digest") for each in listed if isinstance(each.get("digest"), str)}
    missing = [entry for entry in entries if entry["digest"] not in known]
    if not missing:
        return None
    made = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [*listed, *missing]}
    return json.dumps(made, separators=(",", ":")).encode()


def _listed(index: bytes | None) -> Sequence[dict[str, Any]]:
    """The entries of an index; none where it is damaged."""
    try:
        listed = json.loads(index)["manifests"] if index else []
    except (ValueError, KeyError, TypeError, RecursionError):
        listed = []
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
