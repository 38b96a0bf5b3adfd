"""Where records are kept: `records` (layout, index) over `blobs` (a folder, a bucket)."""

from flagbench.records.store.blobs import StoreError
from flagbench.records.store.bundles import StoredBundle
from flagbench.records.store.folder import FolderBlobs
from flagbench.records.store.index import Summary
from flagbench.records.store.open import open_store
from flagbench.records.store.records import Store, StoredRecord

__all__ = [
    "FolderBlobs",
    "Store",
    "StoreError",
    "StoredBundle",
    "StoredRecord",
    "Summary",
    "open_store",
]
