"""Documents about an image beside it: manifests whose `subject` it is, found through the image's digest.

A registry that lists them itself says so (`OCI-Subject`). Elsewhere, in older registries and in buckets, an index
under the tag `sha256-<hex>` lists them, as the OCI distribution specification 1.1 has it for such registries.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.model import OCI_MANIFEST, Blob, Descriptor, Place, digest_of

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
_EMPTY, _EMPTY_TYPE = b"{}", "application/vnd.oci.empty.v1+json"
_ATTEMPTS = 5


def attach(place: Place, subject: Descriptor, document: Path, media_type: str, annotations: dict[str, str]) -> str:
    """Keep a document about an image; returns the digest of its manifest.

    The same document again changes nothing. Raises what the place does, OSError where the document cannot be read.

    Args:
        subject: the image's manifest.
        media_type: of the document; the manifest's `artifactType` too.
    """
    content = document.read_bytes()
    empty = Descriptor(_EMPTY_TYPE, digest_of(_EMPTY), len(_EMPTY))
    described = Descriptor(media_type, digest_of(content), len(content))
    place.put_blob(Blob(described, lambda show: document), lambda count: None)
    if not place.has_blob(empty.digest):
        beside = document.with_name(f"{document.name}.empty")
        beside.write_bytes(_EMPTY)
        place.put_blob(Blob(empty, lambda show: beside), lambda count: None)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": media_type,
        "config": descriptor_json(empty),
        "layers": [descriptor_json(described)],
        "subject": descriptor_json(subject),
        "annotations": annotations,
    }
    text = json.dumps(manifest, separators=(",", ":")).encode()
    if not place.put_manifest(text, OCI_MANIFEST, ()):
        entry = {**descriptor_json(Descriptor(OCI_MANIFEST, digest_of(text), len(text))), "artifactType": media_type}
        _list(place, subject.digest, {**entry, "annotations": annotations})
    return digest_of(text)


def referrers_tag(digest: str) -> str:
    """The tag under which an index lists the referrers of a manifest."""
    return digest.replace(":", "-")


def descriptor_json(descriptor: Descriptor) -> dict[str, Any]:
    """A descriptor as a manifest has it."""
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size}


def _list(place: Place, digest: str, entry: dict[str, Any]) -> None:
    """Add a manifest to the index of an image's referrers. Another process may write it at the same time."""
    tag = referrers_tag(digest)
    for _ in range(_ATTEMPTS):
        listed = _listed(place, tag)
        if any(each.get("digest") == entry["digest"] for each in listed):
            return
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [*listed, entry]}
        place.put_manifest(json.dumps(index, separators=(",", ":")).encode(), OCI_INDEX, (tag,))
    if all(each.get("digest") != entry["digest"] for each in _listed(place, tag)):
        raise FlagbenchError(
            f"others keep overwriting the list of documents {tag} in {place.url}",
            remedy="push again when no other push of the same image runs",
            code=ExitCode.ENGINE,
        )


def _listed(place: Place, tag: str) -> Sequence[dict[str, Any]]:
    found = place.read_manifest(tag)
    try:
        listed = json.loads(found[0])["manifests"] if found else []
    except (ValueError, KeyError, TypeError, RecursionError):
        listed = []
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
