"""Keeps records and bundles that could not be stored yet, and sends them to the store that they are meant for.

They wait in one folder of the user, as `ID.json` and `ID.node-K-SHA256.tar.gz`. Next to each is a file whose name
ends in `.meant-for`, and which has the address of the store. That file is written first and removed last: a
record or bundle without it does not wait. An image does the same, in the folder of its `--out`. `push` sends what
waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.records.read import MAX_RECORD_BYTES, read_record
from flagbench.records.store import Store
from flagbench.records.store_keys import BundlePlace, bundles_prefix, parse_bundle_key
from flagbench.system.files import read_file, reason, write_atomically
from flagbench.system.user_folders import data_folder
from flagbench_core.exit_codes import ExitCode
from flagbench_core.scratch import scratch
from flagbench_core.store_layout import ADDRESS_SUFFIX

_RUN_FOLDER_PREFIX = ".run-"
"""The beginning of the name of the folder of a run that has not ended."""


@dataclass(frozen=True)
class Waiting:
    """A record or a bundle that is to be stored."""

    path: Path
    """Its file."""
    record_id: str
    """The id of the record, or of the record that the bundle belongs to."""
    address: str | None = None
    """The address of the store that it is meant for; None for a file that the user named, and which waits nowhere."""
    place: BundlePlace | None = None
    """The place of a bundle in a store; None for a record."""
    content: bytes | None = None
    """The record in memory, as its file may not have been written; None if it is only in the file."""

    def send(self, store: Store, stored_keys: dict[str, set[str]] | None = None) -> str:
        """Store it, and return its location in the store. `stored_keys` is as `Store.put` takes it.

        Raises StoreError (NOT_STORED), and FlagbenchError (DATA) if the file is not a record.
        """
        if self.place is None:
            content = self.content or _read(self.path)
            return store.put(content, stored_keys=stored_keys).location
        store.bundles.put(self.place, self.path)
        return store.blobs.location(self.place.key)

    def forget(self, *, keep: bool = False) -> None:
        """Remove its file and the address after it was stored; with `keep`, only the address.

        If that fails, it waits on, and is stored again: that changes nothing.
        """
        with suppress(OSError):
            if not keep:
                self.path.unlink(missing_ok=True)
            _address_file(self.path).unlink(missing_ok=True)


def unsent_folder() -> Path:
    """Return the folder in which records and bundles wait."""
    return data_folder() / "unsent"


def set_aside(record: bytes, address: str) -> Waiting:
    """Write a record to the folder where it waits, so that it is not lost if it cannot be stored.

    If it cannot be written, such as to a full disk, it can still be sent, since the result has its content.

    Raises RecordError if the bytes are not a record.
    """
    record_id = read_record(record).record_id
    waiting_record = Waiting(unsent_folder() / f"{record_id}.json", record_id, address, content=record)
    try:
        _write_address(waiting_record.path, address)
        write_atomically(waiting_record.path, record)
    except OSError:
        waiting_record.forget()
    return waiting_record


def adopt_bundles(folder: Path, address: str) -> list[Waiting]:
    """Move the bundles that a run wrote below a folder to the folder where they wait; other files stay.

    Raises OSError.
    """
    bundles = []
    for file in sorted((folder / bundles_prefix()).glob("*/*")):
        place = parse_bundle_key(file.relative_to(folder).as_posix())
        if place is None or not file.is_file() or file.resolve() != folder.resolve() / place.key:
            continue  # a link could lead to a file that is not the run's
        file_name = place.key.removeprefix(bundles_prefix()).replace("/", ".")
        path = unsent_folder() / file_name
        _write_address(path, address)
        file.replace(path)
        bundles.append(Waiting(path, place.record_id, address, place))
    return bundles


def find_waiting(folder: Path) -> list[Waiting]:
    """Return the records and bundles that wait in a folder, the bundles of a record before it."""
    found = []
    for address_file in folder.glob(f"*{ADDRESS_SUFFIX}"):
        with suppress(OSError):  # another process has sent it meanwhile
            entry = _read_waiting(address_file)
            if entry is not None:
                found.append(entry)
    return sorted(found, key=lambda entry: (entry.record_id, entry.place is None, entry.path))


def _read_waiting(address_file: Path) -> Waiting | None:
    """Return the record or bundle next to the file with its address; None if it is neither. Raises OSError."""
    path = address_file.with_suffix("")
    if not path.is_file():
        return None
    address = address_file.read_bytes().decode("utf-8", "surrogateescape").strip()
    record_id, separator, node_and_sha256 = path.name.partition(".node-")
    if separator:
        place = parse_bundle_key(f"{bundles_prefix(record_id)}node-{node_and_sha256}")
        if place is not None:
            return Waiting(path, place.record_id, address, place)
    if path.suffix == ".json":
        return Waiting(path, path.stem, address)
    return None


def record_file(path: Path) -> Waiting:
    """Return the record in a file that the user named. Raises FlagbenchError (DATA) if it is not a record."""
    content = _read(path)
    return Waiting(path, read_record(content, str(path)).record_id)


@contextmanager
def bundle_folder() -> Iterator[Path]:
    """Make a folder for the bundles that one run writes, and remove it at the end.

    It is on the disk where they may have to wait. Folders of killed runs are removed, too. Raises OSError if it
    cannot be made.
    """
    unsent_folder().mkdir(parents=True, exist_ok=True)
    try:
        with scratch(str(unsent_folder()), _RUN_FOLDER_PREFIX) as folder:
            yield Path(folder)
    finally:
        with suppress(OSError):  # it is not empty
            unsent_folder().rmdir()


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MAX_RECORD_BYTES)
    except OSError as error:
        raise FlagbenchError(
            f"{path} cannot be read: {reason(error)}",
            remedy="name a record's file, or the --out folder of an image",
            code=ExitCode.DATA,
        ) from error


def _address_file(path: Path) -> Path:
    """Return the path of the file with the address that a record or bundle is meant for."""
    return path.with_name(path.name + ADDRESS_SUFFIX)


def _write_address(path: Path, address: str) -> None:
    """Write the address that a record or bundle is meant for next to its path. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(_address_file(path), address.encode("utf-8", "surrogateescape"))
