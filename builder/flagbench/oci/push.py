"""An image into a place: its layers, then its configuration, then its manifest, which makes it visible."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from flagbench.oci.model import Blob, Descriptor, OciImage, Place, Progress, Put

_THREADS = 4


@dataclass(frozen=True)
class Pushed:
    """What became of a blob."""

    blob: Descriptor
    how: Put


class NotHere(Exception):
    """A place lacks a blob whose bytes are not on this machine."""


def not_here(show: Progress) -> Path:
    """The path of a blob that is known by its digest alone."""
    raise NotHere


def push(image: OciImage, place: Place, tags: Sequence[str], show: Progress = lambda count: None) -> list[Pushed]:
    """Keep an image in a place under its digest and some tags; what the place has is not sent again.

    Several layers are sent at once. Raises what the place does; NotHere where it lacks a blob that is not here.
    """

    def put(blob: Blob) -> Pushed:
        how = place.put_blob(blob, show)
        if how != "uploaded":
            show(blob.descriptor.size)  # nothing is left to send of it
        return Pushed(blob.descriptor, how)

    # A layer that an image has twice is sent once.
    blobs = {blob.descriptor.digest: blob for blob in (*image.layers, image.config)}
    with ThreadPoolExecutor(_THREADS) as pool:
        results = [*pool.map(put, blobs.values())]
    place.put_manifest(image.manifest, image.media_type, tuple(tags))
    return results


def offered(place: Place, blob: Blob) -> bool:
    """Whether a place has a blob, or copied it from another of its repositories just now; nothing is sent."""
    try:
        place.put_blob(Blob(blob.descriptor, not_here, blob.origins), lambda count: None)
    except NotHere:
        return False
    return True
