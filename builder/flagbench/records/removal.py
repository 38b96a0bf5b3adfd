"""Removes stored records together with their bundles, for `flagbench results rm`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flagbench.records.bundles import StoredBundle
from flagbench.records.store import Store, StoredRecord


@dataclass(frozen=True)
class RemovableRecord:
    """A listed record with its bundles, which are removed together."""

    stored: StoredRecord
    bundles: tuple[StoredBundle, ...]

    @property
    def record_id(self) -> str:
        """The id that the record is stored under."""
        return self.stored.record_id

    @property
    def size(self) -> int:
        """The size of the record and its bundles in bytes."""
        return self.stored.blob.size + sum(bundle.size for bundle in self.bundles)


def may_be_removed(record: StoredRecord) -> bool:
    """Return whether a filter may select this record for removal.

    It must not select files that the store did not write, nor records that may be sound but could not be read.
    """
    return record.problem is None and not record.unread


def with_bundles(store: Store, records: Iterable[StoredRecord]) -> list[RemovableRecord]:
    """Return the records with their bundles, for which the store is listed once.

    Raises StoreError as `Blobs.list` does.
    """
    records = list(records)
    if not records:
        return []
    bundles = store.bundles.all()
    return [RemovableRecord(record, tuple(bundles.get(record.record_id, ()))) for record in records]


def remove(store: Store, record: RemovableRecord) -> None:
    """Delete a record. Raises StoreError (NOT_STORED) if that is not possible.

    Bundles are deleted first: while the record exists, they can be found again.
    """
    for bundle in record.bundles:
        store.bundles.remove(bundle)
    store.remove(record.stored)
