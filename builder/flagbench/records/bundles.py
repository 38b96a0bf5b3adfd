"""The bundles of a store: archives of the files that each node of a run kept, such as logs and raw measurements.

A bundle is stored under a key that has the id of its record, the number of the node and the sha256 of the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flagbench.records.blobs import Blobs, ListingDenied, StoreError
from flagbench.records.store_keys import BundlePlace, bundles_prefix, check_record_id, parse_bundle_key


@dataclass(frozen=True)
class StoredBundle:
    """A bundle in a listing."""

    place: BundlePlace
    """The parts of its key."""
    size: int
    """The size in bytes."""
    location: str
    """The path of the file or the URL of the object, as a person reads it."""

    @property
    def record_id(self) -> str:
        """The id of the record that it belongs to; a store may have a bundle before its record."""
        return self.place.record_id

    @property
    def name(self) -> str:
        """The file name: the last part of its key."""
        return self.place.key.rpartition("/")[2]


class Bundles:
    """The bundles among the objects of a store."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def find(self, record_id: str) -> list[StoredBundle]:
        """Return the bundles of a record, sorted by node. Raises StoreError as `Blobs.list` does."""
        bundles = self._list(bundles_prefix(check_record_id(record_id)))
        return sorted(bundles, key=lambda bundle: bundle.place.node)

    def all(self) -> dict[str, list[StoredBundle]]:
        """Return the bundles of every record by its id; it is empty if the store denies listing.

        This takes one listing, however many records there are.
        """
        bundles: dict[str, list[StoredBundle]] = {}
        try:
            for bundle in self._list(bundles_prefix()):
                bundles.setdefault(bundle.record_id, []).append(bundle)
        except ListingDenied:
            return {}
        return bundles

    def put(self, place: BundlePlace, path: Path) -> bool:
        """Store the bundle in a file. Returns whether it was sent: False if the store has it already.

        A run stores its bundles before its record, so that a stored record has its evidence.

        Raises StoreError (NOT_STORED).
        """
        try:
            return self._blobs.put_file(place.key, path, place.sha256)
        except StoreError:
            if path.exists():
                raise
            # Another process may have stored and removed the file meanwhile.
            stored_places = [bundle.place for bundle in self.find(place.record_id)]
            if place not in stored_places:
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
