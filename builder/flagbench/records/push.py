"""`flagbench results push`: sends records and bundles that runs could not store to the stores they were meant for.

Files of records can be sent to a store, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.records.store import Store, open_store
from flagbench.records.waiting import Waiting, find_waiting, record_file, unsent_folder
from flagbench_core.exit_codes import ExitCode


@dataclass(frozen=True)
class Sent:
    """A record or a bundle that was stored."""

    record_id: str
    bundle: bool
    """Whether it is a bundle of the record and not the record itself."""
    location: str
    """Where it is stored now."""


@dataclass(frozen=True)
class NotSent:
    """A record, a bundle or a file that was not stored and stays where it is."""

    name: str
    """The id of the record, or the file or folder that was named."""
    error: FlagbenchError
    """Why it was not stored."""


def push(files: Sequence[Path], *, store_url: str | None) -> Iterator[Sent | NotSent]:
    """Send records and bundles, and yield for each whether it was stored.

    Args:
        files: files of records, and folders of records and bundles; if empty, all that waits for this user is sent.
        store_url: the store to send all of it to; None for the store that each is meant for.
    """
    to_send: list[Waiting] = []
    if not files:
        to_send = find_waiting(unsent_folder())
    for path in files:
        records_and_bundles, not_records = _read_path(path)
        to_send += records_and_bundles
        yield from not_records
    stores: dict[str | None, _OpenStore | FlagbenchError] = {}
    for entry in to_send:
        is_bundle = entry.place is not None
        try:
            address = store_url or _address_of(entry, waits_for_user=not files)
            if address not in stores:  # every store is opened and listed once
                stores[address] = _open(address)
            target = stores[address]
            if isinstance(target, FlagbenchError):
                raise target
            location = entry.send(target.store, target.keys)
        except FlagbenchError as error:
            if entry.path.exists():  # else another process has sent it meanwhile
                name = str(entry.path)
                if entry.address:
                    name = entry.record_id
                yield NotSent(name, error)
            continue
        is_named_record = bool(files) and not is_bundle
        entry.forget(keep=is_named_record)
        yield Sent(entry.record_id, is_bundle, location)


def _read_path(path: Path) -> tuple[list[Waiting], list[NotSent]]:
    """Return the records and bundles in a file or a folder, and the files in it that are not records."""
    files = [path]
    if path.is_dir():
        records_and_bundles = find_waiting(path)
        if records_and_bundles:
            return records_and_bundles, []
        files = sorted(path.glob("*.json"))
    if not files:
        empty = FlagbenchError(
            f"{path} has no record (*.json), and nothing waits in it",
            remedy="name an image's --out folder, or files of records; to copy a store, see docs/object-storage.md",
            code=ExitCode.DATA,
        )
        return [], [NotSent(str(path), empty)]
    records = []
    not_records = []
    for file in files:
        try:
            records.append(record_file(file))
        except FlagbenchError as error:
            not_records.append(NotSent(str(file), error))
    return records, not_records


@dataclass(frozen=True)
class _OpenStore:
    """A store that was listed once, so that `Store.put` need not list it for each record."""

    store: Store
    keys: dict[str, set[str]]
    """The keys of the stored records, as `Store.put` takes them."""


def _open(address: str | None) -> _OpenStore | FlagbenchError:
    """Return a store with the keys in it, or the error if it cannot be reached."""
    try:
        store = open_store(address)
        return _OpenStore(store, store.keys())
    except FlagbenchError as error:
        return error


def _address_of(entry: Waiting, *, waits_for_user: bool) -> str | None:
    """Return the address of the store that a record or bundle is meant for; None for the user's default store.

    Raises FlagbenchError (NOT_STORED) for a folder on another machine: the files that a user names may come from one.
    """
    address = entry.address
    if address is None or waits_for_user or address.lower().startswith("s3:"):
        return address
    raise FlagbenchError(
        f"{entry.path} is meant for {address!r}, which is not a bucket",
        remedy="name the store with --store",
        code=ExitCode.NOT_STORED,
    )
