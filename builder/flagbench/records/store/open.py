"""Opens the store that an option or the environment names, else the user's own."""

from __future__ import annotations

import os
from pathlib import Path

from flagbench.records.store.blobs import StoreError
from flagbench.records.store.folder import FolderBlobs
from flagbench.records.store.records import Store
from flagbench.records.store.waiting import data_folder
from flagbench_core.exit_codes import ExitCode
from flagbench_core.layout import AddressError, folder_of
from flagbench_core.redaction import redact

VARIABLE = "FLAGBENCH_STORE"


def open_store(url: str | None = None) -> Store:
    """The store at `url`, else at FLAGBENCH_STORE, else in the user's data folder. Creates nothing.

    `url` is a plain path, `file:///path` or `s3://bucket/prefix`. Raises StoreError (usage) for any other address.
    """
    address = url or os.environ.get(VARIABLE) or str(data_folder() / "store")
    if address.lower().startswith("s3:"):
        # Most stores are folders, and a client takes as long to import as the rest of a command.
        from flagbench.records.store.bucket import BucketBlobs, store_errors
        from flagbench_core.s3 import parse_address

        with store_errors():
            return Store(BucketBlobs(parse_address(address)))
    try:
        return Store(FolderBlobs(Path(folder_of(address))))
    except AddressError as error:
        raise _unusable(address, str(error), error.remedy) from error
    except FileNotFoundError as error:
        raise _unusable(address, "the current folder no longer exists", "change to another folder") from error


def _unusable(address: str, why: str, remedy: str) -> StoreError:
    return StoreError(f"the store {redact(address)} cannot be used: {why}", remedy=remedy, code=ExitCode.USAGE)
