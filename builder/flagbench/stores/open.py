"""Opens the store that an option or the environment names, else the user's own."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import platformdirs

from flagbench.errors import ExitCode
from flagbench.stores.blobs import StoreError
from flagbench.stores.folder import FolderBlobs
from flagbench.stores.records import Store

VARIABLE = "FLAGBENCH_STORE"


def open_store(url: str | None = None) -> Store:
    """The store at `url`, else at FLAGBENCH_STORE, else in the user's data folder. Creates nothing.

    `url` is a plain path or `file:///path`. Raises StoreError (usage) for any other kind of address.
    """
    address = url or os.environ.get(VARIABLE) or str(Path(platformdirs.user_data_dir("flagbench")) / "store")
    path = _path(address) if "://" in address else address
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
        known = parts.scheme == "s3"
        raise _unusable(address, "this version stores in folders" if known else "there is no such kind of store")
    if parts.netloc not in ("", "localhost") or not parts.path:
        remedy = f"write three slashes: file:///{parts.netloc}{parts.path}"
        raise _unusable(address, "it names a host, not a folder here", remedy)
    return unquote(parts.path, errors="surrogateescape")


def _unusable(address: str, why: str, remedy: str | None = None) -> StoreError:
    return StoreError(
        f"the store {address} cannot be used: {why}",
        remedy=remedy or f"name a folder with --store or {VARIABLE}, for example file:///srv/flagbench",
        code=ExitCode.USAGE,
    )
