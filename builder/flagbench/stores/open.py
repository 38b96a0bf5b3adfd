"""Which store is meant: the flag, the environment, or a folder of the user's."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flagbench.errors import ExitCode
from flagbench.stores.errors import StoreError
from flagbench.stores.folder import FolderBlobs
from flagbench.stores.records import Store

VARIABLE = "FLAGBENCH_STORE"


def open_store(url: str | None = None) -> Store:
    """The store at `url`, else at FLAGBENCH_STORE, else in the user's data folder. Creates nothing.

    `url` is a plain path or `file:///path`. Raises StoreError (usage) for any other kind of address.
    """
    address = url or os.environ.get(VARIABLE) or ""
    if not address:
        # Only needed where neither option nor variable is given.
        import platformdirs

        return Store(FolderBlobs(Path(platformdirs.user_data_dir("flagbench")) / "store"))
    if "://" not in address:
        return _folder(address, address)
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise StoreError(
            f"the store {address} is not a URL: {error}",
            remedy=f"name a folder with --store or {VARIABLE}, for example file:///srv/flagbench",
            code=ExitCode.USAGE,
        ) from error
    if parts.scheme != "file":
        what = "this version stores in folders" if parts.scheme == "s3" else "there is no such kind of store"
        raise StoreError(
            f"the store {address} cannot be used: {what}",
            remedy=f"name a folder with --store or {VARIABLE}, for example file:///srv/flagbench",
            code=ExitCode.USAGE,
        )
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise StoreError(
            f"the store {address} names a host, not a folder here",
            remedy=f"write three slashes: file:///{parts.netloc}{parts.path}",
            code=ExitCode.USAGE,
        )
    return _folder(unquote(parts.path, errors="surrogateescape"), address)


def _folder(path: str, address: str) -> Store:
    if "\0" in path:
        raise StoreError(
            f"the store {address} cannot be used: a folder's name cannot contain a NUL",
            remedy=f"name a folder with --store or {VARIABLE}",
            code=ExitCode.USAGE,
        )
    try:
        return Store(FolderBlobs(Path(path)))
    except FileNotFoundError as error:
        raise StoreError(
            f"the store {address} cannot be found: the current folder no longer exists",
            remedy="change to another folder, or give the absolute path of the store",
            code=ExitCode.USAGE,
        ) from error
