"""Opens the store that an option or the environment names, else the user's own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import platformdirs

from flagbench.errors import ExitCode
from flagbench.files import reason, write_atomically
from flagbench.redaction import redact
from flagbench.s3 import parse_address
from flagbench.stores.blobs import StoreError
from flagbench.stores.bucket import BucketBlobs, store_errors
from flagbench.stores.folder import FolderBlobs
from flagbench.stores.records import Store, StoredRecord

VARIABLE = "FLAGBENCH_STORE"
_URL = "meant-for"


def open_store(url: str | None = None, *, own: bool = False) -> Store:
    """The store at `url`, else at FLAGBENCH_STORE unless `own`, else in the user's data folder. Creates nothing.

    `url` is a plain path, `file:///path` or `s3://bucket/prefix`. Raises StoreError (usage) for any other address.
    """
    address = url or (None if own else os.environ.get(VARIABLE)) or str(_data_folder() / "store")
    if address.lower().startswith("s3:"):
        with store_errors():
            return Store(BucketBlobs(parse_address(address)))
    path = _path(address) if "://" in address else address
    if "\0" in path:
        raise _unusable(address, "a folder's name cannot contain a NUL")
    try:
        return Store(FolderBlobs(Path(path)))
    except FileNotFoundError as error:
        raise _unusable(address, "the current folder no longer exists", "change to another folder") from error


def unsent(url: str) -> Store:
    """Records that could not be stored at that address, until `flagbench results push` does it."""
    return Store(FolderBlobs(_unsent_folder(url)))


def set_aside(record: bytes, url: str) -> StoredRecord:
    """Keep a record for `flagbench results push`. Raises FlagbenchError where that is not possible either."""
    try:
        folder = _unsent_folder(url)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / _URL, url.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise StoreError(f"the record was not set aside: {reason(error)}", remedy="free some space") from error
    return unsent(url).put(record)


def waiting() -> Iterator[tuple[str, Store]]:
    """The address that each waiting record was meant for, and the store in which it waits."""
    for file in sorted(_waiting().glob(f"*/{_URL}")):
        with suppress(OSError):
            yield file.read_bytes().decode("utf-8", "surrogateescape"), Store(FolderBlobs(file.parent))


def is_waiting_room(store: Store) -> bool:
    """Whether a store is where records wait."""
    blobs = store.blobs
    return isinstance(blobs, FolderBlobs) and blobs.root.resolve().is_relative_to(_waiting().resolve())


def _waiting() -> Path:
    return _data_folder() / "unsent"


def _unsent_folder(url: str) -> Path:
    return _waiting() / hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _data_folder() -> Path:
    return Path(platformdirs.user_data_dir("flagbench"))


def _path(address: str) -> str:
    """The folder that a URL names."""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise _unusable(address, f"it is not a URL: {error}") from error
    if parts.scheme != "file":
        raise _unusable(address, "there is no such kind of store")
    if parts.netloc not in ("", "localhost") or not parts.path:
        remedy = f"write three slashes: file:///{parts.netloc}{parts.path}"
        raise _unusable(address, "it names a host, not a folder here", remedy)
    return unquote(parts.path, errors="surrogateescape")


def _unusable(address: str, why: str, remedy: str | None = None) -> StoreError:
    return StoreError(
        f"the store {redact(address)} cannot be used: {why}",
        remedy=remedy
        or f"name a folder or a bucket with --store or {VARIABLE}: file:///srv/flagbench, s3://bucket/prefix",
        code=ExitCode.USAGE,
    )
