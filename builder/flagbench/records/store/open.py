"""Opens the store that an option or the environment names, else the user's own."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flagbench.records.store.blobs import StoreError
from flagbench.records.store.folder import FolderBlobs
from flagbench.records.store.records import Store
from flagbench.records.store.waiting import data_folder
from flagbench_core.exit_codes import ExitCode
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
    path = _path(address) if "://" in address or address.lower().startswith("file:") else address
    if "\0" in path:
        raise _unusable(address, "a folder's name cannot contain a NUL")
    try:
        return Store(FolderBlobs(Path(path)))
    except FileNotFoundError as error:
        raise _unusable(address, "the current folder no longer exists", "change to another folder") from error


def _path(address: str) -> str:
    """The folder that a URL names."""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise _unusable(address, f"it is not a URL: {error}") from error
    if parts.scheme != "file":
        raise _unusable(address, "there is no such kind of store")
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        remedy = f"write three slashes: file:///{parts.netloc}{parts.path}"
        raise _unusable(address, "it names a host, not a folder here", remedy)
    if parts.query or parts.fragment:
        raise _unusable(address, "a file URL has no query and no fragment", "write %3F for ? and %23 for #")
    return unquote(parts.path, errors="surrogateescape")


def _unusable(address: str, why: str, remedy: str | None = None) -> StoreError:
    return StoreError(
        f"the store {redact(address)} cannot be used: {why}",
        remedy=remedy
        or f"name a folder or a bucket with --store or {VARIABLE}: file:///srv/flagbench, s3://bucket/prefix",
        code=ExitCode.USAGE,
    )
