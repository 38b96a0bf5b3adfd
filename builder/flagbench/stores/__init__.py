"""Where records are kept: one protocol, one adapter per kind of place."""

from flagbench.stores.base import Health, Store, StoredRecord, StoreError
from flagbench.stores.file import FileStore
from flagbench.stores.open import open_store

__all__ = ["FileStore", "Health", "Store", "StoreError", "StoredRecord", "open_store"]
