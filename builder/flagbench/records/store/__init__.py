"""Where records are kept: `records` (layout, index) over `blobs` (a folder, a bucket)."""

from flagbench.records.store.blobs import StoreError
from flagbench.records.store.bundles import Bundle
from flagbench.records.store.folder import FolderBlobs
from flagbench.records.store.index import Summary
from flagbench.records.store.open import open_store
from flagbench.records.store.records import Store, StoredRecord

__all__ = [
    "Bundle",
    "FolderBlobs",
    "Store",
    "StoreError",
    "StoredRecord",
    "Summary",
    "open_store",
]
