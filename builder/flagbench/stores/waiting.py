"""Where records and bundles wait until they are stored: rooms in the user's data folder, or below a run's `--out`.

A room is a store in a folder, beside a file with the address that its content is meant for. A ticket's room names the
run: its URLs are credentials, and are written nowhere else.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

import platformdirs

from flagbench.files import reason, write_atomically
from flagbench.stores.blobs import StoreError
from flagbench.stores.folder import FolderBlobs
from flagbench.stores.layout import BundlePlace, bundles_prefix, parse_bundle_key
from flagbench.stores.records import Store, StoredRecord

UNSENT = "unsent"
_URL = "meant-for"
_RUN = ".run-"
"""Begins the name of the folder of a run that has not ended."""


def data_folder() -> Path:
    """The user's own folder."""
    return Path(platformdirs.user_data_dir("flagbench"))


def unsent(url: str) -> Store:
    """What could not be stored at that address, until `flagbench results push` does it."""
    return Store(FolderBlobs(_room(url)))


def set_aside(record: bytes, url: str) -> StoredRecord:
    """Keep a record for `flagbench results push`. Raises FlagbenchError where that is not possible either."""
    try:
        with _locked(_waiting()):
            _open_room(url)
            return unsent(url).put(record)
    except OSError as error:
        raise StoreError(f"the record was not set aside: {reason(error)}", remedy="free some space") from error


def waiting(folder: Path | None = None) -> Iterator[tuple[str, Store]]:
    """The address that something waits for, and the store in which it waits.

    Args:
        folder: a run's `--out`; None is the user's own folder.
    """
    rooms = _waiting() if folder is None else folder / UNSENT
    for file in sorted(rooms.glob(f"*/{_URL}")):
        with suppress(OSError):
            yield file.read_bytes().decode("utf-8", "surrogateescape").strip(), Store(FolderBlobs(file.parent))


def close_room(room: Store) -> None:
    """Remove a room in which nothing waits any more. A failure is ignored: then it is empty."""
    assert isinstance(room.blobs, FolderBlobs)
    folder = room.blobs.root
    with suppress(OSError, StoreError), _locked(folder.parent):
        if room.keys() or room.bundles.all() or any(folder.glob(f"{_RUN}*")):
            return
        shutil.rmtree(folder)
        folder.parent.rmdir()


def is_waiting_room(store: Store) -> bool:
    """Whether a store is where records wait."""
    blobs = store.blobs
    return isinstance(blobs, FolderBlobs) and blobs.root.resolve().is_relative_to(_waiting().resolve())


@contextmanager
def bundle_folder(url: str) -> Iterator[Path]:
    """A folder for what one run writes, beside where it waits for that address; removed at the end.

    Removes those of runs that were killed, too. Raises OSError where it cannot be made.
    """
    with _locked(_waiting()):
        room = _open_room(url)
        for left in room.glob(f"{_RUN}*"):
            _remove_unused(left)
        folder = Path(mkdtemp(prefix=_RUN, dir=room))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        yield folder
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def adopt_bundles(folder: Path, url: str) -> list[tuple[BundlePlace, Path]]:
    """Move the bundles that a run wrote to where they wait; what is not named as one is left. Raises OSError."""
    found = []
    for file in sorted((folder / bundles_prefix()).glob("*/*")):
        place = parse_bundle_key(file.relative_to(folder).as_posix())
        if place is None or not file.is_file() or file.resolve() != folder.resolve() / place.key:
            continue  # a link leads to what is not the run's
        target = _room(url) / place.key
        target.parent.mkdir(parents=True, exist_ok=True)
        found.append((place, file.replace(target)))
    return found


def _waiting() -> Path:
    return data_folder() / UNSENT


def _room(url: str) -> Path:
    return _waiting() / hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _open_room(url: str) -> Path:
    room = _room(url)
    room.mkdir(parents=True, exist_ok=True)
    write_atomically(room / _URL, url.encode("utf-8", "surrogateescape"))
    return room


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder of rooms, created where it is missing, as the image side does before it removes one.

    On a file system without such locks it is not held. Raises OSError.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, folder):
                yield
                return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


def _remove_unused(folder: Path) -> None:
    """Remove the folder of a run whose process has ended."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
