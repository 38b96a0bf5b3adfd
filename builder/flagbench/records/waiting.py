"""Records and bundles that wait until they are stored, in one folder of the user, and how one is sent.

`ID.json` and `ID.node-K-SHA256.tar.gz` wait there, each beside a file `.meant-for` with the address that it is meant
for. An image does the same, in the folder of its `--out` if it has one. The name of the address is written first and
removed last: what has none does not wait.
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

_RUN = ".run-"
"""Begins the name of the folder of a run that has not ended."""


@dataclass(frozen=True)
class Waiting:
    """A record or a bundle that waits, or a file of a record that waits for nothing."""

    path: Path
    record_id: str
    address: str | None = None
    """The store that it is meant for."""
    place: BundlePlace | None = None
    """None: it is a record."""
    content: bytes | None = None
    """The record in memory: its file may not have been written."""

    def send(self, store: Store, stored_keys: dict[str, set[str]] | None = None) -> str:
        """Store it; returns its location. `stored_keys`: as `Store.put` takes it.

        Raises StoreError (NOT_STORED), and FlagbenchError (data) if the file is not a record.
        """
        if self.place is None:
            return store.put(self.content or _read(self.path), stored_keys=stored_keys).location
        store.bundles.put(self.place, self.path)
        return store.blobs.location(self.place.key)

    def forget(self, *, keep: bool = False) -> None:
        """It is stored: remove it, or only what says that it waits. A failure leaves it to be stored again."""
        with suppress(OSError):
            if not keep:
                self.path.unlink(missing_ok=True)
            _mark(self.path).unlink(missing_ok=True)


def unsent_folder() -> Path:
    """The folder in which records and bundles wait."""
    return data_folder() / "unsent"


def set_aside(record: bytes, address: str) -> Waiting:
    """Have a record wait. If it cannot be written, it can be sent all the same, and its file does not exist.

    Raises RecordError for what is not a record.
    """
    record_id = read_record(record).record_id
    waits = Waiting(unsent_folder() / f"{record_id}.json", record_id, address, content=record)
    try:
        _write_mark(waits.path, address)
        write_atomically(waits.path, record)
    except OSError:
        waits.forget()
    return waits


def adopt_bundles(folder: Path, address: str) -> list[Waiting]:
    """Move the bundles that a run wrote to the folder where they wait; other files are left. Raises OSError."""
    bundles = []
    for file in sorted((folder / bundles_prefix()).glob("*/*")):
        place = parse_bundle_key(file.relative_to(folder).as_posix())
        if place is None or not file.is_file() or file.resolve() != folder.resolve() / place.key:
            continue  # a link could lead to a file that is not the run's
        path = unsent_folder() / place.key[len(bundles_prefix()) :].replace("/", ".")
        _write_mark(path, address)
        file.replace(path)
        bundles.append(Waiting(path, place.record_id, address, place))
    return bundles


def waiting(folder: Path) -> list[Waiting]:
    """What waits in a folder, the bundles of a record before it."""
    waits = []
    for mark in folder.glob(f"*{ADDRESS_SUFFIX}"):
        with suppress(OSError):  # another process has sent it meanwhile
            marked = _marked_file(mark)
            if marked is not None:
                waits.append(marked)
    return sorted(waits, key=lambda waits: (waits.record_id, waits.place is None, waits.path))


def _marked_file(mark: Path) -> Waiting | None:
    """The record or bundle beside its mark; None for another file. Raises OSError."""
    path = mark.with_suffix("")
    if not path.is_file():
        return None
    address = mark.read_bytes().decode("utf-8", "surrogateescape").strip()
    record_id, dash, rest = path.name.partition(".node-")
    if dash:
        place = parse_bundle_key(f"{bundles_prefix(record_id)}node-{rest}")
        if place is not None:
            return Waiting(path, place.record_id, address, place)
    if path.suffix == ".json":
        return Waiting(path, path.stem, address)
    return None


def record_file(path: Path) -> Waiting:
    """A file of a record that waits for nothing. Raises FlagbenchError (data) if it is not a record."""
    return Waiting(path, read_record(_read(path), str(path)).record_id)


@contextmanager
def bundle_folder() -> Iterator[Path]:
    """A folder for what one run writes, on the disk where it may have to wait; removed at the end.

    Folders of killed runs are removed, too. Raises OSError if it cannot be made.
    """
    unsent_folder().mkdir(parents=True, exist_ok=True)
    try:
        with scratch(str(unsent_folder()), _RUN) as folder:
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


def _mark(path: Path) -> Path:
    return path.with_name(path.name + ADDRESS_SUFFIX)


def _write_mark(path: Path, address: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(_mark(path), address.encode("utf-8", "surrogateescape"))
