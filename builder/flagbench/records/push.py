"""`results push`: sends what runs could not store to the stores it was meant for, and files of records to a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.records.store import Store, open_store
from flagbench.records.waiting import Waiting, record_file, unsent_folder, waiting
from flagbench_core.exit_codes import ExitCode


@dataclass(frozen=True)
class Sent:
    """A record or a bundle that was stored."""

    record_id: str
    bundle: bool
    location: str


@dataclass(frozen=True)
class NotSent:
    """What was not stored, and stays where it is."""

    name: str
    """The id of the record, or the file or folder that was named."""
    error: FlagbenchError


def push(files: Sequence[Path], *, store_url: str | None) -> Iterator[Sent | NotSent]:
    """Send what waits for this user or, if files are named, what those folders and files hold, one by one.

    `store_url` names another store for all of it. What another process has sent meanwhile is not an error.
    """
    unsent: list[Waiting] = []
    if not files:
        unsent = waiting(unsent_folder())
    for path in files:
        records_and_bundles, not_records = _read_path(path)
        unsent += records_and_bundles
        yield from not_records
    stores: dict[str | None, _OpenStore | FlagbenchError] = {}
    for waits in unsent:
        try:
            address = store_url or _address(waits, of_user=not files)
            if address not in stores:  # every store is opened and listed once
                stores[address] = _open(address)
            target = stores[address]
            if isinstance(target, FlagbenchError):
                raise target
            location = waits.send(target.store, target.keys)
        except FlagbenchError as error:
            if waits.path.exists():
                name = waits.record_id if waits.address else str(waits.path)
                yield NotSent(name, error)
            continue
        waits.forget(keep=waits.place is None and bool(files))
        yield Sent(waits.record_id, waits.place is not None, location)


def _read_path(path: Path) -> tuple[list[Waiting], list[NotSent]]:
    """The records and bundles in a file or a folder, and the files that are not records."""
    files = [path]
    if path.is_dir():
        waits = waiting(path)
        if waits:
            return waits, []
        files = sorted(path.glob("*.json"))
    if not files:
        empty = FlagbenchError(
            f"{path} has no record (*.json), and nothing waits in it",
            remedy="name an image's --out folder, or files of records; to copy a store, see docs/object-storage.md",
            code=ExitCode.DATA,
        )
        return [], [NotSent(str(path), empty)]
    records, not_records = [], []
    for file in files:
        try:
            records.append(record_file(file))
        except FlagbenchError as error:
            not_records.append(NotSent(str(file), error))
    return records, not_records


@dataclass(frozen=True)
class _OpenStore:
    store: Store
    keys: dict[str, set[str]]
    """As `Store.put` takes them."""


def _open(address: str | None) -> _OpenStore | FlagbenchError:
    """A store and the keys in it, or why it cannot be reached."""
    try:
        store = open_store(address)
        return _OpenStore(store, store.keys())
    except FlagbenchError as error:
        return error


def _address(waits: Waiting, *, of_user: bool) -> str | None:
    """The store that it is meant for. Raises FlagbenchError (not stored) if that cannot be used."""
    address = waits.address
    # A folder that was named may come from another machine, whose images let only uploads wait.
    if address is not None and not address.lower().startswith("s3:") and not of_user:
        raise FlagbenchError(
            f"{waits.path} is meant for {address!r}, which is not a bucket",
            remedy="name the store with --store",
            code=ExitCode.NOT_STORED,
        )
    return address
