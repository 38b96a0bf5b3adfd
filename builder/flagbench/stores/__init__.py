"""Where records are kept: `records` (layout, index) over `blobs` (a folder, a bucket)."""

from flagbench.stores.blobs import StoreError
from flagbench.stores.bundles import Bundle
from flagbench.stores.folder import FolderBlobs
from flagbench.stores.index import Summary
from flagbench.stores.open import open_store
from flagbench.stores.records import Store, StoredRecord

__all__ = [
    "Bundle",
    "FolderBlobs",
    "Store",
    "StoreError",
    "StoredRecord",
    "Summary",
    "open_store",
]
