"""The bundles of a store: the files that each node kept of a run, under a key with the checksum of the content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flagbench.records.blobs import Blobs, ListingDenied, StoreError
from flagbench.records.store_keys import BundlePlace, bundles_prefix, check_record_id, parse_bundle_key


@dataclass(frozen=True)
class StoredBundle:
    """A listed bundle."""

    place: BundlePlace
    size: int
    """Bytes."""
    location: str
    """The file, or the object's URL, for a person."""

    @property
    def record_id(self) -> str:
        """The record that it belongs to; a store may have a bundle before its record."""
        return self.place.record_id

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self.place.key.rpartition("/")[2]


class Bundles:
    """The bundles in a place for blobs."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def find(self, record_id: str) -> list[StoredBundle]:
        """The bundles of a record, by node. One listing. Raises StoreError as `Blobs.list`."""
        bundles = self._list(bundles_prefix(check_record_id(record_id)))
        return sorted(bundles, key=lambda bundle: bundle.place.node)

    def all(self) -> dict[str, list[StoredBundle]]:
        """The bundles of every record by its id, by one listing. Empty if the store denies listing."""
        bundles: dict[str, list[StoredBundle]] = {}
        try:
            for bundle in self._list(bundles_prefix()):
                bundles.setdefault(bundle.record_id, []).append(bundle)
        except ListingDenied:
            return {}
        return bundles

    def put(self, place: BundlePlace, path: Path) -> bool:
        """Keep a bundle. Returns whether it was sent: False if the store has it.

        A run stores its bundles before its record, so that a stored record has its evidence.

        Raises StoreError (NOT_STORED).
        """
        try:
            return self._blobs.put_file(place.key, path, place.sha256)
        except StoreError:
            # A file that waited may have been stored and removed meanwhile, by another process.
            if path.exists() or place not in [bundle.place for bundle in self.find(place.record_id)]:
                raise
            return False

    def get(self, bundle: StoredBundle, path: Path) -> None:
        """Copy a bundle to a file, checked against its sha256. Raises StoreError (DATA)."""
        self._blobs.get_file(bundle.place.key, path, size=bundle.size, sha256=bundle.place.sha256)

    def remove(self, bundle: StoredBundle) -> None:
        """Delete a bundle; a missing one is not an error. Raises StoreError (NOT_STORED)."""
        self._blobs.delete(bundle.place.key)

    def _list(self, prefix: str) -> Iterator[StoredBundle]:
        for blob in self._blobs.list(prefix):
            place = parse_bundle_key(blob.key)
            if place is not None and blob.problem is None:
                yield StoredBundle(place, blob.size, self._blobs.location(blob.key))
